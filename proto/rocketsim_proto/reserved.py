"""Ids and names to which RocketMQ gives a meaning.  Pure: what brokers, clients and the Spark source agree on."""

from enum import Enum, auto

MASTER_ID = 0  # the broker id of a broker name's master; slaves have higher ones

DEFAULT_TOPIC = "TBW102"  # topics that the first message makes are copies of it
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # where delayed messages wait, one queue a level
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # where messages wait whose transaction is open
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # which of them are settled
DISCARDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # those that were given up
INTERNAL_PREFIX = "rmq_sys_"  # of topics in which a broker keeps its own state
STATE_TOPIC = "rmq_sys_rocketsim_state"  # what a broker keeps of consumption: pops, acknowledgements, deadlines
CHANGES_TOPIC = "rmq_sys_rocketsim_changes"  # with several slaves, a record behind each change of an operator
TIMER_TOPIC = "rmq_sys_wheel_timer"  # where messages with a delivery time wait
# Topics that a broker itself writes to; clients may read them but not write, change or delete them.
SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        DISCARDED_TOPIC,
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "SELF_TEST_TOPIC",
    }
)
SYSTEM_PREFIXES = (INTERNAL_PREFIX, "%RETRY%", "%DLQ%")

MESSAGE_TYPE = "message.type"  # the attribute of a topic that says which messages it takes; absent: NORMAL
# MIXED takes all of them.  RocketMQ has LITE and PRIORITY besides, which are not supported here.
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


class PropertyUse(Enum):
    """Who sets a property to which RocketMQ gives a meaning.  A message's sender may not set it among his own."""

    ARGUMENT = auto()  # the sender, by an argument or a column of its own
    CARRIED = auto()  # clients, proxies and brokers by themselves, so that a message that was read may have it
    RESERVED = auto()  # RocketMQ's own programs, for another use of theirs


def _names(text: str, use: PropertyUse) -> dict[str, PropertyUse]:
    return dict.fromkeys(text.split(), use)


# The one table of these properties: every sender looks here.
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
# Those of this broker, of which RocketMQ knows nothing.
BROKER_PROPERTIES = frozenset("__DELAY_LEVEL __DELAY_OFFSET __SOURCE __CHECK __TIMER_SOURCE".split())
# RocketMQ's proxy lets its clients set these and shows them to them.
OPEN_AT_THE_PROXY = frozenset(
    "__SHARDINGKEY __transactionId__ TRANSACTION_CHECK_TIMES INNER_MULTI_DISPATCH INNER_NUM INNER_BASE".split()
)
