"""`host:port;host:port` as users write it.  Pure."""

import re
from collections.abc import Sequence

from rocketsim_client.errors import InvalidParameter

_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:;,/\[\]]+):[0-9]{1,5}")


def parse_name_servers(text: str | Sequence[str]) -> list[str]:
    pieces = re.split(r"[;,]", text) if isinstance(text, str) else list(text)
    addresses = [piece.strip() for piece in pieces if piece.strip()]
    if not addresses:
        raise InvalidParameter("no name server given: host:port, several joined by ';'")
    for address in addresses:
        if not _ADDRESS.fullmatch(address) or not 0 < int(address.rpartition(":")[2]) < 65536:
            raise InvalidParameter(f"name server {address!r}: host:port expected, several joined by ';'")
    return addresses
