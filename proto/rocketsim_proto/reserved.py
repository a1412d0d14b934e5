"""Ids and names with a meaning in RocketMQ, on which brokers, clients and the Spark source agree.  Pure."""

from enum import Enum, auto

MASTER_ID = 0  # the broker id of a broker name's master; slaves have higher ids

DEFAULT_TOPIC = "TBW102"  # the template of topics that are created by their first message
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # delayed messages wait here, in one queue per level
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # messages of open transactions wait here
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # records that say which transactions have ended
DISCARDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # messages of transactions that were given up
INTERNAL_PREFIX = "rmq_sys_"  # the prefix of topics in which a broker keeps its own state
STATE_TOPIC = "rmq_sys_rocketsim_state"  # the state of consumption: pops, acknowledgements, deadlines
CHANGES_TOPIC = "rmq_sys_rocketsim_changes"  # a record after each change of an operator, if there are several slaves
TIMER_TOPIC = "rmq_sys_wheel_timer"  # messages with a delivery time wait here
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # RocketMQ's clients write here when they sent and consumed messages
# System topics, which a broker itself writes to.  Clients may read system topics but not write, change or delete them.
# TRACE_TOPIC is an exception: clients may also write, change and delete it.
SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        DISCARDED_TOPIC,
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        TRACE_TOPIC,
        "SELF_TEST_TOPIC",
    }
)
RETRY_PREFIX = "%RETRY%"  # the prefix of topics with a group's messages that are delivered again
DLQ_PREFIX = "%DLQ%"  # the prefix of topics with a group's dead letters
SYSTEM_PREFIXES = (INTERNAL_PREFIX, RETRY_PREFIX, DLQ_PREFIX)

MESSAGE_TYPE = "message.type"  # the attribute of a topic that says which messages it accepts; NORMAL by default
# The values of a topic's attribute `message.type`.  A topic of type MIXED accepts all messages.  RocketMQ also has LITE
# and PRIORITY, which are not supported here.
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


class PropertyUse(Enum):
    """Says who sets a property that has a meaning in RocketMQ.  Users cannot set these properties as properties of
    their own.
    """

    ARGUMENT = auto()  # the sender sets the property, from an argument or a column
    CARRIED = auto()  # clients, proxies and brokers set the property, so a message that was received may have it
    RESERVED = auto()  # RocketMQ's own programs use the property for other purposes


def _names(text: str, use: PropertyUse) -> dict[str, PropertyUse]:
    return dict.fromkeys(text.split(), use)


# The only table of properties that have a meaning in RocketMQ.  All code that sends messages uses this table.
PROPERTIES: dict[str, PropertyUse] = (
    _names("TAGS KEYS UNIQ_KEY WAIT DELAY TIMER_DELIVER_MS __SHARDINGKEY", PropertyUse.ARGUMENT)
    | _names(
        "RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET ORIGIN_MESSAGE_ID RECONSUME_TIME "
        "MSG_REGION TRACE_ON EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME "
        "TRAN_PREPARED_QUEUE_OFFSET INSTANCE_ID CLUSTER INNER_MULTI_QUEUE_OFFSET INNER_MULTI_DISPATCH INNER_NUM "
        "INNER_BASE _SYS_MSG_PRIORITY_ __CRC32# __LITE_TOPIC __BORNHOST BORN_TIMESTAMP ORIGIN_GROUP DLQ_ORIGIN_TOPIC "
        "DLQ_ORIGIN_MESSAGE_ID TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY "
        "TIMER_DELAY_LEVEL TIMER_DELAY_MS TIMER_DELAY_SEC __transactionId__ TRANSACTION_CHECK_TIMES "
        "__DELAY_LEVEL __DELAY_OFFSET __SOURCE __CHECK __TIMER_SOURCE",
        PropertyUse.CARRIED,
    )
    | _names(
        "BUYER_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG DUP_INFO CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME "
        "PUSH_REPLY_TIME MSG_TYPE",
        PropertyUse.RESERVED,
    )
)
# Properties of this project's broker, which RocketMQ does not have.
BROKER_PROPERTIES = frozenset("__DELAY_LEVEL __DELAY_OFFSET __SOURCE __CHECK __TIMER_SOURCE".split())
# RocketMQ's proxy lets its clients set these properties, and returns them to clients.
OPEN_AT_THE_PROXY = frozenset(
    "__SHARDINGKEY __transactionId__ TRANSACTION_CHECK_TIMES INNER_MULTI_DISPATCH INNER_NUM INNER_BASE".split()
)
