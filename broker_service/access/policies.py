"""Users, resources, actions and policies, with RocketMQ 5's names.  Pure.

The parsing functions raise ValueError for invalid text.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, TypeVar

from broker_service.names import MAX_USERNAME_LENGTH, check_credentials, is_username

MAX_RESOURCES = 1000  # for one user
MAX_SOURCE_IPS = 100  # in one policy

_Word = TypeVar("_Word", bound=StrEnum)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_THIS_NETWORK, _BROADCAST = ipaddress.IPv4Network("0.0.0.0/8"), ipaddress.IPv4Network("255.255.255.255")
_MAPPED_BITS = 96  # bits of an IPv6 address before the IPv4 address that is mapped into it

_RESOURCE_NAME = re.compile(r"[%|a-zA-Z0-9_.+-]+", re.ASCII)


class UserType(StrEnum):
    SUPER = "Super"  # may do everything
    NORMAL = "Normal"


class UserStatus(StrEnum):
    ENABLE = "enable"
    DISABLE = "disable"


class ResourceType(StrEnum):
    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Action(StrEnum):
    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    ALLOW = "Allow"
    DENY = "Deny"


class Pattern(IntEnum):
    """The ways in which a policy names its resource, in the order of precedence."""

    LITERAL = 1
    PREFIXED = 2
    ANY = 3


@dataclass(frozen=True, slots=True)
class User:
    """A user.  `password` is the secret key itself and no hash, since a signature can be checked only with the key."""

    username: str = ""
    password: str = field(default="", repr=False)
    user_type: str = UserType.NORMAL
    user_status: str = UserStatus.ENABLE

    def __post_init__(self) -> None:
        check_credentials(self.username, self.password)
        object.__setattr__(self, "user_type", str(word_of(UserType, self.user_type)))
        object.__setattr__(self, "user_status", str(word_of(UserStatus, self.user_status)))

    @property
    def name(self) -> str:
        return self.username

    @property
    def is_super(self) -> bool:
        return self.user_type == UserType.SUPER

    @property
    def is_disabled(self) -> bool:
        return self.user_status == UserStatus.DISABLE


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


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: it allows or denies actions on a resource.

    With `source_ips` the policy applies only to callers from these addresses or networks, otherwise to all callers.
    """

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    source_ips: tuple[Network, ...] = ()

    @classmethod
    def parse(
        cls, resource: str, actions: Iterable[str], source_ips: Iterable[str] = (), decision: str = Decision.ALLOW
    ) -> "Policy":
        found = frozenset(word_of(Action, action) for action in actions)
        if not found:
            raise ValueError(f"resource {resource}: no action is named; expected one of {_words(Action)}")
        networks = tuple(_network(text) for text in source_ips)
        if len(networks) > MAX_SOURCE_IPS:
            raise ValueError(
                f"resource {resource} has {len(networks)} source addresses; at most {MAX_SOURCE_IPS} are allowed"
            )
        return cls(Resource.parse(resource), found, word_of(Decision, decision), networks)

    def to_json(self) -> dict[str, Any]:
        return {
            "actions": sorted(map(str, self.actions)),
            "sourceIps": [_text(network) for network in self.source_ips],
            "decision": str(self.decision),
        }


@dataclass(frozen=True, slots=True)
class Acl:
    """The policies of one user.  `policies` maps a resource to its actions, sourceIps and decision."""

    subject: str = ""
    policies: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        user_of(self.subject)
        self.parsed()

    @property
    def name(self) -> str:
        return self.subject

    def parsed(self) -> tuple[Policy, ...]:
        if len(self.policies) > MAX_RESOURCES:
            raise ValueError(f"{self.subject} has {len(self.policies)} resources; at most {MAX_RESOURCES} are allowed")
        found = []
        for resource, rest in self.policies.items():
            if not isinstance(rest, Mapping):
                raise ValueError(f"{self.subject}: the policy of {resource} must be a JSON object")
            actions, source_ips = rest.get("actions") or (), rest.get("sourceIps") or ()
            if isinstance(actions, str) or isinstance(source_ips, str):
                raise ValueError(f"{self.subject}: actions and sourceIps of {resource} must be lists")
            found.append(Policy.parse(resource, actions, source_ips, rest.get("decision") or ""))
        return tuple(found)

    def with_policies(self, policies: Iterable[Policy]) -> "Acl":
        """Returns an Acl with these policies added; a new policy replaces an existing policy for the same resource."""
        return Acl(self.subject, {**self.policies, **{str(policy.resource): policy.to_json() for policy in policies}})

    def without(self, resource: str) -> "Acl":
        return Acl(self.subject, {name: rest for name, rest in self.policies.items() if name != resource})


def user_of(subject: str) -> str:
    """Returns the name in `User:name`."""
    kind, _, name = subject.partition(":")
    if kind != "User" or not is_username(name):
        raise ValueError(f"subject {subject!r}: expected User:name")
    return name


def word_of(kind: type[_Word], text: str) -> _Word:
    """Returns the enum member whose value is this text, in upper or lower case."""
    for member in kind:
        if member.value.lower() == str(text).strip().lower():
            return member
    raise ValueError(f"{text!r} is none of {_words(kind)}")


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parses an IP address; None for other text.  An IPv4 address mapped into IPv6 is returned as IPv4."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def is_of_nobody(network: Network) -> bool:
    """Returns True if no caller can have an address in this network.

    No caller has an address of multicast, broadcast or 0.0.0.0/8, or the address ::.  (0.0.0.0 and :: mean "any" only
    for a listening socket.)
    """
    if isinstance(network, ipaddress.IPv6Network):
        return network.is_unspecified or network.is_multicast
    return network.subnet_of(_THIS_NETWORK) or network.is_multicast or network == _BROADCAST


def _network(text: str) -> Network:
    """Parses an address or network into the form that callers' addresses have.

    IPv4 addresses that are mapped into IPv6 become IPv4, and a zone (%eth0) is removed.
    """
    address, slash, bits = text.strip().partition("/")
    try:
        found = ipaddress.ip_network(f"{address.partition('%')[0]}{slash}{bits}", strict=False)
    except ValueError as error:
        raise ValueError(f"source address {text!r}: expected an IP address, or a network as in 10.0.0.0/8") from error
    if isinstance(found, ipaddress.IPv6Network) and found.prefixlen >= _MAPPED_BITS:
        if (mapped := found.network_address.ipv4_mapped) is not None:
            return ipaddress.IPv4Network((mapped, found.prefixlen - _MAPPED_BITS))
    return found


def _text(network: Network) -> str:
    return str(network.network_address if network.num_addresses == 1 else network)


def _words(kind: type[StrEnum]) -> str:
    return ", ".join(member.value for member in kind)


def split(text: str) -> Sequence[str]:
    """Splits `a,b` into its parts."""
    return [part.strip() for part in text.split(",") if part.strip()]
