"""Tracker records what each slave has acknowledged, and derives the confirm offset.

The class is pure: it uses no clock, no event loop and no sockets.

A slave is *in sync* once it has acknowledged something on its current connection and is less than `fall_behind_max`
bytes behind.  The ack of one slave is enough to confirm records, so the confirm offset is the highest ack of this term
as master.  The confirm offset never falls, because a slave that disconnects keeps its bytes.
"""

from dataclasses import dataclass

from broker_service.errors import RocketSimError


class AckRefused(RocketSimError):
    """An impossible ack, which was not recorded; the stream of the slave must be closed."""


@dataclass(slots=True)
class SlaveProgress:
    """One connection of one slave.

    `ack_offset` is None until the first ack, because the end that the handshake reports may not be synced.
    """

    slave_id: int
    connection: int
    address: str
    end_offset: int
    ack_offset: int | None = None
    # the slave's last change; None until the slave reports one (old versions never do)
    metadata_sequence: int | None = None

    def describe(self, master_end_offset: int) -> str:
        behind = master_end_offset - (self.ack_offset or 0)
        return f"slave-{self.slave_id} ack={self.ack_offset} behind={behind}B"


class Tracker:
    def __init__(self, fall_behind_max: int) -> None:
        self.fall_behind_max = fall_behind_max
        self.slaves: dict[int, SlaveProgress] = {}
        self.confirm_offset = 0
        self.confirmed_sequence = 0  # the last change of metadata that a slave has
        self._shown_offset = 0  # consumers may have seen the log up to here, so the visible end never falls below it
        self._connections = 0

    def begin(self, master_end: int) -> None:
        """Begins a term as master; only acks of current connections count from now on."""
        self.confirm_offset = max((slave.ack_offset or 0 for slave in self.slaves.values()), default=0)
        self.confirmed_sequence = max((slave.metadata_sequence or 0 for slave in self.slaves.values()), default=0)
        self._shown_offset = master_end

    def shown(self, end_offset: int) -> None:
        """Records that consumers may have seen everything up to this offset, even without a slave's confirmation."""
        self._shown_offset = max(self._shown_offset, end_offset)

    def join(self, slave_id: int, address: str, slave_end: int, master_end: int) -> SlaveProgress:
        """Adds a new connection of a slave; it replaces an older one, whose acks are ignored from now on."""
        self._note_shown(master_end)
        self._connections += 1
        slave = SlaveProgress(slave_id, self._connections, address, slave_end)
        self.slaves[slave_id] = slave
        return slave

    def leave(self, slave: SlaveProgress) -> None:
        if self.is_current(slave):
            del self.slaves[slave.slave_id]

    def is_current(self, slave: SlaveProgress) -> bool:
        return self.slaves.get(slave.slave_id) is slave

    def ack(self, slave: SlaveProgress, ack_offset: int, master_end: int) -> bool:
        """Records an ack; returns True if it raises the confirm offset.

        Raises AckRefused for an ack beyond the master's end.
        """
        if not 0 <= ack_offset <= master_end:
            raise AckRefused(f"ack {ack_offset} is outside of this log, which ends at {master_end}")
        if not self.is_current(slave):
            return False
        self._note_shown(master_end)
        slave.ack_offset = max(ack_offset, slave.ack_offset or 0)
        if ack_offset <= self.confirm_offset:
            return False
        self.confirm_offset = ack_offset
        return True

    def ack_metadata(self, slave: SlaveProgress, sequence: int) -> bool:
        """Records that a slave has all changes up to `sequence`; returns True if no slave had them before."""
        if not self.is_current(slave):
            return False
        slave.metadata_sequence = max(sequence, slave.metadata_sequence or 0)
        if sequence <= self.confirmed_sequence:
            return False
        self.confirmed_sequence = sequence
        return True

    def takes_metadata(self) -> bool:
        """Returns True if a slave is connected that reports which changes it has."""
        return any(slave.metadata_sequence is not None for slave in self.slaves.values())

    def is_in_sync(self, slave: SlaveProgress, end_offset: int) -> bool:
        """Returns True if this slave is in sync for a put that ends at `end_offset`."""
        return slave.ack_offset is not None and end_offset - slave.ack_offset < self.fall_behind_max

    def is_slave_available(self, end_offset: int) -> bool:
        """Returns False if a put that ends at `end_offset` must be answered with SLAVE_NOT_AVAILABLE (table D4)."""
        return any(self.is_in_sync(slave, end_offset) for slave in self.slaves.values())

    def have_all(self, end_offset: int) -> bool:
        """Returns True if every slave that has sent an ack has acknowledged the log up to `end_offset`."""
        return all(slave.ack_offset is None or slave.ack_offset >= end_offset for slave in self.slaves.values())

    def visible_offset(self, master_end: int) -> int | None:
        """Returns the offset up to which consumers of a SYNC_MASTER may see the log.

        While no slave is in sync, the result is None, which means all of the log.  The visible end never moves back,
        not even when a slave that is behind comes into sync.
        """
        self._note_shown(master_end)
        if not self.is_slave_available(master_end):
            return None
        self._shown_offset = max(self._shown_offset, self.confirm_offset)
        return self._shown_offset

    def _note_shown(self, master_end: int) -> None:
        """Marks the whole log as shown to consumers if no slave is in sync, because consumers then see all of it."""
        if not self.is_slave_available(master_end):
            self.shown(master_end)

    def describe(self, master_end: int) -> str:
        slaves = [self.slaves[slave_id].describe(master_end) for slave_id in sorted(self.slaves)]
        return " | ".join([f"master end={master_end} confirm={self.confirm_offset}", *(slaves or ["no slave"])])
