"""Pure functions that make the message for a client from a stored record.

Official clients need all fields of a message.  Without a body encoding the Python client loses the batch, and without
digest or born time the C# client fails.  MD5 is the only digest that all clients compute in the same way.
"""

import hashlib
import logging
from collections.abc import Mapping

from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as pb
from rocketsim_proto.records import record
from rocketsim_proto.records.compression import CompressionError, decompress
from rocketsim_proto.records.record import Record

from broker_service.state.half_messages import PROPERTY_PREPARED
from broker_service.wire.v2.message_rules import HIDDEN_PROPERTIES
from broker_service.wire.v2.sent_message import KEY_SEPARATOR

logger = logging.getLogger(__name__)

_GZIP = b"\x1f\x8b"
_DELAYED = frozenset(
    (record.PROPERTY_DELAY, record.PROPERTY_DELIVER_MS, record.PROPERTY_DELAY_S, record.PROPERTY_DELAY_MS)
)


def message_of(
    stored: Record,
    topic: pb.Resource,
    *,
    queue_id: int,
    queue_offset: int,
    attempt: int,
    receipt_handle: str,
    max_body_size: int,
) -> pb.Message:
    """Returns the message for a client.  A body that would exceed `max_body_size` bytes when it is unpacked stays
    compressed.
    """
    properties = stored.properties
    body, encoding = _body(stored, max_body_size)
    system = pb.SystemProperties(
        keys=[key for key in properties.get(record.PROPERTY_KEYS, "").split(KEY_SEPARATOR) if key],
        message_id=stored.message_id,
        body_digest=pb.Digest(type=pb.MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=encoding,
        message_type=_type(properties),
        born_timestamp=_time(stored.born_timestamp),
        born_host=properties.get(record.PROPERTY_BORN_HOST) or record.decode_host(stored.born_host)[0],
        store_timestamp=_time(stored.store_timestamp),
        store_host="{}:{}".format(*record.decode_host(stored.store_host)),
        receipt_handle=receipt_handle,
        queue_id=queue_id,
        queue_offset=queue_offset,
        delivery_attempt=attempt,
    )
    if tag := properties.get(record.PROPERTY_TAGS):
        system.tag = tag
    if group := properties.get(record.PROPERTY_SHARDING_KEY):
        system.message_group = group
    if trace_context := properties.get(record.PROPERTY_TRACE_CONTEXT):
        system.trace_context = trace_context
    due_ms = properties.get(record.PROPERTY_DELIVER_MS, "")
    if due_ms.isascii() and due_ms.isdigit():
        system.delivery_timestamp.CopyFrom(_time(int(due_ms[:18])))
    if dead := properties.get("DLQ_ORIGIN_MESSAGE_ID"):
        system.dead_letter_queue.topic = properties.get("DLQ_ORIGIN_TOPIC", "")
        system.dead_letter_queue.message_id = dead
    users = {name: value for name, value in properties.items() if name not in HIDDEN_PROPERTIES}
    return pb.Message(topic=topic, user_properties=users, system_properties=system, body=body)


def _body(stored: Record, max_size: int) -> tuple[bytes, pb.Encoding]:
    """Returns the body and its encoding.  Clients know no compression but GZIP, so bodies of other compressions are
    unpacked.
    """
    if not stored.sys_flag & record.SYS_FLAG_COMPRESSED:
        return stored.body, pb.IDENTITY
    if stored.body.startswith(_GZIP) and not stored.sys_flag & record.SYS_FLAG_COMPRESSION_TYPE:
        return stored.body, pb.GZIP
    try:
        return decompress(stored.body, stored.sys_flag, max_size), pb.IDENTITY
    except CompressionError as error:
        logger.warning(
            "the body of message %s of topic %s is delivered as it is stored: %s",
            stored.message_id,
            stored.topic,
            error,
        )
        return stored.body, pb.IDENTITY


def _type(properties: Mapping[str, str]) -> pb.MessageType:
    if properties.get(PROPERTY_PREPARED) == "true":
        return pb.TRANSACTION
    if not _DELAYED.isdisjoint(properties):
        return pb.DELAY
    return pb.FIFO if record.PROPERTY_SHARDING_KEY in properties else pb.NORMAL


def _time(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
