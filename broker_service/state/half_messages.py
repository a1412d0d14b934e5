"""Pure functions that make the records of transactions in RocketMQ's format, and read changes of state from them.

A *half message* waits in RMQ_SYS_TRANS_HALF_TOPIC, and names its real topic and queue.  A commit first appends a copy
to the real topic; the copy's prepared transaction offset is the half message's log offset.  After the copy, the commit
appends an *op record* to RMQ_SYS_TRANS_OP_HALF_TOPIC, whose body is the half message's queue offset with a comma.  A
rollback appends only an op record.  A half message whose transaction is given up is copied to
TRANS_CHECK_MAX_TIME_TOPIC.

RocketSim adds two properties that RocketMQ does not have.  `__CHECK` of a half message says when its producer is asked
next, and which client sent the message.  `__RESOLUTION` of an op record says how the transaction ended.
"""

from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, Record
from rocketsim_proto.reserved import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC

from broker_service.state.transaction_changes import (
    MAX_CHECKS,
    MAX_TEXT,
    Ended,
    Prepared,
    Resolution,
    Resolved,
    TransactionId,
)

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"  # RocketMQ's group that commits how far the half and op topics are read
SYS_FLAG_COMMITTED = 0x8

PROPERTY_PREPARED = "TRAN_MSG"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK = "__CHECK"
PROPERTY_RESOLUTION = "__RESOLUTION"

OP_TAG = "d"
OP_BODY = 4096  # the maximum size of a body in bytes, as in RocketMQ's transactionOpMsgMaxSize
DEFAULT_IMMUNITY_MS = 6_000  # time to the first question for half messages of RocketMQ, which name no such time

# Properties that clients and brokers set for each attempt to send a message, or for its half message.
_NOT_CONTENT = frozenset(
    (
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_PREPARED,
        PROPERTY_TRANSACTION_ID,
        PROPERTY_IMMUNITY_S,
        PROPERTY_CHECK_TIMES,
        PROPERTY_CHECK,
        record.PROPERTY_WAIT,
        record.PROPERTY_PRODUCER_GROUP,
        record.PROPERTY_RECONSUME_TIME,
        record.PROPERTY_TRACE_CONTEXT,
        record.PROPERTY_BORN_HOST,
        record.PROPERTY_BORN_TIMESTAMP,
    )
)
_NOT_IN_COPIES = (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID, PROPERTY_CHECK)


def has_changes(topic: str) -> bool:
    """Returns True if records of this topic may change the state of transactions."""
    return topic in (HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC)


def half_message(message: Record, *, client_id: str, first_check_ms: int, immunity_s: int) -> Record:
    """Makes the half message.  `immunity_s` is the time until the first question if the client sets it, else 0."""
    properties = message.properties
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    properties[PROPERTY_PREPARED] = "true"
    properties[PROPERTY_TRANSACTION_ID] = message.message_id
    properties.pop(PROPERTY_CHECK_TIMES, None)
    properties.pop(PROPERTY_IMMUNITY_S, None)
    if immunity_s:
        properties[PROPERTY_IMMUNITY_S] = str(immunity_s)
    known_client = client_id if len(client_id.encode()) <= MAX_TEXT else ""
    properties[PROPERTY_CHECK] = f"{first_check_ms} {known_client}"
    message.topic, message.queue_id = HALF_TOPIC, 0
    return message


def has_content_of(half: Record, message: Record) -> bool:
    """Returns True if this half message was made from that message, in this attempt or an earlier attempt to send it.

    The queue, the times and all other values that belong to one attempt may differ.
    """
    return _content(half) == _content(message)


def _content(message: Record) -> tuple[bytes, int, int, dict[str, str]]:
    own = {name: value for name, value in message.properties.items() if name not in _NOT_CONTENT}
    return message.body, message.sys_flag & record.SYS_FLAG_COMPRESSED, message.flag, own


def real_topic(half: Record) -> str:
    return half.properties.get(PROPERTY_REAL_TOPIC, "")


