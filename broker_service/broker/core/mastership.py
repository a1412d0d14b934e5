"""Mastership decides whether this broker may take writes and commits of offsets.  All facts and the time are passed as
arguments.

    SLAVE ──promote──► WRITABLE ──newer epoch──► FENCED
                          ▲                        ▲
    WAITING ──ready───────┘     WAITING ───────────┘

A broker that is configured as a master starts as WAITING.  While the master was down, another broker may have been
promoted, and slaves may have records that the master has lost.  A master therefore waits for three things before it
takes writes:

1. The master waits for one answer of a name server or a slave, without a time limit.  If neither a name server nor a
slave is configured, the master does not wait for an answer.

2. If a live slave has more records of the master's last epoch than the master, the master waits until replication has
fetched the missing records from the slave (*refill*).  The wait for a refill has no time limit.

3. The master waits for the answers of all other name servers and known slaves, until `slaveWaitTimeMs` after the first
answer, because a name server may have forgotten that this master was replaced, and each slave may have been promoted.
After an unclean stop the master also waits, with the same time limit, until the slaves have connected, because slaves
may have records that the master has lost.

A master becomes FENCED as soon as an answer names a newer epoch.  A fenced master takes no more writes.  A fenced
broker can only be restarted as a slave of the new master.

For commits of offsets the master waits separately (`offsets_wait_for`), because slaves take commits while there is no
master, and the master must first get these commits.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from broker_service.broker.core.peers import LogEnd
from broker_service.errors import ServiceNotAvailable, StaleEpoch
from broker_service.modes import BrokerRole


class Standing(Enum):
    SLAVE = "slave"
    WAITING = "waiting"
    WRITABLE = "writable"
    FENCED = "fenced"


class Mastership:
    """Keeps the standing of one broker, which is SLAVE, WAITING, WRITABLE or FENCED.

    - `clean_start`: True if this broker began the log's last epoch and stopped cleanly, so that its log has the
      complete epoch.
    - `asks_others`: True if name servers or slaves are configured, so that the broker waits for an answer from one of
      them.
    - `others`: the addresses of name servers, configured slaves and known slaves.
    - `known_slaves`: the addresses, by broker id, of slaves that have followed a master of this broker name.
    - `slave_count`: the number of slaves that are configured or known.  A name server cannot tell the number of slaves,
      because it knows only those that are running, and after a power loss perhaps none is running.
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
        self.candidate_epoch = 0  # the epoch with which this slave is being promoted
        self._clean_start = clean_start
        # A SYNC_MASTER waits for its slaves, because every acknowledged record is on a slave.  An ASYNC_MASTER waits
        # for no slave, because acknowledged records may be on no slave.
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
        """Returns True if a new epoch must begin before the first write, which is the case after an unclean start and
        in a new log.
        """
        return not self._clean_start or self.epoch == 0

    # --- events -----------------------------------------------------------------------------------------------------

    def answered(self, now: float) -> None:
        """Notes that a name server or a slave has answered and knows no newer master."""
        if self._heard_at is None:
            self._heard_at = now

    def address_answered(self, address: str) -> None:
        """Notes that the name server at this address has answered, or that the slave at this address has answered and
        takes part in no promotion.
        """
        self._silent.discard(address)
        self._away.discard(address)

    def address_silent(self, address: str) -> None:
        """Notes that no slave has answered at this address."""
        self._away.add(address)

    def forget_slave(self, slave_id: int) -> None:
        """Stops waiting for a slave that an operator has removed for good."""
        address = self._known_slaves.pop(slave_id, None)
        if address is not None:
            self._silent.discard(address)
            self._awaited_slaves = max(min(1, self._awaited_slaves), self._awaited_slaves - 1)

    def slave_joined(self, slave_id: int, now: float, address: str = "") -> None:
        """Notes that a slave has connected, and that this broker already has all records that the slave had."""
        self._joined.add(slave_id)
        self.address_answered(address)
        # The slave may have connected from a new address.
        self.address_answered(self._known_slaves.get(slave_id, address))
        self.answered(now)

    def offsets_handed_back(self, slave_id: int) -> None:
        """Notes that this slave has sent all its committed offsets that are higher than this broker's."""
        self._handed_back.add(slave_id)

    def newer_epoch(self, epoch: int, by: str) -> bool:
        """Fences this master if `epoch`, which the broker or name server `by` has named, is newer than its own.
        Returns True if this call has fenced the master.
        """
        if not self.is_master or epoch <= self.epoch or self.standing is Standing.FENCED:
            return False
        self.standing = Standing.FENCED
        self.fenced_by = f"epoch {epoch} of {by}"
        return True

    def opened(self, epoch: int) -> None:
        """Starts to take writes with `epoch`, which the caller has already written to disk."""
        assert self.standing is Standing.WAITING, self.standing
        self.epoch = epoch
        self.standing = Standing.WRITABLE

    def promoted(self, role: BrokerRole, epoch: int, known_slaves: Mapping[int, str], now: float) -> None:
        """Makes a slave a master that takes writes.  The caller has already written the role and the epoch to disk.

        `known_slaves` has all slaves that are known now, including those that the former master has announced since
        this broker's start.  The known slaves may have commits of offsets that this broker lacks.
        """
        assert self.standing is Standing.SLAVE and role is not BrokerRole.SLAVE, (self.standing, role)
        self.role, self.epoch, self.standing = role, epoch, Standing.WRITABLE
        self._known_slaves = dict(known_slaves)
        self._heard_at, self._answers_for_offsets = now, False

    def change_role(self, role: BrokerRole) -> None:
        """Changes a master's role between SYNC_MASTER and ASYNC_MASTER."""
        assert self.is_master and role is not BrokerRole.SLAVE, (self.role, role)
        self.role = role

    # --- decisions --------------------------------------------------------------------------------------------------

    def waits_for(self, end_offset: int, slaves: Mapping[int, LogEnd], now: float) -> str | None:
        """Returns what a WAITING master still waits for, or None if it may take writes.  The module's docstring
        explains the reasons.

        `slaves` has the log ends of the live slaves by broker id.  A slave in an older epoch may have a longer log than
        this master.  The master does not wait for surplus records of an older epoch, because they were given up when
        this epoch began, and are cut from the slave's log.
        """
        if self._heard_at is None:
            return "no name server and no slave has answered yet"
        unheard = {slave_id: end for slave_id, end in sorted(slaves.items()) if slave_id not in self._joined}
        for slave_id, (epoch, slave_end) in unheard.items():
            if slave_end > end_offset and epoch >= self.epoch:
                return f"slave {slave_id} is at {slave_end}, ahead of {end_offset} here: its tail must be fetched first"
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
            return f"{address} has not answered since the start: it may know of a newer master, or be a newer master"
        return None

    def offsets_wait_for(self, slaves: Iterable[int], now: float) -> str | None:
        """Returns what a master still waits for before it takes commits of offsets and answers queries of offsets; None
        if it waits for nothing.

        Slaves take commits while there is no master, and may also have commits that a power loss took from the master.
        The master waits up to `slaveWaitTimeMs` until the slaves have handed back their offsets, but not for a known
        slave that does not answer.  Once this method has returned None, it always returns None.
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
        """Returns a log line that says which answers have not come in time and what may be lost, or None if all have
        come.
        """
        all_joined = slaves.keys() <= self._joined and len(self._joined) >= self._awaited_slaves
        may_lack_records = not self._clean_start and (bool(self._silent) or not all_joined)
        if not may_lack_records and not self._silent:
            return None
        found = []
        if may_lack_records:
            count = max(self._awaited_slaves, len(self._joined | slaves.keys()))
            found.append(
                f"{len(self._joined)} of {count} slaves have shown their logs after an unclean stop, so records that "
                "were lost here will be cut from the logs of the others, and kept in their rocketsim/diverged"
            )
        if self._silent:
            found.append(
                f"no answer from {', '.join(sorted(self._silent))}: if another broker was promoted meanwhile, the "
                "messages that this one acknowledges from now on without a slave are lost for consumers, and this one "
                "keeps them in its rocketsim/diverged when the two brokers meet"
            )
        return (
            f"within slaveWaitTimeMs={self._slave_wait_s * 1000:.0f} {'; '.join(found)}. Remove a slave that is gone "
            "for good with `rocketsim admin removeSlave`"
        )

    def check_writable(self, client_epoch: int = 0, waits_for: str | None = None) -> None:
        """Raises an error unless a client that knows `client_epoch` (0: no epoch) may write to this broker now."""
        if self.standing is Standing.SLAVE:
            raise ServiceNotAvailable("this broker is a slave; send to the master of its name")
        if self.standing is Standing.FENCED:
            raise StaleEpoch(f"this broker was replaced by {self.fenced_by}; ask the name server for the new master")
        if self.standing is Standing.WAITING:
            raise ServiceNotAvailable(f"this master takes no writes yet: {waits_for or 'it is starting'}")
        if client_epoch and client_epoch != self.epoch:
            raise StaleEpoch(
                f"the route names epoch {client_epoch}, but this master has epoch {self.epoch}; query the route again"
            )

    def __str__(self) -> str:
        if not self.is_master:
            return self.role.name  # no epoch is shown for a slave, because its epoch is that of its master
        fenced = f" by {self.fenced_by}" if self.standing is Standing.FENCED else ""
        return f"{self.role.name} {self.standing.value}{fenced} epoch={self.epoch}"
