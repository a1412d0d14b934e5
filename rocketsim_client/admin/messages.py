"""Commands for single messages."""

import time
from functools import partial
from typing import Any

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError

from rocketsim_client.admin.commands import Commands
from rocketsim_client.errors import BadAnswer, InvalidParameter, NotFound, RocketSimError
from rocketsim_client.message_view import FoundMessages, Messages, MessageView
from rocketsim_client.model import MessageQueue

MAX_QUERY_MESSAGES = 64


class MessageCommands(Commands):
    def query_msg_by_id(self, topic: str, msg_id: str) -> MessageView:
        """Finds one message by the id that its producer made, or by its offset message id."""
        request = pb.QueryMsgByIdRequest(topic=topic, message_id=msg_id)
        failure: RocketSimError | None = None
        for name in self._names_of(topic):
            try:
                found = self._call_name(name, request, partial(_messages, name))
            except NotFound:
                continue
            except RocketSimError as error:
                failure = error  # another broker may have the message
                continue
            if found:
                return found[0]
        raise failure or NotFound(f"no broker has message {msg_id!r} of topic {topic!r}")

    def query_msg_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = 32,
        begin_timestamp: int = 0,
        end_timestamp: int | None = None,
    ) -> FoundMessages:
        """Returns the newest messages with the key, newest first and at most 64, from all brokers of the topic.  Only
        messages that were stored from `begin_timestamp` to `end_timestamp` (ms; None: now) are searched.  If the
        result's `more` is True, older messages may exist."""
        if not 0 < max_num <= MAX_QUERY_MESSAGES:
            raise InvalidParameter(f"max_num {max_num}: it must be 1 to {MAX_QUERY_MESSAGES}")
        until = time.monotonic() + self._timeout_s
        found: list[MessageView] = []
        more = False
        for name in self._names_of(topic):
            here: list[MessageView] = []
            before: int | None = None
            while True:
                request = pb.QueryMsgByKeyRequest(
                    topic=topic,
                    key=key,
                    max_num=max_num - len(here),
                    begin_timestamp=begin_timestamp,
                    end_timestamp=end_timestamp,
                    before=before,
                )
                messages, before = self._call_name(name, request, partial(_page, name))
                here += messages
                if before is None or len(here) == max_num or time.monotonic() > until:
                    break
            found += here
            more |= before is not None
        found.sort(key=lambda message: -message.store_timestamp)
        return FoundMessages(found[:max_num], more=more or len(found) > max_num)

    def query_msg_by_offset(self, queue: MessageQueue, offset: int) -> MessageView:
        """Returns the message at that offset.  Raises NotFound if the queue has no message at this offset."""
        request = pb.QueryMsgByOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        found = self._call_name(queue.broker_name, request, partial(_messages, queue.broker_name))
        if not found:
            raise NotFound(f"{queue} has no message at offset {offset}")
        return found[0]


def _page(broker_name: str, answer: Any) -> tuple[Messages, int | None]:
    """Returns messages, newest first, and the `before` of the next request for older messages, which is None if no
    older messages exist."""
    return _messages(broker_name, answer), answer.more_before if answer.HasField("more_before") else None


def _messages(broker_name: str, answer: Any) -> Messages:
    try:
        records = Records.walk(answer.records, answer.count)
        records.check()
    except RecordError as error:
        raise BadAnswer(f"broker {broker_name!r} sent damaged records: {error}") from error
    return Messages(records, answer.records, broker_name)