def real_queue(half: Record) -> int:
    text = half.properties.get(PROPERTY_REAL_QUEUE_ID, "")
    return int(text[:9]) if _is_number(text) else 0


def committed_copy(half: Record, queue_id: int) -> Record:
    """Makes the message for consumers, with sysFlag 8.  The copy names the half message, and thereby settles it."""
    copy = _copy(half, half.properties[PROPERTY_REAL_TOPIC], queue_id)
    copy.sys_flag = half.sys_flag & ~record.SYS_FLAG_TRANSACTION_MASK | SYS_FLAG_COMMITTED
    copy.prepared_transaction_offset = half.commit_log_offset
    copy.properties = {name: value for name, value in half.properties.items() if name not in _NOT_IN_COPIES}
    return copy


def discarded_copy(half: Record) -> Record:
    """Makes the copy for the topic of messages whose transactions were given up.  The copy settles the half message."""
    return _copy(half, DISCARDED_TOPIC, 0)


def renewed_half(half: Record, checks: int, due_ms: int, client_id: str) -> Record:
    """Makes a copy of the half message for the end of the log.  The copy replaces the earlier half message."""
    copy = _copy(half, HALF_TOPIC, 0)
    copy.properties[PROPERTY_CHECK_TIMES] = str(checks)
    copy.properties[PROPERTY_CHECK] = f"{due_ms} {client_id}"
    return copy


def op_records(queue_offsets: list[int], resolution: Resolution, now_ms: int) -> list[Record]:
    """Makes the op records that settle these half messages."""
    bodies = [b""]
    for queue_offset in queue_offsets:
        entry = b"%d," % queue_offset
        if len(bodies[-1]) + len(entry) > OP_BODY:
            bodies.append(b"")
        bodies[-1] += entry
    properties = {
        record.PROPERTY_TAGS: OP_TAG,
        record.PROPERTY_WAIT: "false",
        PROPERTY_RESOLUTION: resolution.name,
    }
    return [Record(OP_TOPIC, body, born_timestamp=now_ms, properties=properties) for body in bodies]


def change_in(message: Record) -> Prepared | Ended | Resolved | None:
    """Returns the change that a record of RocketSim or RocketMQ makes to transactions; None if it makes none."""
    properties = message.properties
    if message.topic == OP_TOPIC:
        offsets = tuple(int(text) for text in message.body.decode("ascii", "replace").split(",") if text.isdecimal())
        name = properties.get(PROPERTY_RESOLUTION, "")
        resolution = Resolution[name] if name in Resolution.__members__ else Resolution.UNKNOWN
        is_op = properties.get(record.PROPERTY_TAGS) == OP_TAG and message.queue_id == 0
        return Ended(offsets, resolution) if offsets and is_op else None
    topic = properties.get(PROPERTY_REAL_TOPIC, "")
    if not topic:
        return None
    transaction = TransactionId(topic, message.message_id)
    if message.topic == DISCARDED_TOPIC:
        return Resolved(transaction, Resolution.DISCARDED)
    if message.queue_id != 0:
        return None
    due, _, client_id = properties.get(PROPERTY_CHECK, "").partition(" ")
    checks = properties.get(PROPERTY_CHECK_TIMES, "")
    return Prepared(
        transaction=transaction,
        queue_offset=message.queue_offset,
        log_offset=message.commit_log_offset,
        client_id=client_id,
        checks=min(int(checks[:9]), MAX_CHECKS) if _is_number(checks) else 0,
        due_ms=int(due[:16]) if _is_number(due) else message.store_timestamp + _immunity_ms(properties),
    )


def _copy(half: Record, topic: str, queue_id: int) -> Record:
    return Record(
        topic=topic,
        body=half.body,
        queue_id=queue_id,
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        reconsume_times=half.reconsume_times,
        properties=dict(half.properties),
    )


def _immunity_ms(properties: dict[str, str]) -> int:
    asked = properties.get(PROPERTY_IMMUNITY_S, "")
    return 1000 * int(asked[:8]) if _is_number(asked) else DEFAULT_IMMUNITY_MS


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
