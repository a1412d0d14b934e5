"""PullAnswers: pulls over the remoting protocol, also those that wait for a message."""

from rocketsim_proto.remoting.codes import RequestCode

from broker_service.broker.reads.pull import Pull, PullPath
from broker_service.runtime.remoting.calls import Answer, Handlers, Request

MAX_HOLD_S = 60.0
MAX_ANSWER_BYTES = 4 << 20

# Bits of `sysFlag`.
_COMMITS, _HOLDS = 1, 2


class PullAnswers:
    def __init__(self, pulls: PullPath) -> None:
        self._pulls = pulls

    def handlers(self) -> Handlers:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    async def pull(self, request: Request) -> Answer:
        flags = request.number("sysFlag", 0)
        pulled = await self._pulls.pull(
            Pull(
                group=request.text("consumerGroup"),
                topic=request.text("topic"),
                queue_id=request.number("queueId"),
                queue_offset=request.number("queueOffset"),
                max_msg_nums=request.number("maxMsgNums"),
                max_msg_bytes=MAX_ANSWER_BYTES,
                sub_expression=request.text("subscription", "*") or "*",
                expression_type=request.text("expressionType", "TAG") or "TAG",
                suspend_s=min(request.number("suspendTimeoutMillis", 0) / 1000, MAX_HOLD_S) if flags & _HOLDS else 0.0,
                commit_offset=request.number("commitOffset") if flags & _COMMITS else None,
            )
        )
        fields = {
            "suggestWhichBrokerId": str(pulled.suggested_broker_id),
            "nextBeginOffset": str(pulled.next_begin_offset),
            "minOffset": str(pulled.min_offset),
            "maxOffset": str(pulled.max_offset),
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        return Answer(bytes(pulled.records), fields, int(pulled.code), pulled.status.name)
