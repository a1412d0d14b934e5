"""Outgoing messages as one frame of record bytes.  Pure."""

from typing import Any

from rocketsim_proto.records import columnar

from rocketsim_client.transport.sends import Outgoing

_NO_PORT = bytes(4)  # Each connection has another one; RocketMQ's brokers see it, we do not.


def encode(outgoing: Outgoing, born_ipv4: bytes) -> tuple[memoryview, Any]:
    """(records back to back, their sizes)."""
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
