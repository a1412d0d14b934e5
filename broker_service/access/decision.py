"""What a user's policies say of one action.  Pure."""

import ipaddress
from collections.abc import Iterable

from broker_service.access.model import Action, Decision, Policy, ResourceType

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def decide(
    policies: Iterable[Policy], kind: ResourceType, name: str, action: Action, source: Address | None
) -> Decision | None:
    """The decision of the policy that goes before all others that match; None: none matches.

    As in RocketMQ 5: a policy for the very name goes before one for names that begin so, of those the longest first,
    and these before one for all names; among equals Deny goes first.  `source` is the caller's address; a policy for
    some addresses does not match where it is not known.
    """
    matching = [policy for policy in policies if _matches(policy, kind, name, action, source)]
    return min(matching, key=_rank).decision if matching else None


def _matches(policy: Policy, kind: ResourceType, name: str, action: Action, source: Address | None) -> bool:
    if not policy.resource.includes(kind, name) or not policy.actions & {action, Action.ALL}:
        return False
    return not policy.source_ips or (source is not None and any(source in network for network in policy.source_ips))


def _rank(policy: Policy) -> tuple[int, int, bool]:
    return policy.resource.pattern, -len(policy.resource.name), policy.decision is Decision.ALLOW
