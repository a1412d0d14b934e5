"""May this broker take writes?  Pure: facts and the time come in, an answer and its reason go out.

    SLAVE ──promote──► WRITABLE ──newer epoch──► FENCED
                          ▲                        ▲
    WAITING ──ready───────┘     WAITING ───────────┘

A master starts WAITING.  It is ready when somebody who would know of a newer master has answered (a name server or a
slave; where there is no name server, nobody would), and when no live slave has records that it lost.  FENCED is final:
the operator restarts the broker as a slave of the new master.
"""

from collections.abc import Mapping
from enum import Enum

from broker_service.errors import ServiceNotAvailable, StaleEpoch
from broker_service.model import BrokerRole


class Standing(Enum):
    SLAVE = "slave"
    WAITING = "waiting"
    WRITABLE = "writable"
    FENCED = "fenced"


class Mastership:
    """`clean_start`: this broker began its log's last epoch and stopped cleanly: nothing of it can be missing here."""

    def __init__(
        self, role: BrokerRole, epoch: int, *, asks_name_servers: bool, clean_start: bool, slave_wait_s: float
    ) -> None:
        self.role = role
        self.epoch = epoch
        self.standing = Standing.SLAVE if role is BrokerRole.SLAVE else Standing.WAITING
        self.fenced_by = ""
        self._asks_name_servers = asks_name_servers
        self._clean_start = clean_start
        self._slave_wait_s = slave_wait_s
        self._heard_at: float | None = None
        self._joined: set[int] = set()

    @property
    def is_master(self) -> bool:
        return self.role is not BrokerRole.SLAVE

    @property
    def begins_epoch(self) -> bool:
        """Whether the first write needs an epoch of its own: after an unclean start, and in a new log."""
        return not self._clean_start or self.epoch == 0

    # --- what happens -----------------------------------------------------------------------------------------------

    def name_server_answered(self, now: float) -> None:
        if self._heard_at is None:
            self._heard_at = now

    def slave_joined(self, slave_id: int, now: float) -> None:
        """It has shown its log, and what it had beyond ours has been fetched."""
        self._joined.add(slave_id)
        self.name_server_answered(now)

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

    def promoted(self, role: BrokerRole, epoch: int) -> None:
        """A slave became a master; role and epoch are on disk."""
        assert self.standing is Standing.SLAVE and role is not BrokerRole.SLAVE, (self.standing, role)
        self.role, self.epoch, self.standing = role, epoch, Standing.WRITABLE

    # --- what follows -----------------------------------------------------------------------------------------------

    def waits_for(self, end_offset: int, slaves: Mapping[int, int], now: float) -> str | None:
        """What a WAITING master waits for, given its log's end and the live slaves' (id -> end); None: nothing."""
        if self._asks_name_servers and self._heard_at is None:
            return "no name server and no slave has answered yet"
        for slave_id, slave_end in sorted(slaves.items()):
            if slave_id in self._joined:
                continue
            if slave_end > end_offset:
                return (
                    f"slave {slave_id} is at {slave_end}, ahead of {end_offset} here: its tail is to be fetched first"
                )
            if not self._clean_start and self._heard_at is not None and now < self._heard_at + self._slave_wait_s:
                return f"slave {slave_id} is alive and may have records that were lost here"
        return None

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
        fenced = f" by {self.fenced_by}" if self.standing is Standing.FENCED else ""
        return f"{self.role.name} {self.standing.value}{fenced} epoch={self.epoch}"
