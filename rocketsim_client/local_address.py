"""This machine's IPv4 address as a peer sees it: what RocketMQ keeps of a message's origin."""

import socket
from functools import cache

LOOPBACK = b"\x7f\x00\x00\x01"


@cache
def local_ipv4(peer: str) -> bytes:
    """The address a connection to `host:port` would come from; loopback where that cannot be told.  Sends nothing."""
    host, _, port = peer.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return socket.inet_aton(probe.getsockname()[0])
    except (OSError, ValueError):
        return LOOPBACK
