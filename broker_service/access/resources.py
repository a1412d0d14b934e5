"""The resources to which a policy can allow or deny access, as RocketMQ 5 names them.  Pure."""

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from broker_service.access.words import word_of
from broker_service.names import MAX_USERNAME_LENGTH

_RESOURCE_NAME = re.compile(r"[%|a-zA-Z0-9_.+-]+", re.ASCII)


class ResourceType(StrEnum):
    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Pattern(IntEnum):
    """The ways in which a policy names its resource, in the order of precedence."""

    LITERAL = 1
    PREFIXED = 2
    ANY = 3


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource of a policy: one name, all names with a prefix, or all names of the type."""

    type: ResourceType
    name: str
    pattern: Pattern

    @classmethod
    def parse(cls, text: str) -> "Resource":
        """Parses `Topic:orders`, `Topic:ord*` or `Topic:*`."""
        kind, colon, name = text.strip().partition(":")
        if not colon:
            raise ValueError(
                f"resource {text!r}: expected Topic:name, Group:name or Cluster:name; "
                "a * at the end of the name stands for any ending"
            )
        found = word_of(ResourceType, kind)
        if name == "*":
            return cls(found, "", Pattern.ANY)
        prefix = name.removesuffix("*")
        if len(name) > 2 * MAX_USERNAME_LENGTH or not _RESOURCE_NAME.fullmatch(prefix):
            raise ValueError(f"resource {text!r}: expected letters, digits and %|_.+- with at most one * at the end")
        return cls(found, prefix, Pattern.LITERAL if prefix == name else Pattern.PREFIXED)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}{'' if self.pattern is Pattern.LITERAL else '*'}"
