"""Ids and names to which RocketMQ gives a meaning.  Pure: what brokers, clients and the Spark source agree on."""

MASTER_ID = 0  # the broker id of a broker name's master; slaves have higher ones

DEFAULT_TOPIC = "TBW102"  # topics that the first message makes are copies of it
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # where delayed messages wait, one queue a level
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # where messages wait whose transaction is open
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # which of them are settled
DISCARDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # those that were given up
INTERNAL_PREFIX = "rmq_sys_"  # of topics in which a broker keeps its own state
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
