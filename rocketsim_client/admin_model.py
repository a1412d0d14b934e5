"""The dataclasses that the operator's client takes and returns.  The fields have mqadmin's names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocketsim_client.model import CommitStatus, MessageQueue


class ChangedAt(list[str]):
    """The addresses of the brokers that have made a change.  `statuses` says for each address which brokers have
    stored the change."""

    def __init__(self, statuses: Mapping[str, CommitStatus]) -> None:
        super().__init__(statuses)
        self.statuses: dict[str, CommitStatus] = dict(statuses)


class SlavesLeft(dict[int, str]):
    """The slaves that a broker still knows after one of them was removed: broker id -> address.  `commit_status` says
    which brokers have stored that the slave was removed."""

    def __init__(self, addresses: Mapping[int, str], commit_status: CommitStatus) -> None:
        super().__init__(addresses)
        self.commit_status = commit_status


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings on one broker.  `perm` is 4 to read, 2 to write, 6 for both.  `commit_status` says which
    brokers have stored the change.  If the broker is a SYNC_MASTER, COMMIT_OK means that a slave has the change,
    too."""

    topic_name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = 6  # 4 to read, 2 to write
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    commit_status: CommitStatus = field(default=CommitStatus.UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """A group's settings on one broker.  Consumers normally read from broker id `broker_id`, and from
    `which_broker_when_consume_slowly` when they fall behind.

    `group_retry_policy` is RocketMQ's JSON for the times after which a message that was not acknowledged is delivered
    again.  An empty policy means RocketMQ's default.  `commit_status` says which brokers have stored the change.  If
    the broker is a SYNC_MASTER, COMMIT_OK means that a slave has the change, too.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    group_retry_policy: str = ""
    commit_status: CommitStatus = field(default=CommitStatus.UNSAID, compare=False)


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One broker process as the name server knows it.  `role` is ASYNC_MASTER, SYNC_MASTER or SLAVE, or empty if the
    broker's version does not report its role."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    epoch: int
    role: str = ""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """The first offset and exclusive end of one queue, and when its last message was stored (ms since 1970; 0 if it
    has no message)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_timestamp: int


@dataclass(frozen=True, slots=True)
class ConsumeProgress:
    """A group's progress in one queue, from the broker with `broker_id` (0 is the master).  A reset raises the offset's
    `generation`.  If two brokers report different offsets, the one with the higher generation counts.  `lag` is `diff`
    as the broker counts it, or None if the broker's version does not report it."""

    group: str
    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    broker_id: int
    generation: int = 0
    lag: int | None = None

    @property
    def diff(self) -> int:
        """The lag: how many messages the group has not yet acknowledged or committed."""
        return self.lag if self.lag is not None else max(0, self.broker_offset - self.consumer_offset)


@dataclass(frozen=True, slots=True)
class GroupClient:
    """A client that has consumed with a group lately, as a broker saw it.

    `way` is `pop` for a consumer, `commit` for a reader of queues such as Spark, and `heartbeat` for RocketMQ 4's
    clients.  `last_ms_ago` says how many milliseconds ago the broker saw the client.  `messages` is how far the
    client's last commit moved the group's offsets at this broker.
    """

    client_id: str
    way: str
    last_ms_ago: int
    messages: int
    broker_name: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class ResetOffset:
    """The result of a reset in one queue: the new offset, the previous one (-1 if the group had none), and which
    brokers have stored the new one."""

    queue: MessageQueue
    offset: int
    previous: int
    status: CommitStatus = CommitStatus.UNSAID  # says which brokers have stored the offset


@dataclass(frozen=True, slots=True)
class HaSlave:
    """A slave as its master sees it: which log offset it has acknowledged, and how many bytes it is behind."""

    address: str
    broker_id: int
    ack_offset: int
    diff_bytes: int
    in_sync: bool
    transfer_bytes_per_second: int
    transfer_from_where: int


@dataclass(frozen=True, slots=True)
class HaEpoch:
    """A leader epoch: the time in which one master appended without interruption.  `start_offset` is the log offset
    of the epoch's first byte."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class HaCut:
    """Bytes that a broker has cut off its log, because its master's log does not have them.  The broker keeps them in
    the folder `rocketsim/diverged` of its store.  `offset` is the log offset of the first byte, `size` the number of
    bytes, and `timestamp` the time of the cut in milliseconds since 1970."""

    offset: int
    size: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class HaStatus:
    """The replication of one broker: the end of its log, how far the log is flushed and confirmed, and a master's
    slaves.  `epochs` are the leader epochs of the broker's log, and `cuts` what the broker has cut off its log and
    kept: each oldest first, and at most the newest 100.  A broker of an older version sends no epochs and no cuts."""

    address: str
    is_master: bool
    epoch: int
    master_address: str
    commit_log_max_offset: int
    confirm_offset: int
    master_flush_offset: int
    slaves: Sequence[HaSlave]
    state: str
    epochs: Sequence[HaEpoch] = ()
    cuts: Sequence[HaCut] = ()


@dataclass(frozen=True, slots=True)
class Forfeit:
    """The bytes of log that only this broker has, and loses when it follows the new master.  `bytes` is None if the
    number is not known."""

    broker_id: int
    address: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Promotion:
    """A new master, its epoch, the log offset where the epoch begins, and what other brokers lose by the promotion."""

    address: str
    epoch: int
    start_offset: int
    forfeits: tuple[Forfeit, ...] = ()
    broker_role: str = ""
    flush_disk_type: str = ""
    former_role: str = ""

    @property
    def is_weaker(self) -> bool:
        """True if the promotion changed the broker from a SYNC_MASTER to an ASYNC_MASTER, so that `SEND_OK` no longer
        means that a slave has the message."""
        return (self.former_role, self.broker_role) == ("SYNC_MASTER", "ASYNC_MASTER")


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user of access control.  `commit_status` says which brokers have stored the change."""

    username: str
    user_type: str = "Normal"  # or Super
    user_status: str = "enable"  # or disable
    commit_status: CommitStatus = CommitStatus.UNSAID


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """What a user may do with a resource.  `resource` is Topic:name, Group:prefix* or Cluster:*. `actions` are one or
    more of Pub, Sub, Create, Update, Delete, Get, List and All.  `source_ips` are addresses and networks, and an empty
    tuple means all addresses.  `decision` is Allow or Deny."""

    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...] = ()
    decision: str = "Allow"


@dataclass(frozen=True, slots=True)
class AclInfo:
    """The policies of one user, whose name is written `User:name` in `subject`."""

    subject: str
    policies: tuple[AclPolicy, ...]
    commit_status: CommitStatus = CommitStatus.UNSAID
