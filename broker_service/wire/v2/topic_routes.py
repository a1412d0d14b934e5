"""TopicRoutes: finds the queues of a topic on all brokers, and passes calls on to the broker that they concern.

This broker's queues come from its own table of topics, those of other brokers from a name server.  RocketMQ 5's clients
send a recall to any broker that they know, so a broker may have to pass it on.
"""

import asyncio
import logging
from collections.abc import Iterable

import grpc
from rocketmq_v2 import service_pb2, service_pb2_grpc
from rocketsim_proto import namesrv_pb2, namesrv_pb2_grpc
from rocketsim_proto.signature import AUTHORIZATION

from broker_service.broker.core.broker import Broker
from broker_service.runtime.peer_call import PeerLost, ask
from broker_service.runtime.server import OpenChannel
from broker_service.wire.v2.route_answers import Queues

logger = logging.getLogger(__name__)

ASK_WITHIN_S = 1.0
# header of a call that another broker has passed on; such a call is not passed on again
PASSED_ON = "x-rocketsim-passed-on"


class TopicRoutes:
    """Asks name servers over `open_channel`, and other brokers' ports for RocketMQ 5 over `open_client_channel`."""

    def __init__(self, broker: Broker, open_channel: OpenChannel, open_client_channel: OpenChannel) -> None:
        self._broker = broker
        self._open_channel = open_channel
        self._open_client_channel = open_client_channel
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._last_good = ""

    async def queues_of(self, topic: str, own_address: str) -> list[Queues]:
        """Returns the topic's queues on each broker name whose master has a port for RocketMQ 5's clients.

        If no name server answers, returns this broker's own queues.  Raises PeerLost if no name server answers and this
        broker does not have the topic.
        """
        own = self._own(topic, own_address)
        names = self._broker.config.name_servers
        if not names:
            return own
        try:
            route = await self._ask(topic, names)
        except PeerLost as error:
            if not own:
                raise
            logger.warning("the route of topic %s is answered with only this broker's own queues: %s", topic, error)
            return own
        return own + self._others(route)

    async def recall(
        self,
        request: service_pb2.RecallMessageRequest,
        broker_name: str,
        headers: Iterable[tuple[str, str | bytes]],
        timeout_s: float,
    ) -> service_pb2.RecallMessageResponse | None:
        """Passes a recall on to another broker, with the client's headers, and returns that broker's answer.

        Returns None if no name server knows a master of this name that has the topic.  Raises PeerLost if no name
        server answers, or if the other broker does not answer.
        """
        if not (names := self._broker.config.name_servers):
            return None
        route = await self._ask(request.topic.name, names)
        others = {queues.broker_name: queues.address for queues in self._others(route)}
        if broker_name not in others:
            return None
        passed = [(name, value) for name, value in headers if name == AUTHORIZATION or name.startswith("x-mq-")]
        channel = self._open_client_channel(others[broker_name], ())
        try:
            stub = service_pb2_grpc.MessagingServiceStub(channel)
            call = stub.RecallMessage(request, metadata=(*passed, (PASSED_ON, "1")), timeout=timeout_s)
            return await ask(call)
        finally:
            await channel.close()

    def _own(self, topic: str, own_address: str) -> list[Queues]:
        config = self._broker.config
        found = self._broker.topics.get(topic)
        if found is None:
            return []
        return [
            Queues(
                broker_name=config.broker_name,
                address=own_address,
                read_queue_nums=found.read_queue_nums,
                write_queue_nums=found.write_queue_nums,
                perm=found.perm & config.broker_permission,
                message_type=found.message_type,
            )
        ]

    def _others(self, route: namesrv_pb2.TopicRouteResponse) -> list[Queues]:
        addresses = {broker.broker_name: broker.v2_address for broker in route.broker_datas}
        return [
            Queues(
                broker_name=queues.broker_name,
                address=addresses[queues.broker_name],
                read_queue_nums=queues.read_queue_nums,
                write_queue_nums=queues.write_queue_nums,
                perm=queues.perm,
                message_type=queues.message_type or "NORMAL",
            )
            for queues in route.queue_datas
            if queues.broker_name != self._broker.config.broker_name and addresses.get(queues.broker_name)
        ]

    async def _ask(self, topic: str, names: tuple[str, ...]) -> namesrv_pb2.TopicRouteResponse:
        """Returns the first answer of a name server.  The name server that answered last is asked first."""
        lost = ""
        for address in sorted(names, key=lambda name: name != self._last_good):
            try:
                route = await self._ask_one(topic, address)
            except grpc.aio.AioRpcError as error:
                lost = f"name server {address}: {error.code().name} {error.details()}"
                continue
            self._last_good = address
            return route
        raise PeerLost(f"no name server answers; {lost}")

    async def _ask_one(self, topic: str, address: str) -> namesrv_pb2.TopicRouteResponse:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open_channel(address, ())
        stub = namesrv_pb2_grpc.NameServerStub(channel)
        try:
            route: namesrv_pb2.TopicRouteResponse | None = await stub.TopicRoute(
                namesrv_pb2.TopicRouteRequest(topic=topic), timeout=ASK_WITHIN_S
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return namesrv_pb2.TopicRouteResponse()
            if self._channels.get(address) is channel:
                # The next call opens a new channel, which connects at once, with the current certificates.  Calls on
                # the old channel have ASK_WITHIN_S to end.
                del self._channels[address]
                await channel.close(ASK_WITHIN_S)
            raise
        if route is None:
            raise PeerLost(f"the answer of {address} is not a route; is it a name server?")
        return route

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
