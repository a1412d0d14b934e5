"""The versions of the protocols on which two processes must agree.

A version is raised only when an older program would misunderstand a newer one.  A version is not raised for a new field
or call that the other side may lack.  Programs with equal versions work together, a newer program knows older versions,
and an older program refuses a newer version with a reason.  Programs up to commit 9157579 send 0 instead of version 1.
"""

WIRE = 1
"""The calls of clients, operators and name servers, and their frames: broker.proto, admin.proto, namesrv.proto."""

REPLICATION = 1
"""The stream between master and slave, and the log on it: replication.proto, metadata.proto."""


def too_new(who: str, what: str, theirs: int, ours: int) -> str:
    """Returns the reason why this side cannot work with `who`, or "" if it can."""
    if theirs <= ours:
        return ""
    return f"{who} speaks version {theirs} of {what}, this side knows versions up to {ours}: upgrade this side first"
