"""Makes the record of a message that a client sends, with the properties that RocketMQ's proxy sets."""

from rocketmq_v2 import definition_pb2 as pb
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from broker_service.wire.v2.message_rules import in_ms, is_time

KEY_SEPARATOR = " "


def record_of(message: pb.Message, topic: str, *, peer: tuple[str, bytes], store_host_size: int, now_ms: int) -> Record:
    """Returns the message's record, with queue 0.  `peer` is the client's address: as text, and as the bytes that a
    record contains.
    """
    system = message.system_properties
    address, born_host = peer
    born_timestamp = in_ms(system.born_timestamp) if is_time(system.born_timestamp) else 0
    properties = dict(message.user_properties)
    if system.tag:
        properties[record.PROPERTY_TAGS] = system.tag
    if keys := KEY_SEPARATOR.join(filter(None, system.keys)):
        properties[record.PROPERTY_KEYS] = keys
    properties[record.PROPERTY_UNIQ_KEY] = system.message_id
    properties[record.PROPERTY_RECONSUME_TIME] = str(system.delivery_attempt)
    properties[record.PROPERTY_PRODUCER_GROUP] = topic
    if system.message_group:
        properties[record.PROPERTY_SHARDING_KEY] = system.message_group
    if system.HasField("delivery_timestamp"):
        properties[record.PROPERTY_DELIVER_MS] = str(in_ms(system.delivery_timestamp))
    if system.trace_context:
        properties[record.PROPERTY_TRACE_CONTEXT] = system.trace_context
    properties[record.PROPERTY_BORN_HOST] = system.born_host.strip() or address
    if born_timestamp:
        properties[record.PROPERTY_BORN_TIMESTAMP] = str(born_timestamp)
    return Record(
        topic=topic,
        body=message.body,
        sys_flag=record.SYS_FLAG_COMPRESSED if system.body_encoding == pb.GZIP else 0,
        born_timestamp=born_timestamp or now_ms,
        born_host=born_host,
        store_host=bytes(store_host_size),
        properties=properties,
    )
