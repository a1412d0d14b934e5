"""Members: keeps the clients that send heartbeats over the remoting protocol, with their groups and subscriptions.

A client is a member until it unregisters, its connection ends, or it has sent no heartbeat for EXPIRES_S.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocketsim_proto.records.record import PROPERTY_PRODUCER_GROUP, encode, offset_message_id
from rocketsim_proto.remoting.codes import VERSION, RequestCode, ResponseCode
from rocketsim_proto.reserved import RETRY_PREFIX

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.consumers import Seen
from broker_service.broker.core.mastership import Standing
from broker_service.broker.reads.commits import Commits
from broker_service.broker.reads.push_subscriptions import Subscription
from broker_service.broker.reads.read_checks import ReadChecks
from broker_service.errors import InvalidParameter, RocketSimError, SystemBusy
from broker_service.names import check_group_name
from broker_service.runtime.remoting.bodies import from_json, to_json
from broker_service.runtime.remoting.calls import Answer, Handlers, Peer, Request
from broker_service.state import half_messages
from broker_service.transactions.producers import remoting_client_id
from broker_service.transactions.transactions import Check

logger = logging.getLogger(__name__)

EXPIRES_S = 120.0  # a client without a heartbeat expires after this time, as in RocketMQ; heartbeats come every 30 s
MAX_CLIENTS = 20_000
MAX_GROUPS_OF_ONE = 100
MAX_HEARTBEAT_BYTES = 256 << 10
# The heartbeats of all members together, which are kept; those of 20,000 clients with a few topics each fit into it.
MAX_KEPT_BYTES = 64 << 20
MAX_PRODUCER_GROUP_LENGTH = 255  # RocketMQ's clients allow 255 characters, and producers' groups are not created here


@dataclass(slots=True)
class Member:
    """A connected client.  `consumers` has the groups with which the client consumes, each with the group's part of the
    client's last heartbeat, whose body has `size_bytes`.  If a heartbeat of this client id has come over another open
    connection, `other_address` is the client's address there.
    """

    connection: Peer
    user: str
    language: str
    version: int
    heartbeat_s: float
    consumers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    producers: frozenset[str] = frozenset()
    other_address: str = ""
    size_bytes: int = 0


class Members:
    """Keeps the members of each group, and notifies them whenever one joins or leaves.

    After the notice, the group's push consumers divide the queues among themselves again.  `clock` returns monotonic
    seconds.
    """

    def __init__(self, broker: Broker, commits: Commits, checks: ReadChecks, clock: Callable[[], float]) -> None:
        self._broker = broker
        self._commits = commits
        self._checks = checks
        self._push = checks.push
        self._clock = clock
        self._members: dict[str, Member] = {}  # client id -> member
        self._kept_bytes = 0  # the sum of the members' `size_bytes`

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
            raise InvalidParameter(
                f"a heartbeat has {len(request.body)} bytes; at most {MAX_HEARTBEAT_BYTES} are allowed"
            )
        given = from_json(request.body)
        try:
            to_json(given)  # parts of a heartbeat are shown to tools
        except (TypeError, RecursionError) as error:
            raise InvalidParameter(f"a heartbeat cannot be written as JSON: {error}") from error
        client_id = client_of(request, str(given.get("clientID") or ""))
        consumers = {str(one.get("groupName") or ""): one for one in _objects(given, "consumerDataSet")}
        producers = frozenset(str(one.get("groupName") or "") for one in _objects(given, "producerDataSet"))
        if len(consumers) + len(producers) > MAX_GROUPS_OF_ONE:
            raise InvalidParameter(f"client {client_id} names more than {MAX_GROUPS_OF_ONE} groups")
        for group in consumers:
            check_group_name(group)
        if longest := next((name for name in producers if len(name) > MAX_PRODUCER_GROUP_LENGTH), None):
            raise InvalidParameter(f"producer group {longest[:40]!r}… is longer than {MAX_PRODUCER_GROUP_LENGTH}")
        for group, consumer in consumers.items():
            await self._make_group(group, is_push=_is_push(consumer))
        self._forget_silent()
        before = self._members.get(client_id)
        if before is None and len(self._members) >= MAX_CLIENTS:
            raise SystemBusy(f"{len(self._members)} clients are connected already; connect again later")
        more_bytes = len(request.body) - (before.size_bytes if before is not None else 0)
        if more_bytes > 0 and self._kept_bytes + more_bytes > MAX_KEPT_BYTES:
            raise SystemBusy(f"the heartbeats of {len(self._members)} clients have {self._kept_bytes} bytes already")
        header = request.header
        other_address = ""
        if before is not None:
            other_address = before.other_address
            if before.connection is not request.connection:
                if request.connection.address != other_address:
                    _warn_of_shared_id(client_id, before.connection, request.connection)
                other_address = before.connection.address
        self._members[client_id] = Member(
            request.connection,
            request.user,
            header.language,
            header.version,
            self._clock(),
            consumers,
            producers,
            other_address,
            len(request.body),
        )
        self._kept_bytes += more_bytes
        self._push.subscribe(client_id, _push_subscriptions(consumers))
        for group in consumers:
            self._broker.consumers.sent_heartbeat(group, client_id, self._clock())
        if self._forget_silent not in request.connection.gone:
            request.connection.gone.append(self._forget_silent)
        joined = consumers.keys() - (before.consumers.keys() if before is not None else ())
        left = (before.consumers.keys() if before is not None else set[str]()) - consumers.keys()
        self._warn_of_users_with_one_id(client_id, joined)
        self._notify_members(joined | left)
        return Answer(fields={"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "false"})

    def _warn_of_users_with_one_id(self, client_id: str, groups: Iterable[str]) -> None:
        """Warns if another user's client has the same id and consumes with one of these groups, because the list of
        members then has both as one.
        """
        member = self._members[client_id]
        for group in groups:
            for other_id, other in self.consumers(group).items():
                if other_id != client_id and own_id(other_id, other) == own_id(client_id, member):
                    logger.warning(
                        "clients of users %s and %s at %s and %s have one id, %.255r, in group %.120s. Each message "
                        "of their queues is consumed twice: give each consumer an id of its own (setInstanceName)",
                        *(other.user, member.user, other.connection.address, member.connection.address),
                        own_id(client_id, member),
                        group,
                    )

    def subscription(self, group: str, topic: str) -> tuple[str, str] | None:
        """Returns expression and type of a group's subscription to a topic, from the newest heartbeat that has one;
        else None.
        """
        for one in sorted(self.consumers(group).values(), key=lambda one: -one.heartbeat_s):
            for subscription in _objects(one.consumers[group], "subscriptionDataSet"):
                if subscription.get("topic") == topic:
                    return _expression(subscription)
        return None

    def _notify_members(self, groups: Iterable[str]) -> None:
        for group in groups:
            for one in self.consumers(group).values():
                one.connection.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    async def _make_group(self, group: str, *, is_push: bool) -> None:
        """Creates the group that a heartbeat names, and the retry topic from which the group's push consumers read.

        A group that may not be created gets no retry topic either.  If the creation fails, the error is only logged,
        because the consumer's next pull fails for the same reason.
        """
        try:
            await self._commits.make_group(group)
            self._commits.group(group)
            if is_push and self._broker.mastership.standing is Standing.WRITABLE:
                await self._broker.topics.make_of_one_queue(push_retry_topic(group), self._broker.now_ms())
        except RocketSimError as error:
            logger.info("group %.120s of a heartbeat could not be created: %s", group, error)

    async def unregister(self, request: Request) -> Answer:
        client_id = client_of(request, request.text("clientID"))
        member = self._members.get(client_id)
        if member is not None:
            group = request.text("consumerGroup", "")
            has_left = member.consumers.pop(group, None) is not None
            self._broker.consumers.left(group, client_id)
            self._push.subscribe(client_id, _push_subscriptions(member.consumers))
            member.producers -= {request.text("producerGroup", "")}
            if not member.consumers and not member.producers:
                self._kept_bytes -= self._members.pop(client_id).size_bytes
            self._notify_members([group] if has_left else ())
        return Answer()

    async def check_config(self, request: Request) -> Answer:
        """Checks the subscription with which a consumer is about to start.  Raises the errors that the consumer's pulls
        would raise.
        """
        subscription = from_json(request.body).get("subscriptionData")
        if isinstance(subscription, Mapping):
            await self._checks.selection(*_expression(subscription))
        return Answer()

    async def consumer_list(self, request: Request) -> Answer:
        """Lists the group's members by the ids that they have given themselves, because each member looks for its own
        id in the list to find out which queues are its share.
        """
        members = self.consumers(request.text("consumerGroup"))
        ids = {own_id(client_id, member) for client_id, member in members.items()}
        return Answer(to_json({"consumerIdList": sorted(ids)}))

    async def consumer_connections(self, request: Request) -> Answer:
        group = request.text("consumerGroup")
        members = self.consumers(group)
        if not members and (others := self._broker.consumers.of(group, self._clock())):
            return Answer(to_json(_of_other_protocols(others)))
        if not members:
            return Answer(code=ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{group}] not online")
        newest = max(members.values(), key=lambda one: one.heartbeat_s).consumers[group]
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

    async def ask(self, check: Check) -> bool:
        """Asks a producer how a transaction ends.  Only producers with the half message's producer group and user are
        asked, in turns.

        A producer of another user is not asked, because it may not read the message.  Returns False if no producer of
        this group and user is connected, or if the chosen producer does not read its connection.
        """
        half, group = check.half, check.half.properties.get(PROPERTY_PRODUCER_GROUP, "")
        self._forget_silent()
        wanted = check.client_id or remoting_client_id("", group)
        members = (one for one in self._members.values() if group in one.producers)
        producers = [one for one in members if remoting_client_id(one.user, group) == wanted]
        if not producers:
            return False
        fields = {
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.commit_log_offset),
            "msgId": half.message_id,
            "transactionId": half.message_id,
            "offsetMsgId": offset_message_id(half.store_host, half.commit_log_offset),
            "topic": check.transaction.topic,
            "bname": self._broker.config.broker_name,
        }
        body = encode(half_messages.committed_copy(half, check.queue_id))
        connection = producers[check.times % len(producers)].connection
        return connection.notify(RequestCode.CHECK_TRANSACTION_STATE, fields, body)

    def consumers(self, group: str) -> dict[str, Member]:
        """Returns the members that consume with a group, by client id."""
        self._forget_silent()
        return {client_id: one for client_id, one in self._members.items() if group in one.consumers}

    def _forget_silent(self) -> None:
        now_s = self._clock()
        gone = [
            client_id
            for client_id, one in self._members.items()
            if not one.connection.is_open or now_s - one.heartbeat_s > EXPIRES_S
        ]
        left: set[str] = set()
        for client_id in gone:
            member = self._members.pop(client_id)
            self._kept_bytes -= member.size_bytes
            groups = member.consumers.keys()
            for group in groups:
                self._broker.consumers.left(group, client_id)
            left |= groups
            self._push.subscribe(client_id, ())
        self._notify_members(left)


def _warn_of_shared_id(client_id: str, earlier: Peer, later: Peer) -> None:
    logger.warning(
        "the heartbeat of client %.255r from %s takes the place of the one from %s, whose connection is still open. If "
        "these are two consumers, each message of their queues is consumed twice: give each consumer an id of "
        "its own (setInstanceName). If the client has only connected again, there is nothing to do",
        client_id,
        later.address,
        earlier.address,
    )


def _is_push(consumer: Mapping[str, Any]) -> bool:
    return consumer.get("consumeType") == "CONSUME_PASSIVELY"


def _push_subscriptions(consumers: Mapping[str, Mapping[str, Any]]) -> set[Subscription]:
    """Returns (group, topic) of each subscription whose queues the group's push consumers divide among themselves.  A
    broadcast consumer is left out, because it reads all queues.
    """
    return {
        (group, str(subscription.get("topic")))
        for group, consumer in consumers.items()
        if _is_push(consumer) and consumer.get("messageModel") != "BROADCASTING"
        for subscription in _objects(consumer, "subscriptionDataSet")
    }


def _expression(subscription: Mapping[str, Any]) -> tuple[str, str]:
    """Returns a subscription's expression and its type, which is TAG or SQL92."""
    return str(subscription.get("subString") or "*"), str(subscription.get("expressionType") or "TAG")


def push_retry_topic(group: str) -> str:
    """Returns the topic for messages that the group's push consumers have given back."""
    return f"{RETRY_PREFIX}{group}"


def client_of(request: Request, client_id: str) -> str:
    """Returns the client's id, prefixed with its user, so that clients of different users never share an id."""
    if not client_id or len(client_id) > 255:
        raise InvalidParameter(f"clientID {client_id[:60]!r} must have 1 to 255 characters")
    return f"{request.user}/{client_id}" if request.user else client_id


def own_id(client_id: str, member: Member) -> str:
    """Returns the id that the client has given itself, without the user's name that `client_of` has put before it."""
    return client_id.removeprefix(f"{member.user}/") if member.user else client_id


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


def _of_other_protocols(seen: Sequence[Seen]) -> dict[str, Any]:
    """Returns the connections of a group whose consumers use RocketSim's or RocketMQ 5's protocol, as RocketMQ's tools
    read them.  These consumers share the messages, and tell no subscriptions here.
    """
    return {
        "connectionSet": [
            {"clientAddr": "", "clientId": one.client_id, "language": "OTHER", "version": VERSION} for one in seen
        ],
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {},
    }


def _objects(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    listed = found.get(name)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
