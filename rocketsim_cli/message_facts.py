"""Turns a message into a JSON object, with the same field names in all commands that print messages."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketsim_client import MessageView


def message_facts(message: "MessageView") -> dict[str, object]:
    from rocketsim_client import ReceivedMessage

    popped = {"deliveryAttempt": message.delivery_attempt} if isinstance(message, ReceivedMessage) else {}
    return {
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "tags": message.tags,
        "keys": message.keys,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_timestamp,
        "bornHost": "{}:{}".format(*message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": "{}:{}".format(*message.store_host),
        "properties": dict(message.properties),
        "body": message_text(message),
        **popped,
    }


def message_text(message: "MessageView") -> str:
    """Returns the body as text for a terminal.  Bytes that are not UTF-8 become \\xNN."""
    return message.body.decode(errors="backslashreplace")
