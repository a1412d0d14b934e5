"""Policies decide if a user may perform an action on a resource.  Pure."""

import ipaddress
from collections.abc import Iterable

from broker_service.access.policies import Action, Decision, Policy
from broker_service.access.resources import Pattern, ResourceType

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Policies:
    """The policies of one user, by resource, so that a decision takes the same time for any number of policies."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        self._by_resource: dict[tuple[ResourceType, Pattern, str], list[Policy]] = {}
        self._count = 0
        sizes: dict[ResourceType, set[int]] = {}
        for policy in policies:
            kind, pattern, name = policy.resource.type, policy.resource.pattern, policy.resource.name
            self._by_resource.setdefault((kind, pattern, name), []).append(policy)
            self._count += 1
            if pattern is Pattern.PREFIXED:
                sizes.setdefault(kind, set()).add(len(name))
        self._prefix_sizes = {kind: sorted(found, reverse=True) for kind, found in sizes.items()}

    def __len__(self) -> int:
        return self._count

    def decide(
        self, kind: ResourceType, name: str, action: Action, source: Address | None, *, by_name: bool = False
    ) -> Decision | None:
        """Returns the decision of the matching policy with the highest precedence; None if no policy matches.

        The precedence is RocketMQ 5's: a policy for the exact name comes first, then policies for prefixes of the name,
        the longest first, then policies for all names.  Among policies of the same precedence, Deny wins.

        `source` is the caller's address.  If `source` is None, a policy with source addresses matches only if its
        decision is Deny.  With `by_name`, only policies for the exact name can allow the action.
        """
        prefixes = [(Pattern.PREFIXED, name[:size]) for size in self._prefix_sizes.get(kind, ()) if size <= len(name)]
        for pattern, text in ((Pattern.LITERAL, name), *prefixes, (Pattern.ANY, "")):
            found = [
                one.decision for one in self._by_resource.get((kind, pattern, text), ()) if _is_for(one, action, source)
            ]
            if found:
                decision = Decision.DENY if Decision.DENY in found else Decision.ALLOW
                return None if by_name and decision is Decision.ALLOW and pattern is not Pattern.LITERAL else decision
        return None


def _is_for(policy: Policy, action: Action, source: Address | None) -> bool:
    if action not in policy.actions and Action.ALL not in policy.actions:
        return False
    if not policy.source_ips:
        return True
    if source is None:
        return policy.decision is Decision.DENY
    return any(source in network for network in policy.source_ips)
