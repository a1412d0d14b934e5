"""Says how RocketMQ's brokers differ by version.  The header of each answer has the version, as a number of RocketMQ's
MQVersion.  Pure.

| since  | what is different |
|--------|----------------------------------------------------------------------------------------------------|
| 4.9.4  | a name server answers routes in strict JSON, if it is asked to |
| 5.0.0  | a search by time finds the first message that is not older; before, the nearest one, or the last of all |
| 5.0.0  | a broker says that a group has no offset (`setZeroIfNotFound`); before, it says 0 if a queue begins at 0 |
| 5.0.0  | a commit for a group or topic that the broker does not know is refused; before, anything is taken |
| 5.0.0  | a slave without `slaveReadEnable` refuses reads with code 2, which a master uses when it is busy |
| 5.0.0  | access control refuses with code 16; before, with 1 and the exception's name |
| 5.0.0  | a message is delivered at a given time (`TIMER_DELIVER_MS`); before, at once |
| 5.5.0  | a slave never gets the group offsets of its master; before, 4.x within seconds, 5.x within a minute |

If a message is too large, brokers answer with code 13, but brokers of 5.x with code 1 if the message is in a batch.  If
a queue does not exist, brokers of 4.x answer with code 1, and brokers of 5.x with code 29.
"""


def _ordinal(major: int, minor: int, patch: int) -> int:
    """Returns MQVersion's number of a release.  MQVersion has a number for each release and for a snapshot before it,
    and has numbers for ten releases of each minor version."""
    return 413 + 20 * minor + 2 * patch if major == 5 else 393 - 20 * (9 - minor) + 2 * patch


FIRST_5 = _ordinal(5, 0, 0)
OWN_SLAVE_OFFSETS = _ordinal(5, 5, 0)


def finds_exactly_by_time(version: int) -> bool:
    return version >= FIRST_5


def delivers_at_times(version: int) -> bool:
    return version >= FIRST_5


def says_that_there_is_no_offset(version: int) -> bool:
    return version >= FIRST_5


def slaves_have_group_offsets(version: int) -> bool:
    return version < OWN_SLAVE_OFFSETS
