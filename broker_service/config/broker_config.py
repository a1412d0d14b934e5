"""BrokerConfig: what a broker process is told at its start, loaded and validated once, then handed down.

Field names are RocketMQ's keys in snake_case, defaults are RocketMQ's unless the comment beside one says why not.  Keys
of our own are marked so in their description.  Durations are milliseconds and sizes bytes, as RocketMQ has them.
"""

# ruff: noqa: RUF009 -- `key` makes a dataclass field

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rocketsim_proto.limits import FRAME_BYTES, MAX_BODY_BYTES, MAX_INVISIBLE_MS

from broker_service.config.properties import (
    REQUIRED,
    check_bounds,
    did_you_mean,
    fields_by_key,
    key,
    parse_fields,
    settings_from,
)
from broker_service.config.shared_keys import (
    INNER_CREDENTIALS_DOC,
    INT32_MAX,
    TLS_CA_DOC,
    TLS_CERT_DOC,
    TLS_KEY_DOC,
    SharedKeys,
    addresses_in,
    check_access,
    check_addresses,
    check_tls,
)
from broker_service.errors import ConfigError
from broker_service.model import BrokerRole, FlushDiskType, TlsMode
from broker_service.names import SERVER_NAME, is_server_name

DELAY_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(SharedKeys):
    """One broker process."""

    # --- who it is -------------------------------------------------------------------------------------------------
    broker_cluster_name: str = key("DefaultCluster", "the cluster's name, for lists only")
    broker_name: str = key(REQUIRED, "shared by a master and its slaves, and by no others")
    broker_id: int = key(0, "0 is the master of its `brokerName`, slaves count from 1", low=0, high=INT32_MAX)
    broker_role: BrokerRole = key(
        BrokerRole.ASYNC_MASTER,
        "`ASYNC_MASTER`, `SYNC_MASTER` (a put waits for a slave) or `SLAVE`; at run time the first two, on a master",
        runtime=True,
    )
    flush_disk_type: FlushDiskType = key(
        FlushDiskType.ASYNC_FLUSH,
        "`ASYNC_FLUSH` or `SYNC_FLUSH` (a put waits for the disk; a slave follows its master's setting)",
        runtime=True,
    )

    # --- where it is -----------------------------------------------------------------------------------------------
    namesrv_addr: str = key("", "name servers, `host:port;host:port`; empty: none, clients cannot find this broker")
    listen_port: int = key(
        10911, "the port for our own clients, slaves and operators; 0: any free one", low=0, high=65535
    )
    grpc_server_port: int = key(
        8081,
        "the port for RocketMQ 5's clients, open while this broker is a master that takes writes; 0: any free one, "
        "-1: none",
        low=-1,
        high=65535,
    )
    remoting_port: int = key(
        -1,
        "own: the port for RocketMQ's remoting protocol, which RocketMQ 4's clients, mqadmin and RocketMQ's dashboard "
        "speak; they find it through a name server that has one, too. 0: any free one, -1: none",
        low=-1,
        high=65535,
    )
    # Loopback, because nothing is authenticated by default: opening it to a network must be somebody's decision.
    bind_address: str = key("127.0.0.1", "the address listened on; loopback unless said otherwise")
    broker_ip1: str = key("", "the address told to others, `bindAddress` by default", name="brokerIP1")
    ha_master_address: str = key("", "a slave's master, `host:port`, instead of asking the name servers")
    ha_slave_addresses: str = key(
        "", "own: a master's slaves, `host:port;host:port`, asked at its start as name servers are; it waits for all"
    )
    address_file: Path | None = key(
        None, "own: written with `host:port` once the port is bound; default `<root>/rocketsim/address`"
    )
    metrics_port: int = key(0, "own: Prometheus metrics over HTTP on `bindAddress`; 0: off", low=0, high=65535)
    # RocketMQ's default is 50,000, with which one page of metrics could have a hundred megabytes.
    metrics_otel_cardinality_limit: int = key(
        10_000,
        "most topics, or topics with a group, that one metric shows by themselves; counters add up the others as "
        "`(others)`, and gauges leave out those with the least lag",
        low=1,
        high=INT32_MAX,
    )

    # --- access control --------------------------------------------------------------------------------------------
    authentication_enabled: bool = key(
        False, "every call is signed by a user; needs `innerClientAuthenticationCredentials`"
    )
    authorization_enabled: bool = key(
        False, "and users that are not super users need a policy for what they do; needs `authenticationEnabled`"
    )
    init_authentication_user: str = key(
        "",
        'the first super user, as `{"username":"admin","password":"..."}`; a master makes it if there is none of that '
        "name",
        secret=True,
    )
    inner_client_authentication_credentials: str = key("", INNER_CREDENTIALS_DOC, secret=True)

    # --- TLS -------------------------------------------------------------------------------------------------------
    tls_cert: Path | None = key(None, TLS_CERT_DOC)
    tls_key: Path | None = key(None, TLS_KEY_DOC)
    tls_ca: Path | None = key(None, TLS_CA_DOC)
    tls_client_auth: str = key(
        "",
        "own: the ports on which clients need a certificate of `tlsCa`: `listenPort`, `grpcServerPort`, "
        "`remotingPort`, `metricsPort`, separated by `;`",
    )
    grpc_server_tls_mode: TlsMode = key(
        TlsMode.PERMISSIVE,
        "own: with `tlsCert`, what `grpcServerPort` takes: `PERMISSIVE` plaintext and TLS, `ENFORCING` TLS only",
    )

    # --- files -----------------------------------------------------------------------------------------------------
    store_path_root_dir: Path = key(REQUIRED, "the store's directory, one per process; `~` is understood")
    mapped_file_size_commit_log: int = key(
        1 << 30, "size of a commit log file; master and slave must agree", low=1024, high=INT32_MAX
    )
    mapped_file_size_consume_queue: int = key(
        6_000_000,
        "size of a consume queue file, 20 a message; rounded up to a multiple of 20",
        low=20,
        high=INT32_MAX - 20,
    )
    message_index_enable: bool = key(True, "index message ids and keys, for queryMsgById and queryMsgByKey")
    max_hash_slot_num: int = key(5_000_000, "hash slots of an index file", low=1, high=INT32_MAX)
    max_index_num: int = key(20_000_000, "entries of an index file", low=2, high=INT32_MAX)
    physical_memory: int = key(
        0, "own: memory that the 40 % rule counts with; 0: the smaller of the machine's and the cgroup's", low=0
    )

    # --- what is kept ----------------------------------------------------------------------------------------------
    file_reserved_time: int = key(
        72, "hours that a commit log file is kept after its last write", low=0, high=INT32_MAX, runtime=True
    )
    delete_when: str = key("04", "hours of the day for deletion, `04` or `04;16`", runtime=True)
    disk_max_used_space_ratio: int = key(
        75, "disk use in percent from which expired files go at once", low=1, high=100, runtime=True
    )
    disk_space_clean_forcibly_ratio: int = key(
        85, "disk use in percent from which the oldest files go even before their time", low=1, high=100, runtime=True
    )
    disk_space_warning_level_ratio: int = key(
        90,
        "disk use in percent from which clients' messages are refused; consumers go on",
        low=1,
        high=100,
        runtime=True,
    )

    # --- flushing --------------------------------------------------------------------------------------------------
    sync_flush_timeout: int = key(5_000, "longest wait of a put for the disk", low=1, high=INT32_MAX, runtime=True)
    flush_interval_commit_log: int = key(
        500, "between two flushes of the log with `ASYNC_FLUSH`", low=1, high=INT32_MAX
    )
    flush_consume_queue_thorough_interval: int = key(
        60_000, "between two flushes of queues and index, and of the checkpoint", low=1, high=INT32_MAX
    )
    flush_consumer_offset_interval: int = key(
        5_000, "between two writes of `consumerOffset.json`", low=1, high=INT32_MAX
    )
    flush_delay_offset_interval: int = key(10_000, "between two writes of `delayOffset.json`", low=1, high=INT32_MAX)

    # --- master and slave ------------------------------------------------------------------------------------------
    slave_timeout: int = key(
        3_000, "longest wait of a put for a slave with `SYNC_MASTER`", low=1, high=INT32_MAX, runtime=True
    )
    ha_slave_fallbehind_max: int = key(
        256 << 20, "a slave further behind is not waited for (SLAVE_NOT_AVAILABLE)", low=0, high=2**62, runtime=True
    )
    ha_send_heartbeat_interval: int = key(
        5_000, "between two signs of life on an idle replication stream", low=10, high=INT32_MAX
    )
    ha_housekeeping_interval: int = key(
        20_000, "a silent replication stream is closed after this", low=100, high=INT32_MAX
    )
    # RocketMQ's 32 KiB suits its thread per connection; here every message on a stream has a price of its own, and a
    # slave takes one large message much faster than four small ones.
    ha_transfer_batch_size: int = key(4 << 20, "most log bytes in one message to a slave", low=1024, high=FRAME_BYTES)
    sync_metadata_interval: int = key(
        10_000, "own: between two snapshots of topics, groups and offsets to a slave", low=10, high=INT32_MAX
    )
    slave_wait_time_ms: int = key(
        10_000,
        "own: how long a master waits at its start for an answer of the slaves that it knows and of all name servers, "
        "which may know of a newer master, and after an unclean stop for slaves that may have what it lost, before it "
        "takes writes without them; 0: not at all",
        low=0,
        high=INT32_MAX,
    )
    register_name_server_period: int = key(
        30_000, "between two registrations with the name servers", low=100, high=60_000
    )

    # --- pulling ---------------------------------------------------------------------------------------------------
    slave_read_enable: bool = key(False, "suggest the slave to consumers that have fallen behind", runtime=True)
    strict_slave_read: bool = key(
        False, "own: a slave with `slaveReadEnable=false` refuses pulls instead of serving them", runtime=True
    )
    offset_check_in_slave: bool = key(False, "a slave corrects illegal offsets itself", runtime=True)
    access_message_in_memory_max_ratio: int = key(
        40, "percent of memory; further behind than that is slow", low=0, high=100, runtime=True
    )
    max_transfer_bytes_on_message_in_memory: int = key(
        256 << 10, "most bytes of one pull, near the end", low=1, high=FRAME_BYTES, runtime=True
    )
    max_transfer_count_on_message_in_memory: int = key(
        32, "most messages of one pull, near the end", low=1, high=65_536, runtime=True
    )
    max_transfer_bytes_on_message_in_disk: int = key(
        64 << 10, "most bytes of one pull, far behind", low=1, high=FRAME_BYTES, runtime=True
    )
    max_transfer_count_on_message_in_disk: int = key(
        8, "most messages of one pull, far behind", low=1, high=65_536, runtime=True
    )
    pull_range_max_frame_bytes: int = key(
        4 << 20, "own: most record bytes in one frame of a ranged pull", low=1024, high=FRAME_BYTES
    )
    pull_range_stream_enable: bool = key(
        True, "own: clients on this machine may read ranges and send over a Unix socket instead of gRPC"
    )
    pull_range_stream_port: int = key(
        0, "own: clients on other machines may do so over this TCP port; 0: they use gRPC", low=0, high=65_535
    )
    long_polling_enable: bool = key(True, "hold a pull until a message arrives", runtime=True)
    short_polling_time_mills: int = key(
        1_000, "how long it is held with `longPollingEnable=false`", low=0, high=60_000, runtime=True
    )
    max_long_polls: int = key(
        10_000,
        "own: most pulls held at once, and most pops (a client: a quarter); a further one gets SYSTEM_BUSY",
        low=0,
        high=INT32_MAX,
    )

    # --- topics and messages ---------------------------------------------------------------------------------------
    max_message_size: int = key(4 << 20, "longest message body", low=1, high=MAX_BODY_BYTES, runtime=True)
    message_delay_level: str = key(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "the delay levels, from level 1 on"
    )
    auto_create_topic_enable: bool = key(True, "the first message makes its topic", runtime=True)
    default_topic_queue_nums: int = key(8, "queues of a topic made so", low=1, high=65_536, runtime=True)
    auto_create_subscription_group: bool = key(True, "the first pull or commit makes its group", runtime=True)
    min_invisible_time_mills_for_recv: int = key(
        10_000,
        "shortest time that a simple consumer of RocketMQ 5 may have a message for itself",
        low=0,
        high=MAX_INVISIBLE_MS,
        runtime=True,
    )
    max_under_way_per_group: int = key(
        100_000,
        "own: most messages that one consumer group of RocketMQ 5's clients may have and not have acknowledged; "
        "further pops get TOO_MANY_REQUESTS",
        low=1,
        high=INT32_MAX,
        runtime=True,
    )
    transaction_time_out: int = key(
        6_000,
        "how long a transaction may be open before its producer is asked; a message may say otherwise for itself",
        low=1,
        high=INT32_MAX,
        runtime=True,
    )
    transaction_check_interval: int = key(
        30_000, "between two questions to the producer of an open transaction", low=1, high=INT32_MAX, runtime=True
    )
    transaction_check_max: int = key(
        15,
        "questions to a producer; then its transaction is given up: the message goes to `TRANS_CHECK_MAX_TIME_TOPIC`",
        low=1,
        high=65_535,
        runtime=True,
    )
    enable_property_filter: bool = key(
        False, "RocketMQ 5's clients may filter by SQL92 over the properties of messages", runtime=True
    )
    broker_permission: int = key(6, "6: read and write, 4: read, 2: write", one_of=(2, 4, 6), runtime=True)

    def __post_init__(self) -> None:
        check_bounds(self)
        for name, value in (("brokerName", self.broker_name), ("brokerClusterName", self.broker_cluster_name)):
            if not is_server_name(value):
                raise ConfigError(f"{name}={value}: expected {SERVER_NAME}")
        if (self.broker_role is BrokerRole.SLAVE) != (self.broker_id > 0):
            raise ConfigError(
                f"brokerRole={self.broker_role.name} with brokerId={self.broker_id}: "
                "a master has brokerId=0, a slave a higher one"
            )
        check_addresses("namesrvAddr", self.namesrv_addr)
        check_addresses("haMasterAddress", self.ha_master_address)
        check_addresses("haSlaveAddresses", self.ha_slave_addresses)
        if self.bind_address in ("0.0.0.0", "::", "[::]", "") and not self.broker_ip1:
            raise ConfigError(
                f"bindAddress={self.bind_address}: set brokerIP1 too, to the address that clients reach this broker at"
            )
        if not _hours(self.delete_when):
            raise ConfigError(f"deleteWhen={self.delete_when}: expected hours from 00 to 23, as in 04 or 04;16")
        if not _delays(self.message_delay_level):
            raise ConfigError(f"messageDelayLevel={self.message_delay_level}: expected times such as 1s 30s 5m 2h 1d")
        if 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num > INT32_MAX:
            raise ConfigError(
                f"maxHashSlotNum={self.max_hash_slot_num} with maxIndexNum={self.max_index_num}: "
                "an index file would pass 2 GiB"
            )
        check_access(self)
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError("authorizationEnabled=true: set authenticationEnabled=true, too")
        check_tls(self, ("listenPort", "grpcServerPort", "remotingPort", "metricsPort"))
        if "grpcServerPort" in self.client_auth_ports and self.grpc_server_tls_mode is not TlsMode.ENFORCING:
            raise ConfigError(
                f"tlsClientAuth={self.tls_client_auth}: with grpcServerTlsMode={self.grpc_server_tls_mode.name} "
                "clients need no TLS on grpcServerPort, and so no certificate; set grpcServerTlsMode=ENFORCING"
            )
        # As RocketMQ does it: a file holds whole entries.
        object.__setattr__(self, "mapped_file_size_consume_queue", -(-self.mapped_file_size_consume_queue // 20) * 20)

    @property
    def name_servers(self) -> tuple[str, ...]:
        return addresses_in(self.namesrv_addr)

    @property
    def slave_addresses(self) -> tuple[str, ...]:
        return addresses_in(self.ha_slave_addresses)

    @property
    def advertised_host(self) -> str:
        return self.broker_ip1 or self.bind_address

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Level 1 is at index 0."""
        return _delays(self.message_delay_level)

    @property
    def delete_hours(self) -> frozenset[int]:
        return _hours(self.delete_when)

    @property
    def address_path(self) -> Path:
        return self.address_file or self.store_path_root_dir / "rocketsim" / "address"

    def is_private(self, path: Path) -> bool:
        """Whether it is the server's user's alone: with access control whatever is in the store's directory."""
        return self.authentication_enabled and path.is_relative_to(self.store_path_root_dir)

    @property
    def grpc_address_path(self) -> Path:
        """Written with `host:port` whenever the port for RocketMQ 5's clients is opened."""
        return self.address_path.with_name(self.address_path.name + ".grpc")

    @property
    def remoting_address_path(self) -> Path:
        """Written with `host:port` once the port for RocketMQ's remoting protocol is bound."""
        return self.address_path.with_name(self.address_path.name + ".remoting")


RUNTIME_KEYS = frozenset(name for name, field in fields_by_key(BrokerConfig).items() if field.metadata["runtime"])
"""What updateBrokerConfig may change: a list of what is allowed, and never a path or an address."""


def with_updates(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """The config with these run-time keys changed; all of them or, with a ConfigError, none."""
    for name in values:
        if name not in RUNTIME_KEYS:
            reason = (
                "cannot be changed while the broker runs" if name in fields_by_key(BrokerConfig) else "is not a key"
            )
            raise ConfigError(f"{name} {reason}{did_you_mean(name, RUNTIME_KEYS)}")
    parsed, errors = parse_fields(BrokerConfig, settings_from(values, "update").values())
    if errors:
        raise ConfigError("\n".join(errors))
    return dataclasses.replace(config, **parsed)


def _hours(text: str) -> frozenset[int]:
    """The hours of `04;16`; none when one is not an hour."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not all(re.fullmatch(r"[0-9]{1,2}", part, re.ASCII) and int(part) < 24 for part in parts):
        return frozenset()
    return frozenset(map(int, parts))


def _delays(text: str) -> tuple[int, ...]:
    """The milliseconds of `1s 5m`; none when one is not a time."""
    if not all(re.fullmatch(r"[0-9]{1,9}[smhd]", part, re.ASCII) for part in text.split()):
        return ()
    return tuple(int(part[:-1]) * DELAY_UNITS_MS[part[-1]] for part in text.split())
