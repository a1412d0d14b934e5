"""BrokerConfig is the configuration of a broker process, which is loaded and checked once, at the start.

Field names are RocketMQ's keys in snake_case.  The defaults are RocketMQ's; for any other default, a comment gives the
reason.  The description of a key that RocketMQ does not have starts with "own:".  Durations are in milliseconds and
sizes in bytes, as in RocketMQ.
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
    INT32_MAX,
    SharedKeys,
    addresses_in,
    check_access,
    check_addresses,
    check_tls,
)
from broker_service.errors import ConfigError
from broker_service.modes import BrokerRole, FlushDiskType, GrpcServerLibrary, HaMasterProtocol, TlsMode
from broker_service.names import SERVER_NAME, is_server_name

DELAY_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(SharedKeys):
    """The configuration of one broker process."""

    # --- identity --------------------------------------------------------------------------------------------------
    broker_cluster_name: str = key(
        "DefaultCluster",
        "the name of the cluster, the same on master and slave; lists, metrics and policies for `Cluster:` use it",
    )
    broker_name: str = key(REQUIRED, "the name that a master shares with its slaves, and with no other broker")
    broker_id: int = key(0, "0 for the master of its `brokerName`, 1 or more for a slave", low=0, high=INT32_MAX)
    broker_role: BrokerRole = key(
        BrokerRole.ASYNC_MASTER,
        "`ASYNC_MASTER`, `SYNC_MASTER` (a put waits for a slave) or `SLAVE`; a running master can change between the "
        "first two",
        runtime=True,
    )
    flush_disk_type: FlushDiskType = key(
        FlushDiskType.ASYNC_FLUSH,
        "`ASYNC_FLUSH` or `SYNC_FLUSH` (a put waits for the disk; a slave follows its master's setting)",
        runtime=True,
    )

    # --- addresses -------------------------------------------------------------------------------------------------
    namesrv_addr: str = key("", "name servers, `host:port;host:port`; without one, clients cannot find this broker")
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
    grpc_server_library: GrpcServerLibrary = key(
        GrpcServerLibrary.grpcio,
        "own: the library that serves `grpcServerPort`. `pygrpc_native`: a server in Rust, which takes about half of "
        "the CPU. It has no TLS and limits neither connections nor the memory of requests, so it is for networks "
        "whose clients are trusted, with `tlsTestModeEnable=false` and without `authenticationEnabled`",
    )
    remoting_port: int = key(
        -1,
        "own: the port for RocketMQ's remoting protocol, which RocketMQ 4's clients, mqadmin and RocketMQ's dashboard "
        "use; they find it through a name server that also has a `remotingPort`. 0: any free one, -1: none",
        low=-1,
        high=65535,
    )
    remoting_vip_channel: bool = key(
        False,
        "own: also open RocketMQ's VIP channel, the port two below `remotingPort`. RocketMQ's dashboard and its "
        "clients before 4.5 use this port unless they are told otherwise",
    )
    # Loopback, because access control is off by default: an operator must decide to open the port to a network.
    bind_address: str = key("127.0.0.1", "the address that the broker listens on; the default is loopback")
    broker_ip1: str = key("", "the address told to clients and brokers, `bindAddress` by default", name="brokerIP1")
    ha_master_address: str = key(
        "", "for a slave: the address of its master, `host:port`; if empty, the slave asks the name servers"
    )
    ha_master_protocol: HaMasterProtocol = key(
        HaMasterProtocol.rocketsim,
        "own: for a slave: the kind of its master. `rocketmq`: an Apache RocketMQ 4.9 or 5 without controller mode; "
        "`haMasterAddress` is then the address of its `listenPort`, and "
        "`innerClientAuthenticationCredentials` signs the requests to it",
    )
    ha_slave_addresses: str = key(
        "",
        "own: for a master: its slaves, `host:port;host:port`; at its start it asks them, as it asks name servers, "
        "whether it was replaced, and waits for the answers of all",
    )
    address_file: Path | None = key(
        None, "own: the file to which the broker writes `host:port` of its port; default `<root>/rocketsim/address`"
    )
    metrics_port: int = key(0, "own: Prometheus metrics over HTTP on `bindAddress`; 0: off", low=0, high=65535)
    # With RocketMQ's default of 50,000 one page of metrics could have a hundred megabytes.
    metrics_otel_cardinality_limit: int = key(
        10_000,
        "the limit of topics, or pairs of topic and group, that one metric shows; a counter shows the sum of the "
        "others as `(others)`, and a gauge leaves out those with the least lag",
        low=1,
        high=INT32_MAX,
    )

    # --- access control --------------------------------------------------------------------------------------------
    authentication_enabled: bool = key(
        False, "every call needs the signature of a user; requires `innerClientAuthenticationCredentials`"
    )
    authorization_enabled: bool = key(
        False, "a user that is not a super user needs a policy for each action; requires `authenticationEnabled`"
    )
    init_authentication_user: str = key(
        "",
        'the first super user, as `{"username":"admin","password":"..."}`; a master creates it unless a user of that '
        "name exists",
        secret=True,
    )

    # --- TLS -------------------------------------------------------------------------------------------------------
    tls_client_auth: str = key(
        "",
        "own: the ports on which clients need a certificate from `tlsCa`: `listenPort`, `grpcServerPort`, "
        "`remotingPort`, `metricsPort`, separated by `;`",
    )
    grpc_server_tls_mode: TlsMode = key(
        TlsMode.PERMISSIVE,
        "own: the connections that `grpcServerPort` accepts with `tlsCert`: `PERMISSIVE` for plaintext and TLS, "
        "`ENFORCING` for TLS only",
    )
    tls_test_mode_enable: bool = key(
        True,
        "without `tlsCert` the broker makes a certificate for itself, and `grpcServerPort` accepts both plaintext and "
        "TLS, as RocketMQ's proxy does; nobody can check that certificate. `false`: plaintext only",
    )

    # --- files -----------------------------------------------------------------------------------------------------
    store_path_root_dir: Path = key(REQUIRED, "the store's directory, one per process; it may begin with `~`")
    mapped_file_size_commit_log: int = key(
        1 << 30, "size of a commit log file; master and slave must agree", low=1024, high=INT32_MAX
    )
    mapped_file_size_consume_queue: int = key(
        6_000_000,
        "size of a consume queue file, with 20 bytes for each message; rounded up to a multiple of 20",
        low=20,
        high=INT32_MAX - 20,
    )
    message_index_enable: bool = key(True, "index message ids and keys, for queryMsgById and queryMsgByKey")
    max_hash_slot_num: int = key(5_000_000, "hash slots of an index file", low=1, high=INT32_MAX)
    max_index_num: int = key(20_000_000, "entries of an index file", low=2, high=INT32_MAX)
    physical_memory: int = key(
        0,
        "own: the memory that `accessMessageInMemoryMaxRatio` is a percentage of; 0: the machine's memory, or its "
        "cgroup's if that is smaller",
        low=0,
    )

    # --- retention -------------------------------------------------------------------------------------------------
    file_reserved_time: int = key(
        72, "hours that a commit log file is kept after its last write", low=0, high=INT32_MAX, runtime=True
    )
    delete_when: str = key("04", "the hours of the day when expired files are deleted, `04` or `04;16`", runtime=True)
    disk_max_used_space_ratio: int = key(
        75, "disk use in percent from which expired files are deleted at once", low=1, high=100, runtime=True
    )
    disk_space_clean_forcibly_ratio: int = key(
        85,
        "disk use in percent from which the oldest files are deleted even before they expire",
        low=1,
        high=100,
        runtime=True,
    )
    disk_space_warning_level_ratio: int = key(
        90,
        "disk use in percent from which messages of clients are refused; consumers continue to read",
        low=1,
        high=100,
        runtime=True,
    )

    # --- flushing --------------------------------------------------------------------------------------------------
    sync_flush_timeout: int = key(5_000, "longest wait of a put for the disk", low=1, high=INT32_MAX, runtime=True)
    flush_interval_commit_log: int = key(
        500, "time between two flushes of the log with `ASYNC_FLUSH`", low=1, high=INT32_MAX
    )
    flush_consume_queue_thorough_interval: int = key(
        60_000, "time between two flushes of queues, index and checkpoint", low=1, high=INT32_MAX
    )
    flush_consumer_offset_interval: int = key(
        5_000, "time between two writes of `consumerOffset.json`", low=1, high=INT32_MAX
    )
    flush_delay_offset_interval: int = key(
        10_000, "time between two writes of `delayOffset.json`", low=1, high=INT32_MAX
    )

    # --- master and slave ------------------------------------------------------------------------------------------
    slave_timeout: int = key(
        3_000, "longest wait of a put for a slave with `SYNC_MASTER`", low=1, high=INT32_MAX, runtime=True
    )
    ha_slave_fallbehind_max: int = key(
        256 << 20,
        "a put does not wait for a slave that is further behind than this (SLAVE_NOT_AVAILABLE)",
        low=0,
        high=2**62,
        runtime=True,
    )
    ha_send_heartbeat_interval: int = key(
        5_000, "time between two heartbeats on an idle replication stream", low=10, high=INT32_MAX
    )
    ha_housekeeping_interval: int = key(
        20_000, "time after which a silent replication stream is closed", low=100, high=INT32_MAX
    )
    # RocketMQ's default of 32 KiB suits a server with a thread for each connection.  In gRPC each message of a stream
    # has a fixed cost, and a slave receives one large message much faster than four small ones.
    ha_transfer_batch_size: int = key(4 << 20, "most log bytes in one message to a slave", low=1024, high=FRAME_BYTES)
    sync_metadata_interval: int = key(
        10_000, "own: time between two snapshots of topics, groups and offsets to a slave", low=10, high=INT32_MAX
    )
    slave_wait_time_ms: int = key(
        10_000,
        "own: how long a starting master waits for its known slaves and all name servers, one of which may know a "
        "newer master; after an unclean stop it waits for slaves that may have messages that it lost. Then it takes "
        "writes without them. 0: it does not wait",
        low=0,
        high=INT32_MAX,
    )
    register_name_server_period: int = key(
        30_000, "time between two registrations with the name servers", low=100, high=60_000
    )

    # --- pulling ---------------------------------------------------------------------------------------------------
    slave_read_enable: bool = key(False, "a consumer that has fallen far behind is directed to the slave", runtime=True)
    strict_slave_read: bool = key(
        False, "own: a slave with `slaveReadEnable=false` refuses pulls instead of serving them", runtime=True
    )
    offset_check_in_slave: bool = key(False, "a slave corrects illegal offsets itself", runtime=True)
    access_message_in_memory_max_ratio: int = key(
        40,
        "a consumer is far behind if the end of the log is ahead of it by more than this percentage of the memory",
        low=0,
        high=100,
        runtime=True,
    )
    max_transfer_bytes_on_message_in_memory: int = key(
        256 << 10,
        "most bytes of one pull of a consumer that is not far behind",
        low=1,
        high=FRAME_BYTES,
        runtime=True,
    )
    max_transfer_count_on_message_in_memory: int = key(
        32, "most messages of one pull of a consumer that is not far behind", low=1, high=65_536, runtime=True
    )
    max_transfer_bytes_on_message_in_disk: int = key(
        64 << 10, "most bytes of one pull of a consumer that is far behind", low=1, high=FRAME_BYTES, runtime=True
    )
    max_transfer_count_on_message_in_disk: int = key(
        8, "most messages of one pull of a consumer that is far behind", low=1, high=65_536, runtime=True
    )
    pull_range_max_frame_bytes: int = key(
        4 << 20, "own: most record bytes in one frame of a ranged pull", low=1024, high=FRAME_BYTES
    )
    pull_range_stream_enable: bool = key(
        True,
        "own: clients may read ranges and send, and slaves follow, over a Unix socket or pullRangeStreamPort",
    )
    pull_range_stream_port: int = key(
        0,
        "own: clients on other machines may read ranges and send, and slaves follow, over this TCP port; 0: none",
        low=0,
        high=65_535,
    )
    long_polling_enable: bool = key(True, "a pull that finds no message waits until one arrives", runtime=True)
    short_polling_time_mills: int = key(
        1_000,
        "how long a pull that finds no message waits with `longPollingEnable=false`",
        low=0,
        high=60_000,
        runtime=True,
    )
    max_long_polls: int = key(
        10_000,
        "own: most pulls, and most pops, that may wait for a message at once; one client may have a quarter of the "
        "pops. A further call gets SYSTEM_BUSY",
        low=0,
        high=INT32_MAX,
    )

    # --- topics and messages ---------------------------------------------------------------------------------------
    max_message_size: int = key(4 << 20, "longest message body", low=1, high=MAX_BODY_BYTES, runtime=True)
    message_delay_level: str = key(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "the delay levels, from level 1 on"
    )
    auto_create_topic_enable: bool = key(True, "the first message to a topic creates the topic", runtime=True)
    default_topic_queue_nums: int = key(8, "queues of a topic that a message creates", low=1, high=65_536, runtime=True)
    auto_create_subscription_group: bool = key(
        True, "the first pull or commit of a group creates the group", runtime=True
    )
    min_invisible_time_mills_for_recv: int = key(
        10_000,
        "shortest invisible time that a simple consumer of RocketMQ 5 may ask for",
        low=0,
        high=MAX_INVISIBLE_MS,
        runtime=True,
    )
    max_under_way_per_group: int = key(
        100_000,
        "own: most messages that one consumer group may have received by pops and not acknowledged; further pops get "
        "TOO_MANY_REQUESTS",
        low=1,
        high=INT32_MAX,
        runtime=True,
    )
    transaction_time_out: int = key(
        6_000,
        "how long a transaction may be open before the broker asks its producer; a message may set another time",
        low=1,
        high=INT32_MAX,
        runtime=True,
    )
    transaction_check_interval: int = key(
        30_000, "time between two questions to the producer of an open transaction", low=1, high=INT32_MAX, runtime=True
    )
    transaction_check_max: int = key(
        15,
        "the number of questions after which a transaction is given up: its message is moved to "
        "`TRANS_CHECK_MAX_TIME_TOPIC`",
        low=1,
        high=65_535,
        runtime=True,
    )
    enable_property_filter: bool = key(
        False, "consumers may filter by SQL92 over the properties of messages", runtime=True
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
        if self.follows_rocketmq and self.broker_role is BrokerRole.SLAVE and not self.ha_master_address:
            raise ConfigError(
                "haMasterProtocol=rocketmq: set haMasterAddress, too, to host:port of the RocketMQ master's listenPort"
            )
        if self.bind_address in ("0.0.0.0", "::", "[::]", "") and not self.broker_ip1:
            raise ConfigError(
                f"bindAddress={self.bind_address}: set brokerIP1, too, to the address that clients reach this broker at"
            )
        if not self.delete_hours:
            raise ConfigError(f"deleteWhen={self.delete_when}: expected hours from 00 to 23, as in 04 or 04;16")
        if not _delays(self.message_delay_level):
            raise ConfigError(f"messageDelayLevel={self.message_delay_level}: expected times such as 1s 30s 5m 2h 1d")
        if 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num > INT32_MAX:
            raise ConfigError(
                f"maxHashSlotNum={self.max_hash_slot_num} with maxIndexNum={self.max_index_num}: "
                "an index file would be larger than 2 GiB; lower one of them"
            )
        check_access(self)
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError("authorizationEnabled=true: set authenticationEnabled=true, too")
        check_tls(self, ("listenPort", "grpcServerPort", "remotingPort", "metricsPort"))
        if self.remoting_vip_channel and self.remoting_port in (1, 2):
            raise ConfigError(f"remotingPort={self.remoting_port} must be at least 3 with remotingVipChannel=true")
        if "grpcServerPort" in self.client_auth_ports and self.grpc_server_tls_mode is not TlsMode.ENFORCING:
            raise ConfigError(
                f"tlsClientAuth={self.tls_client_auth}: with grpcServerTlsMode={self.grpc_server_tls_mode.name} "
                "clients may connect to grpcServerPort without TLS, and so without a certificate; set "
                "grpcServerTlsMode=ENFORCING"
            )
        is_plain = self.tls_cert is None and not self.tls_test_mode_enable and not self.authentication_enabled
        if self.serves_natively and not is_plain:
            raise ConfigError(
                "grpcServerLibrary=pygrpc_native serves grpcServerPort without TLS and without access control; set "
                "tlsTestModeEnable=false and neither tlsCert nor authenticationEnabled, or set "
                "grpcServerLibrary=grpcio"
            )
        # A file holds whole entries, as in RocketMQ.
        object.__setattr__(self, "mapped_file_size_consume_queue", -(-self.mapped_file_size_consume_queue // 20) * 20)

    @property
    def name_servers(self) -> tuple[str, ...]:
        return addresses_in(self.namesrv_addr)

    @property
    def slave_addresses(self) -> tuple[str, ...]:
        return addresses_in(self.ha_slave_addresses)

    @property
    def follows_rocketmq(self) -> bool:
        """True if the master of this slave is an Apache RocketMQ."""
        return self.ha_master_protocol is HaMasterProtocol.rocketmq

    @property
    def advertised_host(self) -> str:
        return self.broker_ip1 or self.bind_address

    @property
    def makes_certificate(self) -> bool:
        """True if the broker makes a certificate for `grpcServerPort` itself."""
        return self.tls_cert is None and self.tls_test_mode_enable and self.grpc_server_port >= 0

    @property
    def serves_natively(self) -> bool:
        """True if the library in Rust serves `grpcServerPort`."""
        return self.grpc_server_port >= 0 and self.grpc_server_library is GrpcServerLibrary.pygrpc_native

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the day, from 0 to 23, in which expired files are deleted."""
        return _hours(self.delete_when)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delays of the delay levels; level 1 is at index 0."""
        return _delays(self.message_delay_level)

    @property
    def address_path(self) -> Path:
        return self.address_file or self.store_path_root_dir / "rocketsim" / "address"

    def is_private(self, path: Path) -> bool:
        """True if only the user of the process may read the file.

        With access control, all files in the store's directory are private.
        """
        return self.authentication_enabled and path.is_relative_to(self.store_path_root_dir)

    @property
    def grpc_address_path(self) -> Path:
        """The file with `host:port` of the port for RocketMQ 5's clients, written whenever that port is opened."""
        return self.address_path.with_name(self.address_path.name + ".grpc")

    @property
    def remoting_address_path(self) -> Path:
        """The file with `host:port` of the port for RocketMQ's remoting protocol, written when that port is bound."""
        return self.address_path.with_name(self.address_path.name + ".remoting")


RUNTIME_KEYS = frozenset(name for name, field in fields_by_key(BrokerConfig).items() if field.metadata["runtime"])
"""The keys that updateBrokerConfig may change; paths and addresses are never among them."""


def with_updates(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """Returns the configuration with these run-time keys changed.  After a ConfigError no key is changed."""
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
    """Parses `04;16`; returns an empty set if a part is not an hour of the day."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not all(re.fullmatch(r"[0-9]{1,2}", part, re.ASCII) and int(part) < 24 for part in parts):
        return frozenset()
    return frozenset(map(int, parts))


def _delays(text: str) -> tuple[int, ...]:
    """Parses `1s 5m` to milliseconds; returns an empty tuple if a part is not a time."""
    if not all(re.fullmatch(r"[0-9]{1,9}[smhd]", part, re.ASCII) for part in text.split()):
        return ()
    return tuple(int(part[:-1]) * DELAY_UNITS_MS[part[-1]] for part in text.split())
