"""A route without a name server, from the option `brokers`: who the brokers are is given, which queues they have they
are asked.
"""

from collections.abc import Iterable, Mapping

from rocketsim_client.errors import BrokerNotExist, MasterNotExist, NoPermission, NoRoute, RocketSimError, TopicNotExist
from rocketsim_client.route import MASTER_ID, PERM_READ, PERM_WRITE, BrokerData, QueueData, TopicRoute
from rocketsim_client.transport.grpc_transport import GrpcTransport
from rocketsim_source.connection import Members


class StaticRoute(GrpcTransport):
    def __init__(self, brokers: Iterable[tuple[str, Members]], channel_options: Mapping[str, int | str]) -> None:
        super().__init__([], channel_options)
        self._brokers = {name: BrokerData("", name, dict(members)) for name, members in brokers}
        self._known: dict[tuple[str, str], QueueData] = {}

    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute:
        """Queues are counted anew each time; a broker name that is away keeps the queues it had.  Only a master says
        that a topic is gone: its slave may not have heard of it yet."""
        failure: RocketSimError | None = None
        for name in self._brokers:
            try:
                self._known[topic, name] = self._count(topic, name, timeout_s)
            except TopicNotExist:
                self._known.pop((topic, name), None)
            except RocketSimError as error:
                failure = error
        queues = tuple(self._known[topic, name] for name in self._brokers if (topic, name) in self._known)
        if not queues:
            raise failure or NoRoute(f"topic {topic!r}: none of the brokers {', '.join(self._brokers)} has it")
        return TopicRoute(topic, queues, {data.broker_name: self._brokers[data.broker_name] for data in queues})

    def topic_list(self, timeout_s: float) -> list[str]:
        raise NoPermission("without a name server there is no list of topics")

    def cluster_list(self, timeout_s: float) -> list[BrokerData]:
        return list(self._brokers.values())

    def _count(self, topic: str, name: str, timeout_s: float) -> QueueData:
        failure: RocketSimError = BrokerNotExist(f"broker {name!r} has no address")
        for broker_id, address in sorted(self._brokers[name].addresses.items()):
            try:
                found = self.queue_bounds(address, topic, [], timeout_s).values()
                read, write = sum(queue.readable for queue in found), sum(queue.writable for queue in found)
                return QueueData(name, read, write, PERM_READ | PERM_WRITE)
            except TopicNotExist as error:
                if broker_id == MASTER_ID:
                    raise
                failure = MasterNotExist(f"no master of broker {name!r} is there, and its slave may not know: {error}")
            except RocketSimError as error:
                failure = error
        raise failure
