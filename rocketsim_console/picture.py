"""A picture is the state of the cluster at one moment: its brokers and what they have answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rocketsim_client.admin_model import ClusterMember, HaCut, HaSlave, HaStatus

State = Literal["master", "slave", "silent", "away"]
Level = Literal["ok", "warning", "critical"]

# The name of a chart -> the counter in `brokerStatus`.
COUNTERS = {"in": "putMessageTimesTotal", "out": "getMessageTimesTotal"}


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker process.  `ha` and `status` are the broker's answers.  If the broker did not answer, `ha` is None,
    `status` is empty, and `trouble` says why.  `registered` says that the name server knows the broker.  `cuts` are
    those of the broker's last answer, or None if the broker has not answered yet.
    """

    name: str
    broker_id: int
    address: str
    cluster: str
    registered: bool = True
    ha: HaStatus | None = None
    status: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""
    cuts: Sequence[HaCut] | None = None

    @property
    def state(self) -> State:
        """Returns `silent` for a broker that is registered and does not answer, and `away` for one that was seen before
        and is not registered.
        """
        if self.ha is not None:
            return "master" if self.ha.is_master else "slave"
        return "silent" if self.registered else "away"

    @property
    def writable(self) -> bool:
        """True if clients may send to the broker."""
        return self.status.get("brokerActive") == "true"

    @property
    def epoch(self) -> int:
        return self.ha.epoch if self.ha is not None else 0

    def counter(self, name: str) -> int | None:
        """Returns one of COUNTERS, counted since the start of the broker.  Returns None if the
        broker did not answer.
        """
        value = self.status.get(COUNTERS[name])
        return int(value) if value is not None and value.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Pair:
    """The brokers with the same broker name.  `summary` is a sentence about the state of these brokers."""

    name: str
    brokers: tuple[Broker, ...]
    level: Level
    summary: str

    @property
    def master(self) -> Broker | None:
        """The broker that answers as master, or None.  If several brokers answer as master, one that takes sends is
        preferred, and among these the one with the newest epoch.
        """
        return _master(self.brokers)


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at one moment.  `trouble` is a sentence if a broker refused the access keys, or if the name server
    did not answer.  If the name server did not answer, `brokers` are the brokers of the previous picture.
    """

    at_ms: int
    brokers: tuple[Broker, ...] = ()
    trouble: str = ""

    def pairs(self) -> list[Pair]:
        """Returns the pairs, sorted by broker name."""
        names: dict[str, list[Broker]] = {}
        for broker in self.brokers:
            names.setdefault(broker.name, []).append(broker)
        return [_pair(name, tuple(brokers)) for name, brokers in sorted(names.items())]

    def by_address(self) -> dict[str, Broker]:
        return {broker.address: broker for broker in self.brokers}


def members_of(registered: list[ClusterMember], before: Picture) -> list[Broker]:
    """Returns the brokers to ask: registered brokers, and brokers that were seen before."""
    brokers = {
        member.address: Broker(member.broker_name, member.broker_id, member.address, member.cluster_name)
        for member in registered
    }
    for known in before.brokers:
        brokers.setdefault(
            known.address, Broker(known.name, known.broker_id, known.address, known.cluster, registered=False)
        )
    return sorted(brokers.values(), key=lambda broker: (broker.name, broker.broker_id, broker.address))


def slave_of(master: Broker | None, broker: Broker) -> HaSlave | None:
    """Returns what the master knows about the slave.  Returns None if the slave does not follow this master."""
    if master is None or master.ha is None:
        return None
    of_address = (slave for slave in master.ha.slaves if slave.address == broker.address)
    return next(of_address, None)


def _master(brokers: tuple[Broker, ...]) -> Broker | None:
    masters = [broker for broker in brokers if broker.state == "master"]
    return max(masters, key=lambda broker: (broker.writable, broker.epoch), default=None)


def _pair(name: str, brokers: tuple[Broker, ...]) -> Pair:
    level, summary = _standing(brokers)
    return Pair(name, brokers, level, summary)


def _standing(brokers: tuple[Broker, ...]) -> tuple[Level, str]:
    master = _master(brokers)
    if master is None:
        serving = [broker.address for broker in brokers if broker.state == "slave"]
        if serving:
            return "critical", f"No master answers. Consumers read from {', '.join(serving)}; sends are refused."
        return "critical", "No broker of this name answers."
    if not master.writable:
        reason = master.status.get("notWritable") or (master.ha.state if master.ha is not None else "")
        return "critical", f"The master {master.address} takes no sends: {reason}"
    others = [broker for broker in brokers if broker is not master]
    if missing := [broker for broker in others if broker.state in ("away", "silent")]:
        return "warning", f"{', '.join(broker.address for broker in missing)} does not answer."
    followers = [(broker, slave_of(master, broker)) for broker in others]
    if late := [broker.address for broker, slave in followers if slave is None or not slave.in_sync]:
        return "warning", f"{', '.join(late)} is not in sync with the master."
    if not others:
        return "warning", "The master has no slave."
    return "ok", "The master takes sends, and all slaves are in sync."
