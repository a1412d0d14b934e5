"""Members: the clients that send heartbeats over the remoting protocol, their groups and what these subscribe to.

A client is known for EXPIRES_S after its last heartbeat, or until it says that it goes or its connection ends.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.reserved import RETRY_PREFIX

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.reads.commits import Commits
from broker_service.errors import InvalidParameter, RocketSimError, SystemBusy
from broker_service.runtime.remoting.bodies import from_json, to_json
from broker_service.runtime.remoting.calls import Answer, Handlers, Peer, Request

logger = logging.getLogger(__name__)

EXPIRES_S = 120.0  # RocketMQ's; clients send a heartbeat every 30 s
MAX_CLIENTS = 20_000
MAX_GROUPS_OF_ONE = 100
MAX_HEARTBEAT_BYTES = 256 << 10


@dataclass(slots=True)
class Member:
    """`consumers`: what the client has said of each group that it consumes with."""

    connection: Peer
    language: str
    version: int
    heard_s: float
    consumers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    producers: frozenset[str] = frozenset()


class Members:
    """`clock`: seconds, monotonic.

    Push consumers divide the queues of a group among them by themselves; whenever a member comes or goes, the others
    are told, so that they do it again.
    """

    def __init__(self, broker: Broker, commits: Commits, clock: Callable[[], float]) -> None:
        self._broker = broker
        self._commits = commits
        self._clock = clock
        self._members: dict[str, Member] = {}  # by client id

    def handlers(self) -> Handlers:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
        }

    async def heartbeat(self, request: Request) -> Answer:
        if len(request.body) > MAX_HEARTBEAT_BYTES:
            raise InvalidParameter(f"a heartbeat of {len(request.body)} bytes; {MAX_HEARTBEAT_BYTES} at most")
        given = from_json(request.body)
        client_id = client_of(request, str(given.get("clientID") or ""))
        consumers = {str(one.get("groupName") or ""): one for one in _objects(given, "consumerDataSet")}
        producers = frozenset(str(one.get("groupName") or "") for one in _objects(given, "producerDataSet"))
        if len(consumers) + len(producers) > MAX_GROUPS_OF_ONE:
            raise InvalidParameter(f"client {client_id} names more than {MAX_GROUPS_OF_ONE} groups")
        for group, consumer in consumers.items():
            await self._make_group(group, is_push=consumer.get("consumeType") == "CONSUME_PASSIVELY")
        self._forget_silent()
        if client_id not in self._members and len(self._members) >= MAX_CLIENTS:
            raise SystemBusy(f"{len(self._members)} clients are connected already")
        header = request.header
        before = self._members.get(client_id)
        self._members[client_id] = Member(
            request.connection, header.language, header.version, self._clock(), consumers, producers
        )
        if self._forget_silent not in request.connection.gone:
            request.connection.gone.append(self._forget_silent)
        joined = consumers.keys() - (before.consumers.keys() if before is not None else ())
        left = (before.consumers.keys() if before is not None else set[str]()) - consumers.keys()
        self._tell_members(joined | left)
        return Answer(fields={"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "false"})

    def subscription(self, group: str, topic: str) -> tuple[str, str] | None:
        """The expression, and its type, by which the group's members have subscribed to the topic; the newest one."""
        for one in sorted(self.consumers(group).values(), key=lambda one: -one.heard_s):
            for subscription in _objects(one.consumers[group], "subscriptionDataSet"):
                if subscription.get("topic") == topic:
                    return str(subscription.get("subString") or "*"), str(subscription.get("expressionType") or "TAG")
        return None

    def tell_of_reset(self, group: str, topic: str, timestamp: int, body: bytes) -> None:
        """Tells the members of the group where they go on; `body` has the offset of each queue."""
        fields = {"topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "true"}
        for one in self.consumers(group).values():
            one.connection.notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)

    def _tell_members(self, groups: Iterable[str]) -> None:
        for group in groups:
            for one in self.consumers(group).values():
                one.connection.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    async def _make_group(self, group: str, *, is_push: bool) -> None:
        """A heartbeat makes the group, as a pull does, and the retry topic that push consumers read, too; where it may
        not, the pull says why."""
        try:
            await self._commits.make_group(group)
            if is_push and self._broker.mastership.standing is Standing.WRITABLE:
                await self._broker.topics.make_of_one_queue(push_retry_topic(group), self._broker.now_ms())
        except RocketSimError as error:
            logger.info("a heartbeat does not make group %.120s: %s", group, error)

    async def unregister(self, request: Request) -> Answer:
        client_id = client_of(request, request.text("clientID"))
        member = self._members.get(client_id)
        if member is not None:
            group = request.text("consumerGroup", "")
            has_left = member.consumers.pop(group, None) is not None
            member.producers -= {request.text("producerGroup", "")}
            if not member.consumers and not member.producers:
                del self._members[client_id]
            self._tell_members([group] if has_left else ())
        return Answer()

    async def check_config(self, request: Request) -> Answer:
        """A push consumer asks whether its filter is one that this broker knows; its pulls are told the same."""
        return Answer()

    async def consumer_list(self, request: Request) -> Answer:
        group = request.text("consumerGroup")
        return Answer(to_json({"consumerIdList": sorted(self.consumers(group))}))

    async def consumer_connections(self, request: Request) -> Answer:
        group = request.text("consumerGroup")
        members = self.consumers(group)
        if not members:
            return Answer(code=ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{group}] not online")
        newest = max(members.values(), key=lambda one: one.heard_s).consumers[group]
        subscriptions = {str(one.get("topic")): one for one in _objects(newest, "subscriptionDataSet")}
        body = {
            "connectionSet": _connections(members),
            "consumeFromWhere": newest.get("consumeFromWhere"),
            "consumeType": newest.get("consumeType"),
            "messageModel": newest.get("messageModel"),
            "subscriptionTable": subscriptions,
        }
        return Answer(to_json(body))

    async def producer_connections(self, request: Request) -> Answer:
        group = request.text("producerGroup")
        self._forget_silent()
        members = {client_id: one for client_id, one in self._members.items() if group in one.producers}
        if not members:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{group}] not exist")
        return Answer(to_json({"connectionSet": _connections(members)}))

    def consumers(self, group: str) -> dict[str, Member]:
        """The members of a group, by client id."""
        self._forget_silent()
        return {client_id: one for client_id, one in self._members.items() if group in one.consumers}

    def _forget_silent(self) -> None:
        now_s = self._clock()
        gone = [
            client_id
            for client_id, one in self._members.items()
            if not one.connection.is_open or now_s - one.heard_s > EXPIRES_S
        ]
        left: set[str] = set()
        for client_id in gone:
            left |= self._members.pop(client_id).consumers.keys()
        self._tell_members(left)


def push_retry_topic(group: str) -> str:
    """The topic with the messages that push consumers of the group have given back."""
    return f"{RETRY_PREFIX}{group}"


def client_of(request: Request, client_id: str) -> str:
    """With access control clients of different users never have the same id."""
    if not client_id or len(client_id) > 255:
        raise InvalidParameter(f"clientID {client_id[:60]!r}: 1 to 255 characters")
    return f"{request.user}/{client_id}" if request.user else client_id


def _connections(members: Mapping[str, Member]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": one.connection.address,
            "clientId": client_id,
            "language": one.language,
            "version": one.version,
        }
        for client_id, one in sorted(members.items())
    ]


def _objects(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    listed = found.get(name)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
