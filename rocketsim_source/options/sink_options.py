"""Parses the sink's options from Spark's strings into one frozen value.  Pure."""

# ruff: noqa: RUF009 -- `option` and `unsupported` make dataclass fields
from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketsim_client.connection import PROTOCOLS, Connection
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
    read_options,
    secret,
    size_bytes,
    static_brokers,
    text,
    topic_to_write,
)
from rocketsim_source.options.source_options import FROM_SPARK, SourceOptions, one_of

ROUTE_S = 1.0  # a task asks for routes again after this time
ID_VERSION = 1  # the newest way to make ids in `row_ids.py`
# Options of a stream that Spark also passes to the sink.
FROM_SPARK_STREAMS = (
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
    "_asyncProgressTrackingOverrideSinkSupportCheck",
)


def sink_mode(value: str) -> str:
    if value.strip().lower() == "transactional":
        raise OptionError("is not supported yet; with sinkMode=idempotent, dropDuplicates('msgId') keeps each row once")
    mode: str = choice("atLeastOnce", "idempotent")(value)
    return mode


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options of one write."""

    name_server: tuple[str, ...] = option("nameServer", addresses, (), "namesrvAddr")
    brokers: dict[str, dict[int, str]] | None = option("brokers", static_brokers)
    topic: str | None = option("topic", topic_to_write)
    group: str = option("group", group_name, "rocketsim-spark-sink", "producerGroup")
    mode: str = option("sinkMode", sink_mode, "atLeastOnce")
    id_columns: tuple[str, ...] = option("idColumns", names, ())
    sink_name: str | None = option("sinkName", text)
    id_version: int | None = option("idVersion", integer(0, ID_VERSION))
    partitioner: str = option("partitioner", choice("roundRobin", "key"), "roundRobin")
    # The number of rows that are sent as one batch, or None for the rows of one Arrow batch.
    send_batch_size: int | None = option("sendBatchSize", integer(1, 1 << 30))
    send_timeout_ms: int = option("sendTimeoutMs", milliseconds(1), 3000, "sendMsgTimeout")
    retries: int = option("retryTimesWhenSendFailed", integer(0, 1000), 5)
    max_inflight: int = option("maxInflight", integer(1, 1024), 8)  # frames sent to one broker and not yet answered
    send_transport: str = option("sendTransport", choice("auto", "grpc"), "auto")
    compress_over: int = option("compressMsgBodyOverHowmuch", size_bytes(), 4096)
    compress_type: str = option("compressType", choice("ZLIB", "LZ4", "ZSTD"), "ZLIB")
    max_message_size: int = option("maxMessageSize", size_bytes(), 4 << 20)
    # What happens to properties (headers) that a message cannot have: they fail the write, or they are left out.
    invalid_properties: str = option("invalidProperties", choice("fail", "skip"), "fail")
    unsynced_send_policy: str = option("unsyncedSendPolicy", choice("warn", "fail"), "warn")
    strict: bool = option("strictOptions", boolean, True)

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
    namespace: str | None = option("namespace", instance)
    namespace_v2: str | None = option("namespaceV2", instance)

    @property
    def connection(self) -> Connection:
        return Connection.of(
            self.name_server,
            brokers=self.brokers,
            timeout_s=self.send_timeout_ms / 1000,
            poll_interval_s=ROUTE_S,
            channel_options=self.channel,
            range_streams=self.send_transport == "auto",
            access_key=self.access_key or "",
            secret_key=self.secret_key or "",
            tls=self.tls,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            protocol=self.protocol,
            security_token=self.security_token or "",
            address_map=self.address_map,
            namespace=self.namespace or "",
            namespace_v2=self.namespace_v2 or "",
        )

    def __post_init__(self) -> None:
        one_of(
            {"nameServer": self.name_server, "brokers": self.brokers},
            "where the brokers are: nameServer=host:port, or brokers=broker-a=0@host:port,1@host:port",
        )
        credentials(self.access_key, self.secret_key)
        check_tls(self.tls, tlsCa=self.tls_ca, tlsCert=self.tls_cert, tlsKey=self.tls_key)
        self._check_ids()

    def _check_ids(self) -> None:
        if self.mode != "idempotent":
            given = {"idColumns": self.id_columns, "sinkName": self.sink_name, "idVersion": self.id_version is not None}
            for name, value in given.items():
                if value:
                    raise OptionError(f"{name} belongs to sinkMode=idempotent")
        elif self.id_version == 0:
            if self.id_columns or self.sink_name:
                raise OptionError("idVersion=0 knows neither idColumns nor sinkName; leave them out")
        elif not self.id_columns and not self.sink_name:
            raise OptionError(
                "sinkMode=idempotent needs to know what makes a row the same row when it is written again. Set "
                "idColumns=a,b to columns that tell a row from all others. Or, for a stream that is written as it is "
                "read (no shuffle, nothing random), set sinkName=… to a name that no other write has. With sinkName, "
                "ids are made of query, batch, partition and row number. Only to finish a batch that an older version "
                "began, set idVersion=0 instead"
            )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parses the sink's options.

    Options of the source are accepted and ignored, so that the same options can be used for reading and writing.
    """
    return read_options(SinkOptions, given, also=(*FROM_SPARK, *FROM_SPARK_STREAMS, *option_names(SourceOptions)))
