"""Policies: which actions on which resources a user is allowed or denied, as in RocketMQ 5.  Pure.

The parsing functions raise ValueError for invalid text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from broker_service.access.resources import Resource
from broker_service.access.source_networks import Network, network_of, text_of
from broker_service.access.users import user_of
from broker_service.access.words import word_of, words

MAX_RESOURCES = 1000  # for one user
MAX_SOURCE_IPS = 100  # in one policy


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
            raise ValueError(f"resource {resource}: no action is named; expected one of {words(Action)}")
        networks = tuple(network_of(text) for text in source_ips)
        if len(networks) > MAX_SOURCE_IPS:
            raise ValueError(
                f"resource {resource} has {len(networks)} source addresses; at most {MAX_SOURCE_IPS} are allowed"
            )
        return cls(Resource.parse(resource), found, word_of(Decision, decision), networks)

    def to_json(self) -> dict[str, Any]:
        return {
            "actions": sorted(map(str, self.actions)),
            "sourceIps": [text_of(network) for network in self.source_ips],
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


def split(text: str) -> Sequence[str]:
    """Splits `a,b` into its parts."""
    return [part.strip() for part in text.split(",") if part.strip()]
