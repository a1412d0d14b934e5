"""The calls to name servers."""

from typing import Protocol

from rocketsim_client.route import BrokerData, TopicRoute


class RouteCalls(Protocol):
    """Every call tries each name server once."""

    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute: ...
    def topic_list(self, timeout_s: float) -> list[str]: ...
    def cluster_list(self, timeout_s: float) -> list[BrokerData]: ...
    def write_perm(self, broker_name: str, writable: bool, timeout_s: float) -> dict[str, int]:
        """Changes the write permission of a broker on every name server.  Returns, for the address of each name server,
        how many topics were changed there."""
