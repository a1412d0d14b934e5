"""ConsumerQuestions: passes questions of RocketMQ's tools on to a connected consumer, and returns its answer.

mqadmin and the dashboard ask a broker for the state of a running consumer, or let one consumer consume a message again.
The broker asks the consumer over the connection on which the consumer's last heartbeat came.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import FrameError, text

from broker_service.access.remoting import request_topic_check
from broker_service.access.rights import SUB, CheckTopic
from broker_service.broker.core.broker import Broker
from broker_service.errors import MessageIllegal, SystemBusy
from broker_service.runtime.remoting.calls import Answer, Handlers, Reply, Request, Unanswered
from broker_service.wire.remoting.members import Member, Members, own_id

ANSWER_WITHIN_S = 10.0  # as in RocketMQ
# Limits the memory of messages that travel with questions.  A question without an answer ends after ANSWER_WITHIN_S.
MAX_AT_ONCE = 64
FIRST_VERSION = 62  # V3_1_8_SNAPSHOT of RocketMQ's MQVersion; clients before it do not know these questions
MAX_NAMED = 5  # most clients that a refusal names


class Messages(Protocol):
    async def message_by_id(self, topic: str, message_id: str, check: CheckTopic) -> Sequence[bytes]:
        """Returns the records with this id.  Raises NotFound, or what `check` raises for the topic of the record."""


class ConsumerQuestions:
    def __init__(self, broker: Broker, members: Members, messages: Messages) -> None:
        self._broker = broker
        self._members = members
        self._messages = messages
        self._open = 0  # questions that wait for their answers

    def handlers(self) -> Handlers:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    async def running_info(self, request: Request) -> Answer:
        """Answers with the consumer's settings, subscriptions and queues, and with `jstackEnable` its threads."""
        found = self._find(request)
        if isinstance(found, Answer):
            return found
        return await self._ask(found, request, {"jstackEnable": text(request.boolean("jstackEnable"))})

    async def consume_directly(self, request: Request) -> Answer:
        """Lets the consumer consume a message that this broker has, and answers with the outcome.

        No offset changes, and the message is neither given back nor delivered again if the consumer fails.
        """
        found = self._find(request)
        if isinstance(found, Answer):
            return found
        topic, message_id = request.text("topic", ""), request.text("msgId")
        record = (await self._messages.message_by_id(topic, message_id, request_topic_check(request, *SUB)))[0]
        fields = {"msgId": message_id, "brokerName": self._broker.config.broker_name}
        if topic:
            fields["topic"] = topic
        if (known := self._broker.topics.get(topic)) is not None:
            fields["topicSysFlag"] = str(known.topic_sys_flag)
        if (group := self._broker.groups.entries.get(request.text("consumerGroup"))) is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        return await self._ask(found, request, fields, record)

    def _find(self, request: Request) -> Member | Answer:
        group, client_id = request.text("consumerGroup"), request.text("clientId")
        seen = self._broker.consumers.of(group, self._broker.clock())
        others = {one.client_id for one in seen if one.way != "heartbeat"}
        return chosen(group, client_id, self._members.consumers(group), others)

    async def _ask(self, member: Member, request: Request, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        if self._open >= MAX_AT_ONCE:
            raise SystemBusy(f"{self._open} questions to consumers wait for answers already; ask again later")
        group, client_id = request.text("consumerGroup"), request.text("clientId")
        # The signature of the request stays here.
        fields = {"consumerGroup": group, "clientId": own_id(client_id, member), **fields}
        self._open += 1
        try:
            found = await member.connection.ask(request.header.code, fields, body, ANSWER_WITHIN_S)
        except FrameError as error:
            raise MessageIllegal(f"the message is too long for RocketMQ's remoting protocol: {error}") from error
        finally:
            self._open -= 1
        if isinstance(found, Reply):
            return Answer(found.body, found.header.fields, found.header.code, found.header.remark)
        return unanswered(found, f"consumer <{group}> <{client_id}>", consumes=bool(body))


def chosen(group: str, client_id: str, members: Mapping[str, Member], others: Collection[str]) -> Member | Answer:
    """Returns the consumer to ask, or the refusal if this client cannot be asked.

    `members` has the group's clients that speak the remoting protocol, `others` the ids of those that do not.
    """
    member = members.get(client_id)
    if member is None and client_id in others:
        return Answer(
            code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"consumer <{group}> <{client_id}> uses RocketSim's protocol or that of RocketMQ 5, and only "
            "consumers of the remoting protocol can be asked; `rocketsim admin consumerConnection` and "
            "`consumerProgress` show this group, and `mqadmin queryMsgById -s true` sends a message again",
        )
    if member is None:
        named = ", ".join(sorted(members)[:MAX_NAMED]) + (", …" if len(members) > MAX_NAMED else "")
        online = f"its clients are {named}" if members else "no client of the group is connected to this broker"
        remark = f"The Consumer <{group}> <{client_id}> not online; {online}"
        return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
    if member.version < FIRST_VERSION:
        remark = f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it to 3.1.8"
        return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
    return member


def unanswered(why: Unanswered, consumer: str, *, consumes: bool) -> Answer:
    """Returns the refusal for a question that the consumer has not answered.  `consumes` says that the consumer was
    asked to consume a message.
    """
    if why is Unanswered.BUSY:
        remark = f"{consumer} still has to read or answer earlier requests of the broker; ask again later"
        return Answer(code=ResponseCode.SYSTEM_BUSY, remark=remark)
    rest = "; it may have consumed the message" if consumes else ""
    if why is Unanswered.GONE:
        return Answer(
            code=ResponseCode.SYSTEM_ERROR, remark=f"{consumer} ended its connection before it answered{rest}"
        )
    remark = f"{consumer} Timeout: no answer within {ANSWER_WITHIN_S:g} s{rest}"
    return Answer(code=ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
