"""Tracks what each slave has acknowledged, and the confirm offset that follows from it.

Pure: no clock, no event loop, no sockets.

A slave is *in sync* once it has acknowledged something on its present connection and is less than `fall_behind_max`
bytes behind.  One slave confirms: the confirm offset is the furthest ack there ever was, and it never falls, because a
slave that disconnects keeps its bytes.
"""

from dataclasses import dataclass

from broker_service.errors import RocketSimError


class AckRefused(RocketSimError):
    """An impossible ack.  It was not recorded; its stream must be closed."""


@dataclass(slots=True)
class SlaveProgress:
    """One connection of one slave.  `ack_offset` is None until its first ack: the end it reports may not be synced."""

    slave_id: int
    connection: int
    address: str
    end_offset: int
    ack_offset: int | None = None
    metadata_sequence: int | None = None  # of the changes it has; None until it reports one (old versions never do)

    def describe(self, master_end_offset: int) -> str:
        behind = master_end_offset - (self.ack_offset or 0)
        return f"slave-{self.slave_id} ack={self.ack_offset} behind={behind}B"


class Tracker:
    def __init__(self, fall_behind_max: int) -> None:
        self.fall_behind_max = fall_behind_max
        self.slaves: dict[int, SlaveProgress] = {}
        self.confirm_offset = 0
        self.confirmed_sequence = 0  # of changed metadata
        self._shown_offset = 0  # what consumers may have seen already; what is visible never falls below it
        self._connections = 0

    def begin(self, master_end: int) -> None:
        """A term as master begins: only acks of current connections count from here on."""
        self.confirm_offset = max((slave.ack_offset or 0 for slave in self.slaves.values()), default=0)
        self.confirmed_sequence = max((slave.metadata_sequence or 0 for slave in self.slaves.values()), default=0)
        self._shown_offset = master_end

    def shown(self, end_offset: int) -> None:
        """Consumers may have seen everything up to there, although no slave has confirmed it."""
        self._shown_offset = max(self._shown_offset, end_offset)

    def join(self, slave_id: int, address: str, slave_end: int, master_end: int) -> SlaveProgress:
        """A new connection of a slave; it replaces the older one, whose acks are ignored from here on."""
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
        """Record an ack; True if it moved the confirm offset.  Raises AckRefused for one beyond the master's end."""
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
        """Record that a slave has all changes up to there; True if it is the first that has."""
        if not self.is_current(slave):
            return False
        slave.metadata_sequence = max(sequence, slave.metadata_sequence or 0)
        if sequence <= self.confirmed_sequence:
            return False
        self.confirmed_sequence = sequence
        return True

    def takes_metadata(self) -> bool:
        """Whether a slave is connected that reports which changes it has."""
        return any(slave.metadata_sequence is not None for slave in self.slaves.values())

    def is_in_sync(self, slave: SlaveProgress, end_offset: int) -> bool:
        """Whether this slave counts for a put that ends at `end_offset`."""
        return slave.ack_offset is not None and end_offset - slave.ack_offset < self.fall_behind_max

    def is_slave_available(self, end_offset: int) -> bool:
        """Table D4's condition for SLAVE_NOT_AVAILABLE, for a put that ends at `end_offset`."""
        return any(self.is_in_sync(slave, end_offset) for slave in self.slaves.values())

    def have_all(self, end_offset: int) -> bool:
        """Whether every slave that has acknowledged anything has acknowledged the log up to there."""
        return all(slave.ack_offset is None or slave.ack_offset >= end_offset for slave in self.slaves.values())

    def visible_offset(self, master_end: int) -> int | None:
        """What consumers of a SYNC_MASTER may see: up to here, or, while no slave is in sync, everything (None).

        NB: it never moves back, not even when a slave that is behind comes into sync.
        """
        self._note_shown(master_end)
        if not self.is_slave_available(master_end):
            return None
        self._shown_offset = max(self._shown_offset, self.confirm_offset)
        return self._shown_offset

    def _note_shown(self, master_end: int) -> None:
        """While no slave is in sync, consumers see everything."""
        if not self.is_slave_available(master_end):
            self.shown(master_end)

    def describe(self, master_end: int) -> str:
        slaves = [self.slaves[slave_id].describe(master_end) for slave_id in sorted(self.slaves)]
        return " | ".join([f"master end={master_end} confirm={self.confirm_offset}", *(slaves or ["no slave"])])
