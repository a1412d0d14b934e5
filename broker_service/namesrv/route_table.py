"""RouteTable has the live brokers and their topics, from which it makes routes.

This module is pure: `now_ms` is an argument, and nothing here uses gRPC, an event loop or generated code.

    broker name ─┬─ newest epoch seen        (kept without any live broker, to refuse a master that was replaced)
                 ├─ topics                   (of the last master, or of a slave whose master is a RocketMQ)
                 └─ broker id ─► Member      (address, epoch, end offset, connection, last seen)

A member is removed when its connection ends, when it unregisters, or when it has been silent for too long.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rocketsim_proto.reserved import MASTER_ID

PERM_READ, PERM_WRITE = 4, 2


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """The part of a route that describes one topic on one broker name."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    message_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    epoch: int = 0
    end_offset: int = 0
    topics: Mapping[str, TopicQueues] = field(default_factory=dict)
    broker_permission: int = PERM_READ | PERM_WRITE
    writable: bool = True
    v2_address: str = ""
    broker_role: str = ""
    wire_version: int = 0
    remoting_address: str = ""
    groups: frozenset[str] = frozenset()
    follows_rocketmq: bool = False  # a slave whose master registers only at RocketMQ's name servers


@dataclass(slots=True)
class Member:
    registration: Registration
    connection: object  # any hashable that identifies a connection
    last_seen_ms: int

    def __str__(self) -> str:
        broker = self.registration
        return (
            f"{broker.broker_name} id {broker.broker_id} at {broker.address}, "
            f"epoch {broker.epoch}, end {broker.end_offset}"
        )


@dataclass(slots=True)
class BrokerSet:
    """All brokers of one name."""

    cluster_name: str = ""
    newest_epoch: int = 0
    topics: Mapping[str, TopicQueues] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()  # from the same broker as `topics`
    permission: int = PERM_READ | PERM_WRITE
    write_wiped: bool = False
    members: dict[int, Member] = field(default_factory=dict)

    @property
    def is_writable(self) -> bool:
        """Returns True if a live master takes writes, and no operator has wiped the write permission."""
        master = self.members.get(MASTER_ID)
        return master is not None and master.registration.writable and not self.write_wiped

    def queues_of(self, topic: str) -> TopicQueues | None:
        queues = self.topics.get(topic)
        if queues is None or not self.members:
            return None
        perm = queues.perm & (self.permission | 1)  # bit 0 ("may be inherited") stays, because TBW102 needs it
        return replace(queues, perm=perm if self.is_writable else perm & ~PERM_WRITE)

    @property
    def v2_address(self) -> str:
        """Returns the address of the master's port for RocketMQ 5's clients; empty without such a port."""
        master = self.members.get(MASTER_ID)
        return master.registration.v2_address if master is not None else ""


