"""Routing: the queues of a topic on all brokers: own ones from the topic table, others' from a name server."""

import asyncio
import logging

import grpc
from rocketsim_proto import namesrv_pb2, namesrv_pb2_grpc

from broker_service.broker.core.broker import Broker
from broker_service.peer_call import PeerLost
from broker_service.server import OpenChannel
from broker_service.v2.route import Queues

logger = logging.getLogger(__name__)

ASK_WITHIN_S = 1.0


class Routing:
    def __init__(self, broker: Broker, open_channel: OpenChannel) -> None:
        self._broker = broker
        self._open_channel = open_channel
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._last_good = ""

    async def queues_of(self, topic: str, own_address: str) -> list[Queues]:
        """The queues of each broker name that has the topic and a master that takes these clients' calls.  Empty: none.

        If no name server answers, own queues are the answer; raises PeerLost if there are none.
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
            logger.warning("the route of %s has only this broker's own queues: %s", topic, error)
            return own
        return own + self._others(route)

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
        """The first answer of a name server; the one that answered last is asked first."""
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
                # The next one has the certificates of then, and connects at once; calls on this one end in time.
                del self._channels[address]
                await channel.close(ASK_WITHIN_S)
            raise
        if route is None:
            raise PeerLost(f"the answer of {address} is no route; is it a name server?")
        return route

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
