"""The NameServer service: it converts between protobuf and RouteTable, which makes the decisions.

The NameServer service also keeps the registration stream of each broker.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
from rocketsim_proto import metadata_pb2, namesrv_pb2, namesrv_pb2_grpc
from rocketsim_proto.limits import MAX_QUEUE_NUMS
from rocketsim_proto.reserved import MESSAGE_TYPE
from rocketsim_proto.versions import WIRE, too_new

from broker_service.errors import InvalidParameter, RocketSimError, TopicNotExist
from broker_service.modes import BrokerRole
from broker_service.names import SERVER_NAME, check_topic_name, is_address, is_group_name, is_server_name
from broker_service.namesrv.route_table import BrokerSet, Registration, RouteTable, TopicQueues
from broker_service.runtime import rpc_errors
from broker_service.runtime.clocks import Monotonic

logger = logging.getLogger(__name__)


class NamesrvServicer(namesrv_pb2_grpc.NameServerServicer):
    def __init__(self, table: RouteTable, clock: Monotonic) -> None:
        self._table = table
        self._clock = clock
        self._streams: list[RegistrationStream] = []

    async def RegisterBroker(
        self,
        request_iterator: AsyncIterator[namesrv_pb2.BrokerRegistration],
        context: grpc.aio.ServicerContext[namesrv_pb2.BrokerRegistration, namesrv_pb2.RegistrationReply],
    ) -> None:
        """Answers each registration with all brokers of the same name.

        The list of brokers is sent again when another broker with the same name registers a newer epoch.  When the
        stream ends, for any reason, its registrations are removed.
        """
        stream = RegistrationStream(context.peer())
        self._streams.append(stream)
        news = asyncio.create_task(self._send_news(stream, context))
        try:
            async for request in request_iterator:
                if problem := what_is_wrong(request):
                    await rpc_errors.abort(context, InvalidParameter(problem))
                async with stream.writing:
                    await context.write(self._answer(stream, request))
        finally:
            self._streams.remove(stream)
            news.cancel()
            for member in self._table.connection_lost(stream):
                logger.info("%s is gone: its connection from %s ended", member, stream.peer)

    async def _send_news(self, stream: "RegistrationStream", context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Sends the list of brokers when a newer epoch is registered, so that a replaced master stops taking writes at
        once.
        """
        while True:
            await stream.news.wait()
            stream.news.clear()
            try:
                async with stream.writing:
                    await context.write(self._reply(stream.broker_name, stream.refused))
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # the stream has ended

    def _answer(
        self, stream: "RegistrationStream", request: namesrv_pb2.BrokerRegistration
    ) -> namesrv_pb2.RegistrationReply:
        stream.broker_name = request.broker_name
        newest_epoch = self._table.newest_epoch(request.broker_name)
        refused = too_new(f"{request.broker_name} at {request.address}", "the wire", request.wire_version, WIRE)
        if refused:
            logger.warning("registration refused: %s", refused)
        elif request.unregister:
            for member in self._table.unregister(request.broker_name, stream):
                logger.info("%s unregistered", member)
        else:
            new = stream.registration_from(request)
            refused = self._table.register(new, stream, int(self._clock.monotonic() * 1000))
            if stream.is_news(new, refused):
                log_registration(new, refused)
        if self._table.newest_epoch(request.broker_name) > newest_epoch:
            for other in self._streams:
                if other is not stream and other.broker_name == request.broker_name:
                    other.news.set()
        stream.refused = refused
        return self._reply(request.broker_name, refused)

    def _reply(self, broker_name: str, refused: str) -> namesrv_pb2.RegistrationReply:
        return namesrv_pb2.RegistrationReply(
            members=[
                namesrv_pb2.BrokerMember(
                    broker_id=member.broker_id, address=member.address, epoch=member.epoch, end_offset=member.end_offset
                )
                for member in self._table.members(broker_name)
            ],
            refused=refused,
            newest_epoch=self._table.newest_epoch(broker_name),
            wire_version=WIRE,
        )

    async def TopicRoute(
        self,
        request: namesrv_pb2.TopicRouteRequest,
        context: grpc.aio.ServicerContext[namesrv_pb2.TopicRouteRequest, namesrv_pb2.TopicRouteResponse],
    ) -> namesrv_pb2.TopicRouteResponse:
        route = self._table.route(request.topic)
        if not route:
            problem = f"no live broker has the topic {request.topic!r}"
            await rpc_errors.abort(context, TopicNotExist(problem))
        live = self._table.live()
        return namesrv_pb2.TopicRouteResponse(
            queue_datas=[
                namesrv_pb2.QueueData(
                    broker_name=name,
                    read_queue_nums=queues.read_queue_nums,
                    write_queue_nums=queues.write_queue_nums,
                    perm=queues.perm,
                    message_type=queues.message_type,
                )
                for name, queues in route.items()
            ],
            broker_datas=[broker_data(name, live[name]) for name in route],
            wire_version=WIRE,
        )

    async def TopicList(
        self,
        request: namesrv_pb2.TopicListRequest,
        context: grpc.aio.ServicerContext[namesrv_pb2.TopicListRequest, namesrv_pb2.TopicListResponse],
    ) -> namesrv_pb2.TopicListResponse:
        return namesrv_pb2.TopicListResponse(topics=self._table.topics())

    async def ClusterList(
        self,
        request: namesrv_pb2.ClusterListRequest,
        context: grpc.aio.ServicerContext[namesrv_pb2.ClusterListRequest, namesrv_pb2.ClusterListResponse],
    ) -> namesrv_pb2.ClusterListResponse:
        return namesrv_pb2.ClusterListResponse(
            brokers=[broker_data(name, brokers) for name, brokers in self._table.live().items()],
            wire_version=WIRE,
        )

    async def WipeWritePerm(
        self,
        request: namesrv_pb2.WritePermRequest,
        context: grpc.aio.ServicerContext[namesrv_pb2.WritePermRequest, namesrv_pb2.WritePermResponse],
    ) -> namesrv_pb2.WritePermResponse:
        count = self._table.wipe_write_perm(request.broker_name)
        logger.info("%s wiped the write permission of %s: %d topics", context.peer(), request.broker_name, count)
        return namesrv_pb2.WritePermResponse(topic_count=count)

    async def AddWritePerm(
        self,
        request: namesrv_pb2.WritePermRequest,
        context: grpc.aio.ServicerContext[namesrv_pb2.WritePermRequest, namesrv_pb2.WritePermResponse],
    ) -> namesrv_pb2.WritePermResponse:
        count = self._table.add_write_perm(request.broker_name)
        logger.info("%s gave %s its write permission back: %d topics", context.peer(), request.broker_name, count)
        return namesrv_pb2.WritePermResponse(topic_count=count)