class RouteTable:
    def __init__(self, expire_ms: int = 120_000) -> None:
        self._expire_ms = expire_ms
        self._brokers: dict[str, BrokerSet] = {}

    def register(self, new: Registration, connection: object, now_ms: int) -> str:
        """Records a registration; returns the reason if it is refused, else "".

        If several masters have the same name, the one with the higher epoch wins.  Two masters with the same epoch, or
        two slaves with the same id, are processes with the same configuration: the first of them stays registered as
        long as it lives.
        """
        brokers = self._brokers.setdefault(new.broker_name, BrokerSet())
        if new.broker_id == MASTER_ID and new.epoch < brokers.newest_epoch:
            # The master of the older epoch may have been registered before the newer epoch was seen.
            self._remove(new.broker_name, lambda member: member.connection is connection)
            master = brokers.members.get(MASTER_ID)
            where = f"its master is {master.registration.address}" if master else "its master is away"
            return (
                f"{new.broker_name} is at epoch {brokers.newest_epoch}, this master at {new.address} still at "
                f"{new.epoch}; {where}"
            )
        present = brokers.members.get(new.broker_id)
        if present is not None and present.registration.address != new.address:
            newer_master = new.broker_id == MASTER_ID and new.epoch > present.registration.epoch
            if not newer_master:
                return (
                    f"{new.broker_name} id {new.broker_id} is already registered at {present.registration.address}, "
                    f"epoch {present.registration.epoch}; {new.address} must not have the same brokerName and brokerId"
                )
        # Remove the former entry of a slave that was promoted or got another id.
        self._remove(
            new.broker_name,
            lambda member: (
                (member.connection is connection or member.registration.address == new.address)
                and member.registration.broker_id != new.broker_id
            ),
        )
        brokers.members[new.broker_id] = Member(new, connection, now_ms)
        brokers.newest_epoch = max(brokers.newest_epoch, new.epoch)
        if new.broker_id == MASTER_ID or (new.follows_rocketmq and MASTER_ID not in brokers.members):
            brokers.topics, brokers.permission = new.topics, new.broker_permission
            brokers.groups = new.groups
        if new.broker_id == MASTER_ID or not brokers.cluster_name:
            brokers.cluster_name = new.cluster_name
        return ""

    def unregister(self, broker_name: str, connection: object) -> list[Member]:
        return self._remove(broker_name, lambda member: member.connection is connection)

    def connection_lost(self, connection: object) -> list[Member]:
        """Removes the brokers of this connection.  A broker that has registered again on another connection is not
        removed.
        """
        return self._remove_everywhere(lambda member: member.connection is connection)

    def expire(self, now_ms: int) -> list[Member]:
        return self._remove_everywhere(lambda member: now_ms - member.last_seen_ms >= self._expire_ms)

    def members(self, broker_name: str) -> list[Registration]:
        """Returns all live brokers of a name, ordered by id."""
        brokers = self._brokers.get(broker_name)
        return [brokers.members[broker_id].registration for broker_id in sorted(brokers.members)] if brokers else []

    def newest_epoch(self, broker_name: str) -> int:
        brokers = self._brokers.get(broker_name)
        return brokers.newest_epoch if brokers else 0

    def route(self, topic: str) -> dict[str, TopicQueues]:
        """Returns the topic's queues by broker name, for each name that has the topic and a live broker."""
        return {name: queues for name, brokers in self.live().items() if (queues := brokers.queues_of(topic))}

    def topics(self) -> list[str]:
        return sorted({topic for brokers in self.live().values() for topic in brokers.topics})

    def live(self) -> dict[str, BrokerSet]:
        """Returns the broker names with a live broker, in order."""
        return {name: self._brokers[name] for name in sorted(self._brokers) if self._brokers[name].members}

    def wipe_write_perm(self, broker_name: str) -> int:
        """Takes the write permission from a broker name; returns the number of this name's topics.

        Producers stop sending to brokers of this name once they query the route again.  The effect lasts until
        `add_write_perm`, whatever the broker registers, or until no broker of the name is left.
        """
        return self._set_write_wiped(broker_name, True)

    def add_write_perm(self, broker_name: str) -> int:
        return self._set_write_wiped(broker_name, False)

    def _set_write_wiped(self, broker_name: str, wiped: bool) -> int:
        brokers = self.live().get(broker_name)
        if brokers is None:
            return 0
        brokers.write_wiped = wiped
        return len(brokers.topics)

    def _remove_everywhere(self, is_gone: Callable[[Member], bool]) -> list[Member]:
        return [member for name in list(self._brokers) for member in self._remove(name, is_gone)]

    def _remove(self, broker_name: str, is_gone: Callable[[Member], bool]) -> list[Member]:
        brokers = self._brokers.get(broker_name)
        if brokers is None:
            return []
        gone = [member for member in brokers.members.values() if is_gone(member)]
        for member in gone:
            del brokers.members[member.registration.broker_id]
        if not brokers.members:
            brokers.write_wiped = False
        return gone

    def __str__(self) -> str:
        """For example `broker-a epoch=3 0@host:1 1@host:2 topics=4 | broker-b ...`."""
        return " | ".join(
            f"{name} epoch={brokers.newest_epoch} "
            + " ".join(
                f"{broker_id}@{member.registration.address}" for broker_id, member in sorted(brokers.members.items())
            )
            + f" topics={len(brokers.topics)}"
            + (" write permission wiped" if brokers.write_wiped else "")
            for name, brokers in self.live().items()
        )
