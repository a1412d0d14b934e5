"""Makes the calls to RocketMQ's name servers."""

from collections.abc import Mapping
from typing import Any

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from rocketsim_client.address_map import AddressMap
from rocketsim_client.connection import Connection
from rocketsim_client.errors import BadAnswer, NoRoute, NotSupported, TopicNotExist
from rocketsim_client.route import BrokerData, QueueData, TopicRoute
from rocketsim_client.transport.name_servers import NameServers
from rocketsim_client.transport.remoting.answers import body_of, field, part
from rocketsim_client.transport.remoting.connections import Connections, Reply, Request
from rocketsim_client.transport.remoting.members import KnownMembers
from rocketsim_client.transport.server_protocol import NAME_SERVER_ADVICE


class RemotingRoutes:
    """Implements `RouteCalls` over the remoting protocol."""

    def __init__(self, connections: Connections, settings: Connection, members: KnownMembers) -> None:
        self._connections = connections
        self._name_servers = NameServers(settings.name_servers)
        self._addresses = AddressMap.parse(settings.address_map)
        self._members = members

    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute:
        request = Request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            f"the route of topic {topic!r}",
            {"topic": topic, "acceptStandardJsonOnly": "true"},
        )

        def ask(address: str) -> TopicRoute:
            return self._route(topic, body_of(self._call(address, request, timeout_s).body, address), address)

        try:
            route = self._name_servers.ask(ask)
        except TopicNotExist as error:
            raise NoRoute(
                f"no name server knows a broker with topic {topic!r}: none of its brokers runs, or it does not exist"
                f" (create it with: rocketsim admin updateTopic -t {topic})",
                address=error.address,
            ) from error
        self._members.learn_route(route)
        return route

    def topic_list(self, timeout_s: float) -> list[str]:
        """Leaves out the topics that RocketMQ itself creates, one with the name of each cluster and broker."""
        request = Request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "the list of topics", {})

        def ask(address: str) -> list[str]:
            return topics_in(self._call(address, request, timeout_s))

        found = self._name_servers.ask(ask)
        brokers = self.cluster_list(timeout_s)
        own = {data.broker_name for data in brokers} | {data.cluster_name for data in brokers}
        return sorted(set(found) - own)

    def cluster_list(self, timeout_s: float) -> list[BrokerData]:
        request = Request(RequestCode.GET_BROKER_CLUSTER_INFO, "the list of brokers", {})

        def ask(address: str) -> list[BrokerData]:
            body = body_of(self._call(address, request, timeout_s).body, address)
            brokers = part(body, "brokerAddrTable", dict, address).values()
            return sorted(
                (self._broker(data, address) for data in brokers),
                key=lambda data: (data.cluster_name, data.broker_name),
            )

        found = self._name_servers.ask(ask)
        self._members.learn(found)
        return found

    def write_perm(self, broker_name: str, writable: bool, timeout_s: float) -> dict[str, int]:
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if writable else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        count = "addTopicCount" if writable else "wipeTopicCount"
        what = f"{'addWritePerm' if writable else 'wipeWritePerm'} of {broker_name}"
        request = Request(code, what, {"brokerName": broker_name})

        def change(address: str) -> int:
            return field(self._call(address, request, timeout_s).header, count, address)

        return self._name_servers.change(what, change)

    def _call(self, address: str, request: Request, timeout_s: float) -> Reply:
        """Calls a name server.  If the address is that of a broker or a proxy, the error says so: a broker knows
        none of these calls, and a proxy knows only the call for a route."""
        reply = self._connections.call(address, request, timeout_s, (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,))
        if reply.header.code:
            is_broker = request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            kind = "a broker's port (listenPort)" if is_broker else "the port of a broker or a proxy"
            raise NotSupported(f"{request.what}: {address} is {kind}; {NAME_SERVER_ADVICE}", address=address)
        return reply

    def _route(self, topic: str, body: Mapping[str, Any], address: str) -> TopicRoute:
        if body.get("topicQueueMappingByBroker"):
            raise NotSupported(f"topic {topic!r} is a static topic of RocketMQ 5, which is not supported")
        brokers = [self._broker(data, address) for data in part(body, "brokerDatas", list, address)]
        queues = tuple(
            QueueData(
                part(data, "brokerName", str, address),
                part(data, "readQueueNums", int, address),
                part(data, "writeQueueNums", int, address),
                part(data, "perm", int, address),
            )
            for data in part(body, "queueDatas", list, address)
        )
        if not queues:
            raise NoRoute(f"no route of topic {topic!r} at name server {address}", address=address)
        return TopicRoute(topic, queues, {data.broker_name: data for data in brokers})

    def _broker(self, data: Any, address: str) -> BrokerData:
        if not isinstance(data, dict):
            raise BadAnswer(f"{address} sent a broker that is not an object", address=address)
        members = part(data, "brokerAddrs", dict, address)
        if not all(str(key).isdigit() and isinstance(at, str) for key, at in members.items()):
            raise BadAnswer(f"{address} sent a broker with impossible addresses: {str(members)[:80]}", address=address)
        addresses: dict[int, str] = {}
        for broker_id, at in sorted((int(key), self._addresses.of(at)) for key, at in members.items()):
            # A proxy names itself for each broker id, and answers as the master does.
            if at not in addresses.values():
                addresses[broker_id] = at
        return BrokerData(data.get("cluster") or "", part(data, "brokerName", str, address), addresses)


def topics_in(reply: Reply) -> list[str]:
    return [str(name) for name in part(body_of(reply.body, reply.address), "topicList", list, reply.address)]
