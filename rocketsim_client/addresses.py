"""Parses and checks addresses of servers, and finds this machine's own address towards a server."""

import re
import socket
import time
from collections.abc import Mapping, Sequence
from functools import cache

from rocketsim_client.errors import InvalidParameter

Brokers = Mapping[str, Mapping[int, str]]  # broker name -> broker id -> host:port

LOOPBACK = b"\x7f\x00\x00\x01"
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:;,/\[\]]+):[0-9]{1,5}")
# The endpoint of a cloud's instance of RocketMQ 4, as in `MQ_INST_1234_abc.mq.example.com:80`.
_INSTANCE = re.compile(r"(MQ_INST_\w+_\w+)\.", re.ASCII)


def parse_name_servers(text: str | Sequence[str]) -> list[str]:
    """Returns the addresses, each as `host:port`."""
    addresses = split_addresses(text)
    if not addresses:
        raise InvalidParameter("no name server is given; give host:port, or several joined by ';'")
    for address in addresses:
        if not is_address(address):
            raise InvalidParameter(f"name server {address!r} is not host:port; join several by ';'")
    return addresses


def split_addresses(text: str | Sequence[str]) -> list[str]:
    """Splits addresses that are joined by `;` (as in RocketMQ) or `,`, without checking them.

    Clouds show the endpoint of an instance with `http://`, which is left out, as RocketMQ's clients do.
    """
    parts = re.split(r"[;,]", text) if isinstance(text, str) else text
    return [part.strip().removeprefix("http://") for part in parts if part.strip()]


def instance_of(addresses: Sequence[str]) -> str:
    """Returns the instance that an endpoint names (`MQ_INST_1234_abc`), or an empty text."""
    return next((found[1] for address in addresses if (found := _INSTANCE.match(address))), "")


def check_brokers(brokers: Brokers) -> None:
    """Raises InvalidParameter unless every broker name has an address, and each is `host:port`."""
    for broker_name, members in brokers.items():
        for address in members.values():
            if not is_address(address):
                raise InvalidParameter(f"broker {broker_name!r}: the address {address!r} is not host:port")
        if not members:
            raise InvalidParameter(f"broker {broker_name!r} has no address; give broker id -> host:port")


def is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None and 0 < int(text.rpartition(":")[2]) < 65536


def connected(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connects over TCP within `timeout_s`, which does not include the time to look up the name.

    If the name has several addresses, each of them gets an equal part of the time that is left, so that one that does
    not answer leaves time for the others.  The socket's own timeout is the time that is left of `timeout_s`.  Raises
    TimeoutError if at least one address did not answer in time, because the next try would wait for it again.
    Otherwise raises the OSError of the last address.
    """
    deadline = time.monotonic() + timeout_s
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure = OSError(f"{host} has no address")
    for number, (family, kind, protocol, _, where) in enumerate(found):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(max(deadline - time.monotonic(), 0.001) / (len(found) - number))
            made.connect(where)
            made.settimeout(max(deadline - time.monotonic(), 0.001))
        except OSError as error:
            made.close()
            failure = failure if isinstance(failure, TimeoutError) else error
        else:
            return made
    raise failure


@cache
def local_ipv4(peer: str) -> bytes:
    """Returns this machine's address as the server at `peer` sees it, which RocketMQ stores with a message.  Returns
    the loopback address if this machine's own address cannot be found out.  Sends nothing."""
    host, _, port = peer.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return socket.inet_aton(probe.getsockname()[0])
    except (OSError, ValueError):
        return LOOPBACK
