"""Parses the source's options from Spark's strings into one frozen value, and checks that they fit together.  Pure.

An option that Kafka's Spark source also has keeps Kafka's name.  An option that only RocketMQ has keeps RocketMQ's
name.  docs/spark.md explains each option.
"""

# ruff: noqa: RUF009 -- `option` and `unsupported` make dataclass fields
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rocketsim_client.connection import PROTOCOLS, REGISTER, Connection
from rocketsim_client.errors import ExpressionInvalid
from rocketsim_client.expression import ALL, Expression, SqlExpression, TagExpression
from rocketsim_client.model import MessageQueue
from rocketsim_client.range_pull import FRAME_BYTES
from rocketsim_source.options.data_loss import DataLossPolicy, data_loss_action
from rocketsim_source.options.option_values import (
    OptionError,
    address_map,
    addresses,
    boolean,
    check_tls,
    choice,
    credentials,
    group_name,
    instance,
    integer,
    milliseconds,
    names,
    option,
    option_names,
    pattern,
    read_options,
    secret,
    size_bytes,
    static_brokers,
    text,
    topic_to_read,
    unsupported,
    words,
)
from rocketsim_source.options.positions import (
    EARLIEST,
    LATEST,
    PerQueue,
    Position,
    assignment,
    endings,
    iso,
    one_timestamp,
    position,
    positions,
    timestamps,
)

# If a query has no option group, its pulls name this group, for which no offsets are committed.
READER_GROUP = "rocketsim-spark-source"
# Options that Spark itself adds to the options of a table.
FROM_SPARK = ("path", "paths", "serialization.format")


def commit_failure_policy(value: str) -> int:
    """Parses the number of failed commits in a row after which the query ends, or -1 if failures do not end it."""
    word = value.strip().lower()
    match = re.fullmatch(r"failafter:([1-9][0-9]{0,8})", word)
    if match:
        return int(match[1])
    if word not in ("warn", "fail"):
        raise OptionError("must be warn, fail or failAfter:n with n at least 1")
    return -1 if word == "warn" else 1


