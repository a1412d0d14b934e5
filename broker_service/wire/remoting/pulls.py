"""PullAnswers: answers pulls of the remoting protocol, including long polls."""

from collections.abc import Sequence

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from broker_service.broker.core.broker import Broker
from broker_service.broker.reads.pull import Pull, Pulled, PullPath
from broker_service.errors import NoPermission
from broker_service.runtime.remoting.calls import Answer, Handlers, HandlersAtOnce, Outcome, Request
from broker_service.wire.remoting.members import Members
from broker_service.wire.remoting.resets import Resets

MAX_HOLD_S = 60.0
MAX_ANSWER_BYTES = 4 << 20

# The bits of the request field `sysFlag`.
_COMMITS, _HOLDS, _HAS_SUBSCRIPTION = 1, 2, 4
_PULLS = RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE


class PullAnswers:
    """Answers pulls.  A push consumer's pull names no subscription, so `members` supplies the subscription of the
    consumer's last heartbeat.
    """

    def __init__(self, broker: Broker, pulls: PullPath, members: Members, resets: Resets) -> None:
        self._broker = broker
        self._pulls = pulls
        self._members = members
        self._resets = resets

    def handlers(self) -> Handlers:
        return dict.fromkeys(_PULLS, self.pull)

    def handlers_at_once(self) -> HandlersAtOnce:
        return dict.fromkeys(_PULLS, self.pull_at_once)

    def pull_at_once(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        """Answers the pulls that need not wait for messages or for the disk."""
        return [self._outcome(request) for request in requests]

    def _outcome(self, request: Request) -> Outcome:
        try:
            asked = self._asked(request)
            if isinstance(asked, Answer):
                return asked
            pulled = self._pulls.pull_at_once(asked)
        except Exception as error:
            return error
        return None if pulled is None else _answer(pulled)

    async def pull(self, request: Request) -> Answer:
        asked = self._asked(request)
        return asked if isinstance(asked, Answer) else _answer(await self._pulls.pull(asked))

    def _asked(self, request: Request) -> Pull | Answer:
        """Returns what a request asks for, or the answer if there is nothing to pull."""
        flags = request.number("sysFlag", 0)
        group, topic = request.text("consumerGroup"), request.text("topic")
        expression, expression_type = request.text("subscription", "*"), request.text("expressionType", "TAG")
        if not flags & _HAS_SUBSCRIPTION:
            subscribed = self._members.subscription(group, topic)
            if subscribed is None:
                remark = f"the consumer's subscription not exist: no member of group {group} subscribes to {topic}"
                return Answer(code=ResponseCode.SUBSCRIPTION_NOT_EXIST, remark=remark)
            expression, expression_type = subscribed
            if (group, topic) in self._broker.offsets.kept:
                raise NoPermission(
                    f"group {group} pops topic {topic}, so the broker shares its messages among consumers, and push "
                    "consumers of RocketMQ 4 would get them again; give these consumers a group of their own"
                )
        if not flags & _HOLDS and self._broker.lacks_retry_topic(topic):
            nothing = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
            return Answer(fields=nothing, code=ResponseCode.PULL_NOT_FOUND)
        queue_id, queue_offset = request.number("queueId", bits=32), request.number("queueOffset")
        if not self._resets.is_reached(group, topic, queue_id, queue_offset):
            flags &= ~_COMMITS
        return Pull(
            group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            max_msg_nums=request.number("maxMsgNums", bits=32),
            max_msg_bytes=MAX_ANSWER_BYTES,
            sub_expression=expression or "*",
            expression_type=expression_type or "TAG",
            suspend_s=min(request.number("suspendTimeoutMillis", 0) / 1000, MAX_HOLD_S) if flags & _HOLDS else 0.0,
            commit_offset=request.number("commitOffset") if flags & _COMMITS else None,
        )


def _answer(pulled: Pulled) -> Answer:
    fields = {
        "suggestWhichBrokerId": str(pulled.suggested_broker_id),
        "nextBeginOffset": str(pulled.next_begin_offset),
        "minOffset": str(pulled.min_offset),
        "maxOffset": str(pulled.max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    return Answer(bytes(pulled.records), fields, int(pulled.code), pulled.status.name)