class RegistrationStream:
    """The stream of one broker, which is also the broker's connection in the route table.

    The object keeps what the broker's last message has said.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.broker_name = ""  # the name in the broker's last registration
        self.refused = ""  # the refusal of the broker's last registration
        self.news = asyncio.Event()
        self.writing = asyncio.Lock()
        self._topics_version: tuple[int, int, int] | None = None
        self._topics: dict[str, TopicQueues] = {}
        self._last_logged: tuple[object, ...] = ()

    def registration_from(self, request: namesrv_pb2.BrokerRegistration) -> Registration:
        version = request.topics_version
        topics_version = (version.timestamp, version.counter, version.state_version)
        # topics of the same version are the same as in the last message
        if topics_version != self._topics_version:
            self._topics, wrong = {}, []
            for topic in request.topics:
                if problem := what_is_wrong_with(topic):
                    wrong.append(problem)
                    continue
                self._topics[topic.topic_name] = TopicQueues(
                    topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.attributes.get(MESSAGE_TYPE, "")
                )
            self._topics_version = topics_version
            if wrong:
                logger.warning(
                    "%s has %d topics that no client can use, and that get no route: %s",
                    request.broker_name,
                    len(wrong),
                    wrong[0],
                )
        return Registration(
            cluster_name=request.cluster_name,
            broker_name=request.broker_name,
            broker_id=request.broker_id,
            address=request.address,
            epoch=request.epoch,
            end_offset=request.end_offset,
            topics=self._topics,
            broker_permission=request.broker_permission,
            writable=request.writable,
            v2_address=request.v2_address,
            broker_role=request.broker_role,
            wire_version=request.wire_version,
            remoting_address=request.remoting_address,
            groups=frozenset(name for name in request.groups if is_group_name(name)),
            follows_rocketmq=request.follows_rocketmq,
        )

    def is_news(self, new: Registration, refused: str) -> bool:
        """Returns True if the registration must be logged.

        A broker registers every 30 s; a registration is logged only if something other than the end offset has changed.
        """
        address = new.address, new.v2_address, new.remoting_address
        role = new.broker_role, new.epoch, new.writable
        facts = (new.broker_name, new.broker_id, address, role, len(new.topics), refused)
        changed, self._last_logged = facts != self._last_logged, facts
        return changed


def log_registration(new: Registration, refused: str) -> None:
    if refused:
        logger.warning("registration refused: %s", refused)
        return
    logger.info(
        "%s id %d at %s registered: %sepoch %d, %d topics%s",
        new.broker_name,
        new.broker_id,
        new.address,
        f"{new.broker_role}, " if new.broker_role else "",
        new.epoch,
        len(new.topics),
        "" if new.writable or new.broker_id else ", takes no writes yet",
    )


def what_is_wrong(request: namesrv_pb2.BrokerRegistration) -> str:
    """Returns why a registration cannot be taken, or "".

    Accepts only the names and addresses that a broker's configuration accepts, because they go into the log and into
    the answers to everybody who asks.
    """
    if not request.broker_name:
        return "a registration without broker_name"
    if not is_server_name(request.broker_name):
        return f"a registration with broker_name {request.broker_name[:200]!a}: {SERVER_NAME} are allowed"
    if request.unregister:
        return ""
    if request.cluster_name and not is_server_name(request.cluster_name):
        return f"{request.broker_name} registers with cluster {request.cluster_name[:200]!a}: {SERVER_NAME} are allowed"
    for address in (request.address, *filter(None, (request.v2_address, request.remoting_address))):
        if not is_address(address):
            return f"{request.broker_name} registers with address {address[:300]!a}, which is not host:port"
    if request.broker_role and request.broker_role not in BrokerRole.__members__:
        return f"{request.broker_name} registers with broker_role {request.broker_role[:200]!a}"
    if request.broker_id < 0 or request.epoch < 0:
        return f"{request.broker_name} registers with broker id {request.broker_id} and epoch {request.epoch}"
    return ""


def what_is_wrong_with(topic: metadata_pb2.TopicConfig) -> str:
    try:
        check_topic_name(topic.topic_name)
    except RocketSimError as error:
        return str(error)
    for queue_nums in (topic.read_queue_nums, topic.write_queue_nums):
        if not 0 <= queue_nums <= MAX_QUEUE_NUMS:
            return f"topic {topic.topic_name} has {queue_nums} queues; 0 to {MAX_QUEUE_NUMS}"
    return ""


def broker_data(name: str, brokers: BrokerSet) -> namesrv_pb2.BrokerData:
    return namesrv_pb2.BrokerData(
        cluster_name=brokers.cluster_name,
        broker_name=name,
        broker_addrs={broker_id: member.registration.address for broker_id, member in brokers.members.items()},
        epoch=brokers.newest_epoch,
        v2_address=brokers.v2_address,
        broker_roles={
            broker_id: role
            for broker_id, member in brokers.members.items()
            if (role := member.registration.broker_role)
        },
        wire_version=max((member.registration.wire_version for member in brokers.members.values()), default=0),
    )
