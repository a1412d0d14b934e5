"""May this broker take writes?  Pure: facts and the time come in, an answer and its reason go out.

    SLAVE ──promote──► WRITABLE ──newer epoch──► FENCED
                          ▲                        ▲
    WAITING ──ready───────┘     WAITING ───────────┘

A master starts WAITING.  It is ready when somebody who would know of a newer master has answered (a name server or a
slave; where neither is configured, nobody would), and when no slave has records of its epoch that it lost.  It waits a
while for everybody else: for a name server that has not forgotten, as the first one may have, that this master was
replaced, and for every slave that it knows, since each may be the master by now.  After an unclean stop it also waits
for slaves to show their logs, which may have what was lost here.  FENCED is final: the operator restarts the broker as
a slave of the new master.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from broker_service.broker.core.peers import LogEnd
from broker_service.errors import ServiceNotAvailable, StaleEpoch
from broker_service.model import BrokerRole


class Standing(Enum):
    SLAVE = "slave"
    WAITING = "waiting"
    WRITABLE = "writable"
    FENCED = "fenced"


class Mastership:
    """`clean_start`: this broker began its log's last epoch and stopped cleanly: nothing of it can be missing here.

    `asks_others`: name servers or slaves are configured.  `others` are the addresses of these and of the slaves that it
    knows (`known_slaves`, by id).  `slave_count` is how many slaves there are; a name server knows only those that are
    there already, which after a power loss of both may be none.
    """

    def __init__(
        self,
        role: BrokerRole,
        epoch: int,
        *,
        asks_others: bool,
        others: Collection[str] = (),
        known_slaves: Mapping[int, str] | None = None,
        clean_start: bool,
        slave_count: int,
        slave_wait_s: float,
        now: float,
    ) -> None:
        self.role = role
        self.epoch = epoch
        self.standing = Standing.SLAVE if role is BrokerRole.SLAVE else Standing.WAITING
        self.fenced_by = ""
        self.candidate_epoch = 0  # with which this slave is being promoted
        self._clean_start = clean_start
        # Its acknowledgements said that a slave has it, too; an asynchronous master's did not.
        self._awaited_slaves = max(1, slave_count) if role is BrokerRole.SYNC_MASTER else 0
        self._slave_wait_s = slave_wait_s
        self._heard_at = None if asks_others else now
        self._joined: set[int] = set()
        self._handed_back: set[int] = set()
        self._answers_for_offsets = role is BrokerRole.SLAVE
        self._silent = set(others)
        self._away: set[str] = set()
        self._known_slaves = dict(known_slaves or {})

    @property
    def is_master(self) -> bool:
        return self.role is not BrokerRole.SLAVE

    @property
    def begins_epoch(self) -> bool:
        """Whether the first write needs an epoch of its own: after an unclean start, and in a new log."""
        return not self._clean_start or self.epoch == 0

    # --- what happens -----------------------------------------------------------------------------------------------

    def answered(self, now: float) -> None:
        """A name server or a slave, and it knows of no newer master."""
        if self._heard_at is None:
            self._heard_at = now

    def heard(self, address: str) -> None:
        """A name server or a slave has answered, and takes part in no promotion."""
        self._silent.discard(address)
        self._away.discard(address)

    def asked_in_vain(self, address: str) -> None:
        """Nobody answers there now."""
        self._away.add(address)

    def forget_slave(self, slave_id: int) -> None:
        """An operator says that it is gone for good."""
        address = self._known_slaves.pop(slave_id, None)
        if address is not None:
            self._silent.discard(address)
            self._awaited_slaves = max(min(1, self._awaited_slaves), self._awaited_slaves - 1)

    def slave_joined(self, slave_id: int, now: float, address: str = "") -> None:
        """It has shown its log, and what it had beyond ours has been fetched."""
        self._joined.add(slave_id)
        self.heard(address)
        self.heard(self._known_slaves.get(slave_id, address))  # it may have moved
        self.answered(now)

    def offsets_handed_back(self, slave_id: int) -> None:
        """What this slave had of consumers' offsets beyond ours is here."""
        self._handed_back.add(slave_id)

    def newer_epoch(self, epoch: int, by: str) -> bool:
        """Somebody named an epoch; True if it fences this master now."""
        if not self.is_master or epoch <= self.epoch or self.standing is Standing.FENCED:
            return False
        self.standing = Standing.FENCED
        self.fenced_by = f"epoch {epoch} of {by}"
        return True

    def opened(self, epoch: int) -> None:
        """The log is ours to write from now on; `epoch` is on disk."""
        assert self.standing is Standing.WAITING, self.standing
        self.epoch = epoch
        self.standing = Standing.WRITABLE

    def promoted(self, role: BrokerRole, epoch: int, known_slaves: Mapping[int, str], now: float) -> None:
        """A slave became a master; role and epoch are on disk.  Another slave may have what was committed last: of
        those that are known now, its master has told of them since the start.
        """
        assert self.standing is Standing.SLAVE and role is not BrokerRole.SLAVE, (self.standing, role)
        self.role, self.epoch, self.standing = role, epoch, Standing.WRITABLE
        self._known_slaves = dict(known_slaves)
        self._heard_at, self._answers_for_offsets = now, False

    def change_role(self, role: BrokerRole) -> None:
        """An operator changes what the OK of this master means."""
        assert self.is_master and role is not BrokerRole.SLAVE, (self.role, role)
        self.role = role

    # --- what follows -----------------------------------------------------------------------------------------------

    def waits_for(self, end_offset: int, slaves: Mapping[int, LogEnd], now: float) -> str | None:
        """What a WAITING master waits for, given its log's end and the live slaves' (by id); None: nothing.

        It waits without bound for what it will fetch: the tail of its own last epoch.  What a slave of an older epoch
        has beyond its log was left behind when this epoch began, as by a promotion that was forced, and is cut there.
        """
        if self._heard_at is None:
            return "no name server and no slave has answered yet"
        unheard = {slave_id: end for slave_id, end in sorted(slaves.items()) if slave_id not in self._joined}
        for slave_id, (epoch, slave_end) in unheard.items():
            if slave_end > end_offset and epoch >= self.epoch:
                return (
                    f"slave {slave_id} is at {slave_end}, ahead of {end_offset} here: its tail is to be fetched first"
                )
        if now >= self._heard_at + self._slave_wait_s:
            return None
        if not self._clean_start:
            for slave_id in unheard:
                return f"slave {slave_id} is alive and may have records that were lost here"
            if len(self._joined) < self._awaited_slaves:
                return (
                    f"{len(self._joined)} of {self._awaited_slaves} slaves have shown their logs after an unclean "
                    "stop: the others may have records that were lost here"
                )
        for address in sorted(self._silent):
            return f"{address} has not answered since the start: it may know of a newer master, or be it"
        return None

    def offsets_wait_for(self, slaves: Iterable[int], now: float) -> str | None:
        """What a master waits for before it takes commits and says where they stand; None: nothing, from then on.

        A slave takes commits while there is no master, also after a clean stop, and has what a power loss took here.
        One that this master knows is waited for until it was asked in vain.
        """
        if self._answers_for_offsets:
            return None
        if self._heard_at is None:
            return "no name server and no slave has answered yet"
        if now < self._heard_at + self._slave_wait_s:
            known = {slave_id for slave_id, address in self._known_slaves.items() if address not in self._away}
            for slave_id in sorted((known | set(slaves)) - self._handed_back):
                return f"slave {slave_id} may have committed offsets that are not here"
            if not self._clean_start and len(self._handed_back) < self._awaited_slaves:
                return f"{len(self._handed_back)} of {self._awaited_slaves} slaves have handed back committed offsets"
        self._answers_for_offsets = True
        return None

    def misses(self, slaves: Mapping[int, LogEnd]) -> str | None:
        """Whom a master that waits for nothing any more has waited for in vain, and what is lost then; None: nobody."""
        all_joined = slaves.keys() <= self._joined and len(self._joined) >= self._awaited_slaves
        may_lack_records = not self._clean_start and (bool(self._silent) or not all_joined)
        if not may_lack_records and not self._silent:
            return None
        found = []
        if may_lack_records:
            count = max(self._awaited_slaves, len(self._joined | slaves.keys()))
            found.append(
                f"{len(self._joined)} of {count} slaves have shown their logs after an unclean stop, and what was lost "
                "here and another has will be cut there, and kept in its rocketsim/diverged"
            )
        if self._silent:
            found.append(
                f"no answer from {', '.join(sorted(self._silent))}: if another broker was promoted meanwhile, the "
                "messages that this one acknowledges from now on without a slave are lost for consumers when it hears "
                "of that, and kept in rocketsim/diverged here"
            )
        return (
            f"within slaveWaitTimeMs={self._slave_wait_s * 1000:.0f} {'; '.join(found)}. A slave that is gone for good "
            "is forgotten with `rocketsim admin removeSlave`"
        )

    def check_writable(self, client_epoch: int = 0, waits_for: str | None = None) -> None:
        """Raises unless a client that knows `client_epoch` (0: none) may write here now."""
        if self.standing is Standing.SLAVE:
            raise ServiceNotAvailable("this broker is a slave; send to the master of its name")
        if self.standing is Standing.FENCED:
            raise StaleEpoch(f"this broker was replaced by {self.fenced_by}; ask the name server for the new master")
        if self.standing is Standing.WAITING:
            raise ServiceNotAvailable(f"this master takes no writes yet: {waits_for or 'it is starting'}")
        if client_epoch and client_epoch != self.epoch:
            raise StaleEpoch(
                f"the route names epoch {client_epoch}, this master is of epoch {self.epoch}; ask again for the route"
            )

    def __str__(self) -> str:
        if not self.is_master:
            return self.role.name  # its epoch is its master's, and in its log
        fenced = f" by {self.fenced_by}" if self.standing is Standing.FENCED else ""
        return f"{self.role.name} {self.standing.value}{fenced} epoch={self.epoch}"
