"""What two processes have to agree on, as numbers that go with it.

A number grows only when who knows the older one would misunderstand the newer one; a field or call that may be missing
changes nothing.  So equal numbers work together, an older one is known here, and a newer one is refused with a reason
by whoever meets it.  On the wire 0 is a peer that does not say it yet (up to 9157579), which speaks 1.
"""

WIRE = 1
"""The calls of clients, operators and name servers, and their frames: broker.proto, admin.proto, namesrv.proto."""

REPLICATION = 1
"""The stream between master and slave, and the log on it: replication.proto, metadata.proto."""


def too_new(who: str, what: str, theirs: int, ours: int) -> str:
    """Why this side cannot work with `who`, or nothing when it can."""
    if theirs <= ours:
        return ""
    return f"{who} speaks version {theirs} of {what}, this side knows versions up to {ours}: upgrade this side first"
