"""RocketMQFollower is a slave's side of one stream from a RocketMQ master, without the network I/O.

Because RocketMQ's HA protocol has no epochs, a slave that has records asks for the last bytes of its log again.  Before
the slave stores or acknowledges anything, it compares the master's bytes with the last bytes of its own log.  A slave
of a RocketMQ master never cuts its log.
"""

from typing import NamedTuple

from rocketsim_proto.records.record import RecordError

from broker_service.replication.ha_stream import HaFrame
from broker_service.replication.handshake import TAIL_BYTES
from broker_service.replication.protocols import ReplicatedLog
from broker_service.replication.refusals import Diverged, Mismatch, ProtocolViolation

# A record is smaller than 16 MiB, so the first byte of a log, which is the highest byte of a record's size, is 0.
FIRST_BYTE = b"\0"
KEEP_BOTH = (
    "nothing was changed here; find out which log is right, and start this slave with an empty store to follow the "
    "master's"
)


class LogBounds(NamedTuple):
    """The offsets at which a log begins and ends."""

    min_offset: int
    end_offset: int


class Start(NamedTuple):
    """Where a stream begins.

    - `asked`: the first offset that the slave sends to the master
    - `begins_at`: where an empty log begins; None if the slave has records
    """

    asked: int
    begins_at: int | None


def start_of(ours: LogBounds, masters: LogBounds) -> Start:
    """Decides where a stream begins.  Raises Mismatch if this log cannot continue the master's.

    Asked for offset 0, a RocketMQ master sends only its last file.  A slave that wants the whole log from 0 on
    therefore asks for offset 1, and supplies the first byte itself (FIRST_BYTE).
    """
    if ours.min_offset == ours.end_offset:
        return Start(max(1, masters.min_offset), masters.min_offset)
    check_bounds(ours, masters)
    return Start(max(1, ours.end_offset - TAIL_BYTES, ours.min_offset, masters.min_offset), None)


def check_bounds(ours: LogBounds, masters: LogBounds) -> None:
    """Raises Mismatch if the master's log does not reach this log's end, or begins behind it."""
    if masters.end_offset < ours.end_offset:
        raise Mismatch(
            f"the RocketMQ master's log ends at {masters.end_offset}, before the end {ours.end_offset} of this one: "
            f"the master has lost messages, or is another one; {KEEP_BOTH}"
        )
    if masters.min_offset >= ours.end_offset > ours.min_offset:
        raise Mismatch(
            f"the RocketMQ master's log begins at {masters.min_offset}, and this slave's ends at {ours.end_offset}: "
            f"messages between them have expired at the master; {KEEP_BOTH}"
        )


class RocketMQFollower:
    """One replication stream, which must end after any exception; the log is consistent even then."""

    def __init__(self, log: ReplicatedLog, start: Start) -> None:
        self.master_end_offset = 0
        self._log = log
        self._start = start
        self._compare_to = log.end_offset if start.begins_at is None else start.asked
        self._expected = start.asked
        self._needs_first_byte = start.begins_at == 0

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def next_offset(self) -> int:
        """The log offset of the next byte from the master."""
        return self._expected

    @property
    def is_accepted(self) -> bool:
        """True once the last bytes of this log have been compared with the master's."""
        return self._expected >= self._compare_to

    def receive(self, frame: HaFrame) -> None:
        """Compares and stores log bytes, which may end within a record; a heartbeat has none."""
        offset, data = frame
        if offset != self._expected:
            raise ProtocolViolation(
                f"log bytes begin at {offset} instead of {self._expected}: the master's log has changed"
            )
        self._expected += len(data)
        self.master_end_offset = max(self.master_end_offset, self._expected)
        if offset < self._compare_to:
            known = data[: self._compare_to - offset]
            if self._read(offset, len(known)) != known:
                raise Diverged(
                    f"the bytes from {offset} to {offset + len(known)} differ from the RocketMQ master's: "
                    f"the master has another log; {KEEP_BOTH}"
                )
            offset, data = offset + len(known), data[len(known) :]
        if not data:
            return
        if self._needs_first_byte:
            offset, data, self._needs_first_byte = 0, FIRST_BYTE + data, False
        try:
            self._log.append_replicated(offset, data)
        except RecordError as error:
            raise ProtocolViolation(f"log bytes from {offset}: {error}") from error

    def report(self, flushed_offset: int) -> int:
        """Returns the log offset to send to the master, which is the end of the whole records that are on disk.

        Before the last bytes have been compared, the result is the offset from which the slave asked for bytes.
        """
        if not self.is_accepted:
            return self._start.asked
        return max(self._start.asked, min(self._log.end_offset, flushed_offset))

    def _read(self, offset: int, size: int) -> bytes:
        """Reads bytes of this log, which may lie in two files."""
        parts = []
        while size > 0 and (part := bytes(self._log.read_log(offset, size))):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def __str__(self) -> str:
        end = self._log.end_offset
        return f"follower of RocketMQ end={end} behind={max(0, self.master_end_offset - end)}B"
