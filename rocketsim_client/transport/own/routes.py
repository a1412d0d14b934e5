"""Asks name servers over gRPC."""

from collections.abc import Iterable, Sequence

from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub
from rocketsim_proto.versions import WIRE, too_new

from rocketsim_client.errors import NoRoute, TooNew, TopicNotExist
from rocketsim_client.route import BrokerData, QueueData, TopicRoute
from rocketsim_client.transport.name_servers import NameServers
from rocketsim_client.transport.own.answers import broker_data
from rocketsim_client.transport.own.channels import Channels


def check_versions(name_server: str, version: int, brokers: Iterable[ns.BrokerData]) -> None:
    """Raises TooNew if the name server or one of these brokers speaks a version that this client does not know."""
    speakers = [(f"name server {name_server}", version)]
    speakers += [(f"broker {data.broker_name}", data.wire_version) for data in brokers]
    for who, theirs in speakers:
        if problem := too_new(who, "the wire", theirs, WIRE):
            raise TooNew(problem, address=name_server)


class GrpcRoutes:
    """Implements `RouteCalls` over gRPC."""

    def __init__(self, channels: Channels, name_servers: Sequence[str]) -> None:
        self.channels = channels
        self._name_servers = NameServers(name_servers)

    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute:
        def ask(address: str) -> TopicRoute:
            request = ns.TopicRouteRequest(topic=topic)
            answer = self.channels.call(address, NameServerStub, "TopicRoute", request, timeout_s)
            check_versions(address, answer.wire_version, answer.broker_datas)
            if not answer.queue_datas:
                raise NoRoute(f"name server {address} has no route of the topic", address=address)
            return TopicRoute(
                topic,
                tuple(
                    QueueData(data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm)
                    for data in answer.queue_datas
                ),
                {data.broker_name: broker_data(data) for data in answer.broker_datas},
            )

        try:
            return self._name_servers.ask(ask)
        except TopicNotExist as error:
            raise NoRoute(
                f"no name server knows a broker with topic {topic!r}: none of its brokers runs, or it does not exist"
                f" (create it with: rocketsim admin updateTopic -t {topic})",
                address=error.address,
            ) from error

    def topic_list(self, timeout_s: float) -> list[str]:
        def ask(address: str) -> list[str]:
            answer = self.channels.call(address, NameServerStub, "TopicList", ns.TopicListRequest(), timeout_s)
            return sorted(answer.topics)

        return self._name_servers.ask(ask)

    def cluster_list(self, timeout_s: float) -> list[BrokerData]:
        def ask(address: str) -> list[BrokerData]:
            answer = self.channels.call(address, NameServerStub, "ClusterList", ns.ClusterListRequest(), timeout_s)
            check_versions(address, answer.wire_version, answer.brokers)
            return sorted(map(broker_data, answer.brokers), key=lambda data: (data.cluster_name, data.broker_name))

        return self._name_servers.ask(ask)

    def write_perm(self, broker_name: str, writable: bool, timeout_s: float) -> dict[str, int]:
        method = "AddWritePerm" if writable else "WipeWritePerm"
        request = ns.WritePermRequest(broker_name=broker_name)

        def change(address: str) -> int:
            return int(self.channels.call(address, NameServerStub, method, request, timeout_s).topic_count)

        return self._name_servers.change(f"{method} of {broker_name}", change)
