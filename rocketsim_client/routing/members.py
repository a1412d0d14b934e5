"""Chooses the member of a broker name to ask, by RocketMQ's rule (table D5).  Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from rocketsim_client.model import MASTER_ID


class Member(NamedTuple):
    """A broker: one of the master and slaves that share a broker name."""

    broker_id: int
    address: str
    is_slave: bool


def find_broker_address(addresses: Mapping[int, str], broker_id: int, only_this: bool = False) -> Member | None:
    """Follows RocketMQ's findBrokerAddressInSubscribe.  Returns the member with the id `broker_id`.  If `broker_id` is
    a slave's id that no member has, returns the member with the next id, or else the member with the lowest id."""
    if broker_id in addresses:
        return Member(broker_id, addresses[broker_id], broker_id != MASTER_ID)
    if broker_id != MASTER_ID and broker_id + 1 in addresses:
        return Member(broker_id + 1, addresses[broker_id + 1], True)
    if only_this or not addresses:
        return None
    lowest = min(addresses)
    return Member(lowest, addresses[lowest], lowest != MASTER_ID)


def candidates(addresses: Mapping[int, str], broker_id: int, unreachable: frozenset[str] = frozenset()) -> list[Member]:
    """Returns all members in the order in which they are asked.  The member that table D5 of docs/decision_tables.md
    chooses comes first, and the others follow by id, but unreachable members come after all reachable ones."""
    chosen = find_broker_address(addresses, broker_id)
    if chosen is None:
        return []
    others = [Member(i, addresses[i], i != MASTER_ID) for i in sorted(addresses) if i != chosen.broker_id]
    return sorted([chosen, *others], key=lambda member: member.address in unreachable)
