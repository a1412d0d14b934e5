"""Encodes outgoing messages as one frame of records.  Pure."""

from typing import Any

from rocketsim_proto.records import columnar

from rocketsim_client.transport.sends import Outgoing

_NO_PORT = bytes(4)  # The port differs by connection, and this client does not know it; RocketMQ's brokers see it.


def encode(outgoing: Outgoing, born_ipv4: bytes) -> tuple[memoryview, Any]:
    """Returns (records one after the other, their sizes)."""
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
