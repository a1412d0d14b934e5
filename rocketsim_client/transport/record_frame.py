"""Encodes outgoing messages as one frame of records.  Pure."""

from typing import Any

from rocketsim_proto.records import columnar

from rocketsim_client.transport.sends import Outgoing

_NO_PORT = bytes(4)  # A record is encoded before its connection is chosen, so the client's port is not known yet.


def encode(outgoing: Outgoing, born_ipv4: bytes) -> tuple[memoryview, Any]:
    """Returns the records one after the other, and the size of each."""
    return columnar.encode(
        outgoing.topic,
        outgoing.queue_ids,
        outgoing.bodies,
        outgoing.properties,
        born_timestamp=outgoing.born_timestamp,
        born_host=born_ipv4 + _NO_PORT,
        flags=outgoing.flags,
        sys_flags=outgoing.sys_flags,
    )
