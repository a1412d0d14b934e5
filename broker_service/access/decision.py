"""What a user's policies say of one action.  Pure."""

import ipaddress
from collections.abc import Iterable

from broker_service.access.model import Action, Decision, Pattern, Policy, ResourceType

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Policies:
    """Those of one user, by what they are for: a decision costs the same however many there are."""

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
        """The decision of the policy that goes before all others that match; None: none matches.

        As in RocketMQ 5: a policy for the very name goes before one for names that begin so, of those the longest
        first, and these before one for all names; among equals Deny goes first.  `source` is the caller's address;
        where it is not known, of the policies for some addresses those that deny match, and those that allow do not.
        `by_name`: policies for prefixes and for all names allow nothing.
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