def topics_to_read(value: str) -> tuple[str, ...]:
    return tuple(topic_to_read(name) for name in names(value))


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options of one query, which say what it reads, and how."""

    name_server: tuple[str, ...] = option("nameServer", addresses, (), "namesrvAddr")
    brokers: dict[str, dict[int, str]] | None = option("brokers", static_brokers)
    topic: tuple[str, ...] = option("topic", lambda value: (topic_to_read(value),), ())
    subscribe: tuple[str, ...] = option("subscribe", topics_to_read, ())
    subscribe_pattern: str | None = option("subscribePattern", pattern)
    assign: frozenset[MessageQueue] | None = option("assign", assignment)
    group: str | None = option("group", group_name, None, "consumerGroup", "kafka.group.id")

    starting_offsets: PerQueue[Position] | None = option("startingOffsets", positions)
    starting_timestamp: PerQueue[int] | None = option("startingTimestamp", one_timestamp)
    starting_offsets_by_timestamp: PerQueue[int] | None = option("startingOffsetsByTimestamp", timestamps)
    starting_offsets_by_timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy", choice("error", LATEST, EARLIEST), "error"
    )
    ending_offsets: PerQueue[Position] | None = option("endingOffsets", endings)
    ending_timestamp: PerQueue[int] | None = option("endingTimestamp", one_timestamp)
    ending_offsets_by_timestamp: PerQueue[int] | None = option("endingOffsetsByTimestamp", timestamps)
    new_queue_offsets: Position = option("newQueueOffsets", position, (EARLIEST,))
    initial_offset_anchor: bool = option("initialOffsetAnchor", boolean, True)
    fail_on_data_loss: bool = option("failOnDataLoss", boolean, True)
    data_loss_action: dict[str, str] | None = option("dataLossAction", data_loss_action)

    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", integer(1), None, "maxRecordsPerTrigger")
    min_offsets_per_trigger: int | None = option("minOffsetsPerTrigger", integer(1))
    max_trigger_delay_ms: int = option("maxTriggerDelay", milliseconds(1), 900_000)
    max_bytes_per_trigger: int | None = option("maxBytesPerTrigger", size_bytes())
    max_offsets_per_queue: int | None = option("maxOffsetsPerQueue", integer(1))
    min_partitions: int | None = option("minPartitions", integer(1, 1_000_000))
    max_records_per_partition: int | None = option("maxRecordsPerPartition", integer(1))
    # The number of the cluster's cores; None stands for the number of the driver's cores.
    parallelism: int | None = option("parallelism", integer(1, 1_000_000))

    sub_expression: str = option("subExpression", text, "*")
    filter_type: str = option("filterType", choice("TAG", "SQL92"), "TAG")
    filter_pushdown: bool = option("filterPushdown", boolean, False)
    # The number of rows in an Arrow batch; None makes a batch from each frame.
    pull_batch_size: int | None = option("pullBatchSize", integer(1, 1 << 30))
    pull_timeout_ms: int = option("pullTimeoutMs", milliseconds(1), 3000)
    pull_max_bytes: int = option("pullMaxBytes", size_bytes(1024), FRAME_BYTES)
    pull_transport: str = option("pullTransport", choice("auto", "grpc"), "auto")
    pull_retries: int = option("pullRetries", integer(0, 1000), 5)
    pull_retry_backoff_ms: int = option("pullRetryBackoffMs", milliseconds(1), 100)
    # A task waits for the master this long when a slave lacks planned records.
    slave_behind_wait_ms: int = option("slaveBehindWaitMs", milliseconds(), 30_000)
    read_from: str = option("readFrom", choice("suggested", "master", "slave", "masterOnly"), "suggested")
    suggest_scope: frozenset[str] = option(
        "suggestScope", words("task", "worker", "driver"), frozenset({"task", "worker"})
    )
    prefetch_pulls: int = option("prefetchPulls", integer(0, 64), 1)
    check_crcs: bool = option("checkCrcs", boolean, False)
    # What happens if no broker has a record in readable form: the query fails, or the record is left out.
    corrupt: str = option("corrupt", choice("fail", "skip"), "fail")
    metadata_refresh_ms: int = option("metadataRefreshMs", milliseconds(), 1000)
    idle_poll_ms: int = option("idlePollMs", milliseconds(), 200)
    queue_discovery_interval_ms: int = option("queueDiscoveryIntervalMs", milliseconds(), 30_000)
    # The query fails when no broker has answered for this time.
    broker_down_timeout_ms: int = option("brokerDownTimeoutMs", milliseconds(), 300_000)

    include_properties: bool = option("includeProperties", boolean, True)
    include_hosts: bool = option("includeHosts", boolean, False)
    include_headers: bool = option("includeHeaders", boolean, False)
    properties_format: str = option("propertiesFormat", choice("map", "json"), "map")
    body_format: str = option("bodyFormat", choice("binary", "string"), "binary")
    columns: tuple[str, ...] | None = option("columns", names)
    schema_profile: str = option("schemaProfile", choice("rocketmq", "kafka"), "rocketmq")
    strict: bool = option("strictOptions", boolean, True)

    commit_offsets: str = option("commitOffsets", choice("auto", "none", "onCommit", "onTrigger"), "auto")
    commit_initial_offset: bool = option("commitInitialOffset", boolean, True)
    commit_target: str = option("commitTarget", choice("masterFirst", "masterOnly", "both"), "masterFirst")
    commit_reconcile_interval_ms: int = option("commitReconcileIntervalMs", milliseconds(1), 30_000)
    commit_failures_max: int = option("commitFailurePolicy", commit_failure_policy, -1)
    commit_timeout_ms: int = option("commitTimeoutMs", milliseconds(1), 3000)
    commit_retries: int = option("commitRetries", integer(0, 1000), 1)
    commit_async: bool = option("commitAsync", boolean, True)
    commit_min_interval_ms: int = option("commitMinIntervalMs", milliseconds(), 0)
    group_conflict_policy: str = option("groupConflictPolicy", choice("warn", "fail", "ignore"), "warn")

    channel: dict[str, int | str] = field(default_factory=dict)  # grpc.*
    access_key: str | None = option("accessKey", text)
    secret_key: str | None = secret("secretKey")
    security_token: str | None = secret("securityToken")
    tls: bool = option("tls", boolean, False)
    tls_ca: str | None = option("tlsCa", text)  # a file that exists on every machine
    tls_cert: str | None = option("tlsCert", text)
    tls_key: str | None = option("tlsKey", text)
    protocol: str = option("protocol", choice(*PROTOCOLS), "auto")
    # The next options are for Apache RocketMQ's servers only.
    address_map: str = option("addressMap", address_map, "")
    # The most pulls per second of one Python worker; 0 means no limit.
    max_pulls_per_second: int = option("maxPullsPerSecond", integer(0), 0)
    register_group: str = option("registerGroup", choice(*REGISTER), "auto")
    namespace: str | None = option("namespace", instance)
    namespace_v2: str | None = option("namespaceV2", instance)

    view: str | None = unsupported("view", "messages")  # `view_options.py` has the options of other views
    max_time_range_per_trigger: str | None = unsupported("maxTimeRangePerTrigger")
    align_queues_by_timestamp: str | None = unsupported("alignQueuesByTimestamp", "false")
    slow_queue_adjustment: str | None = unsupported("slowQueueAdjustment", "false")
    heartbeat_interval_ms: str | None = unsupported("heartbeatIntervalMs", "0")

    def __post_init__(self) -> None:
        one_of(
            {"nameServer": self.name_server, "brokers": self.brokers},
            "where the brokers are: nameServer=host:port, or brokers=broker-a=0@host:port,1@host:port",
        )
        check_tls(self.tls, tlsCa=self.tls_ca, tlsCert=self.tls_cert, tlsKey=self.tls_key)
        one_of(
            {
                "topic": self.topic,
                "subscribe": self.subscribe,
                "subscribePattern": self.subscribe_pattern,
                "assign": self.assign,
            },
            "what to read: topic, subscribe, subscribePattern or assign",
        )
        credentials(self.access_key, self.secret_key)
        if self.subscribe_pattern and self.brokers:
            raise OptionError("subscribePattern needs nameServer: only a name server knows all topics")
        if self.commit_offsets in ("onCommit", "onTrigger") and self.group is None:
            raise OptionError(f"commitOffsets={self.commit_offsets} needs group, for which the offsets are committed")
        if self.group is None and self.uses_committed():
            raise OptionError("a start at 'committed' needs group, whose committed offsets are used")
        if self.columns and self.schema_profile == "kafka" and self.include_hosts:
            raise OptionError("includeHosts belongs to schemaProfile=rocketmq")
        if self.include_headers and self.schema_profile != "kafka":
            raise OptionError(
                "includeHeaders belongs to schemaProfile=kafka; otherwise the column properties has the headers"
            )
        if self.starting_timestamp and self.ending_timestamp:
            (begin,), (end,) = self.starting_timestamp.entries.values(), self.ending_timestamp.entries.values()
            if begin > end:
                raise OptionError(
                    f"startingTimestamp={iso(begin)} is after endingTimestamp={iso(end)}: nothing is read"
                )
        low, high = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if low is not None and high is not None and low > high:
            raise OptionError(f"minOffsetsPerTrigger={low} is above maxOffsetsPerTrigger={high}")

    def uses_committed(self) -> bool:
        chains = [self.new_queue_offsets]
        chains += list(self.starting_offsets.entries.values()) if self.starting_offsets else []
        return any("committed" in chain for chain in chains)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the options name, or () if subscribePattern selects the topics."""
        if self.assign:
            return tuple(sorted({queue.topic for queue in self.assign}))
        return self.topic or self.subscribe

    def reads(self, queue: MessageQueue) -> bool:
        """Returns True if the options ask for this queue.  A checkpoint may have queues for which the options no longer
        ask."""
        if self.assign:
            return queue in self.assign
        if self.subscribe_pattern:
            return re.fullmatch(self.subscribe_pattern, queue.topic) is not None
        return queue.topic in self.topics

    @property
    def pull_group(self) -> str:
        """The consumer group that is named in each pull.

        A pull always names a group, because brokers check permissions by group, and suggest by group which broker to
        read from.
        """
        return self.group or READER_GROUP

    @property
    def connection(self) -> Connection:
        return Connection.of(
            self.name_server,
            brokers=self.brokers,
            timeout_s=self.pull_timeout_ms / 1000,
            poll_interval_s=self.metadata_refresh_ms / 1000,
            channel_options=self.channel,
            range_streams=self.pull_transport == "auto",
            access_key=self.access_key or "",
            secret_key=self.secret_key or "",
            tls=self.tls,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            protocol=self.protocol,
            security_token=self.security_token or "",
            address_map=self.address_map,
            max_pulls_per_second=self.max_pulls_per_second,
            register_group=self.register_group,
            namespace=self.namespace or "",
            namespace_v2=self.namespace_v2 or "",
            program="Spark",
        )

    @property
    def commits(self) -> bool:
        return self.group is not None and self.commit_offsets != "none"

    @property
    def data_loss(self) -> DataLossPolicy:
        return DataLossPolicy.of(self.fail_on_data_loss, self.data_loss_action)

    @property
    def expression(self) -> Expression:
        """The filter by which messages are selected.  Raises ExpressionInvalid if `subExpression` is not a valid
        expression of its `filterType`.
        """
        if self.filter_type == "SQL92" and self.sub_expression.strip() not in ("", ALL):
            return SqlExpression(self.sub_expression)
        return TagExpression.parse(self.sub_expression)

    @property
    def broker_filters(self) -> bool:
        """True if brokers filter the messages.  If brokers filter, an offset that is missing from an answer is no lost
        record.
        """
        return self.expression.asked != ALL


