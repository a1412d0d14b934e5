"""Replaces brokers' addresses by those at which this machine reaches them, as the option `addressMap` says.  Pure.

Brokers advertise their `brokerIP1`, which may be an address that only their own network can reach.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rocketsim_client.addresses import is_address
from rocketsim_client.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class AddressMap:
    """The rules of the option `addressMap`.

    The rule `10.0.0.3:10911=host:20911` replaces one address.  The rule `10.0.*=host` replaces the host of all
    addresses that match, and keeps the port.  The first rule that matches is used.
    """

    rules: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return ",".join(f"{pattern}={target}" for pattern, target in self.rules)

    @classmethod
    def parse(cls, text: str) -> "AddressMap":
        """Parses the text of the option, and raises InvalidParameter if a rule is wrong."""
        rules = []
        for rule in filter(None, (piece.strip() for piece in re.split("[,;]", text))):
            pattern, equals, target = (piece.strip() for piece in rule.partition("="))
            with_port = re.search(r":[0-9]{1,5}$", pattern) is not None
            is_right = is_address(target) or (not with_port and is_address(f"{target}:1"))
            if not equals or not pattern or not is_right:
                raise InvalidParameter(
                    f"address_map: {rule!r} is neither host:port=host:port nor host=host (hosts may have *)"
                )
            rules.append((pattern, target))
        return cls(tuple(rules))

    def of(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        for pattern, target in self.rules:
            if fnmatchcase(address, pattern) or fnmatchcase(host, pattern):
                return target if is_address(target) else f"{target}:{port}"
        return address