def one_of(given: Mapping[str, object], what: str) -> None:
    used = [name for name, value in given.items() if value]
    if not used:
        raise OptionError(f"an option has to say {what}")
    if len(used) > 1:
        raise OptionError(f"options {' and '.join(used)} exclude each other; give one of them")


def refuse_instance(written: Iterable[str], connection: Callable[[], Connection], what: str = "topic") -> None:
    """Refuses a topic, or a group, that is written as the servers of an instance write it (`INSTANCE%topic`).

    The servers' answers come back with the name without the instance, so the query would not find its own offsets or
    rows among them, and its rows and checkpoint would have another name than those of other queries.
    """
    prefixed = [name for name in written if "%" in name]
    if not prefixed or not (namespace := connection().namespace):
        return  # The import below is slow.
    from rocketsim_client.transport.remoting.namespaces import Namespace

    instance = Namespace(namespace)
    for name in prefixed:
        if instance.has(name):
            raise OptionError(
                f"{what} {name} is written with its instance {namespace}, which the option namespace or the address in "
                f"nameServer names: write {instance.removed(name)}"
            )


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parses the source's options.

    Options of the sink are accepted and ignored, so that the same options can be used for reading and writing.
    """
    from rocketsim_source.options.sink_options import SinkOptions  # imported here, because it imports this module

    options = read_options(SourceOptions, given, also=(*FROM_SPARK, *option_names(SinkOptions)))
    try:
        options.expression  # noqa: B018
    except ExpressionInvalid as error:
        raise OptionError(f"option subExpression with filterType={options.filter_type}: {error}") from None
    if not streaming:
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxOffsetsPerQueue"):
            if name.lower() in {key.lower() for key in given}:
                raise OptionError(f"option {name} is for streams only; a batch ends at endingOffsets")
    refuse_instance(options.topics, lambda: options.connection)
    return options


def refuse_pushdown(options: SourceOptions) -> None:
    """Refuses `filterPushdown` for a stream, because Spark offers a stream's filters to no source in Python."""
    if options.filter_pushdown:
        raise OptionError(
            "option filterPushdown is for batches only; for a stream use subExpression, startingTimestamp or assign"
        )
