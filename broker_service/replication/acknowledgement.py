"""Acknowledgements lets puts and commits wait until they are safe.  All code of this module runs on the event loop.

The settings `brokerRole` and `flushDiskType` say what an OK to a producer means.  With SYNC_FLUSH a put waits for the
master's disk, with SYNC_MASTER for a slave.  A put waits for disk and slave at the same time.  `put_waits` makes the
two `Wait` objects of a put.  One flush, or one ack of a slave, ends all puts that it covers, and no put waits for
another.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from broker_service.errors import SystemBusy
from broker_service.put_result import PutStatus
from broker_service.replication.pending_puts import NO_WAIT, PendingPut, PendingPuts, Wait
from broker_service.replication.tracker import SlaveProgress, Tracker

logger = logging.getLogger(__name__)

CATCH_UP_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class AckLevels:
    """The settings that say what a put waits for, and how long.

    A change of role or configuration replaces the object.
    """

    sync_master: bool
    sync_flush: bool
    sync_flush_timeout_s: float = 5.0
    slave_timeout_s: float = 3.0
    max_pending: int = 10_000  # puts that may wait at one time; limits the memory while a slave does not answer


def put_waits(
    levels: AckLevels, tracker: Tracker, flushed_offset: int, end_offset: int, now: float, timeout_s: float
) -> tuple[Wait, Wait]:
    """Makes the (flush, replica) waits of a put that ends at `end_offset` and may wait `timeout_s`.  Pure."""
    flush = replica = NO_WAIT
    if levels.sync_flush and end_offset > flushed_offset:
        flush = Wait(None, now + min(levels.sync_flush_timeout_s, timeout_s))
    if levels.sync_master and end_offset > tracker.confirm_offset:
        replica = _slave_wait(levels, tracker.is_slave_available(end_offset), now, timeout_s)
    return flush, replica


def commit_waits(
    levels: AckLevels, tracker: Tracker, sequence: int, end_offset: int, now: float, timeout_s: float
) -> tuple[Wait, Wait]:
    """Returns what a commit of offsets waits for: the slaves' logs (replica) and their tables (metadata).  The slaves
    get the commit as the change with the number `sequence`.  Pure.

    The committed offset can cover any record up to `end_offset`, so the commit also waits until a slave has these
    records.  A slave with the offset but without the records would have to lower the offset when it is promoted.
    """
    replica = put_waits(levels, tracker, end_offset, end_offset, now, timeout_s)[1]
    metadata = metadata_wait(levels, tracker, sequence, now, timeout_s) if levels.sync_master else NO_WAIT
    return replica, metadata


def change_waits(
    levels: AckLevels,
    tracker: Tracker,
    sequence: int,
    flushed_offset: int,
    end_offset: int,
    now: float,
    timeout_s: float,
    *,
    in_any_mode: bool,
) -> tuple[Wait, Wait, Wait]:
    """Makes the (flush, replica, metadata) waits of an operator's change.  Pure.  Slaves get the change under the
    number `sequence`.

    An operator's change waits as a commit does.  A change that has also appended to the log, up to `end_offset`, waits
    for the appended records as a put does.  With `in_any_mode`, the change waits until a slave has the metadata, even
    if the broker is no SYNC_MASTER.
    """
    flush, replica = put_waits(levels, tracker, flushed_offset, end_offset, now, timeout_s)
    waits_for_slave = levels.sync_master or in_any_mode
    metadata = metadata_wait(levels, tracker, sequence, now, timeout_s) if waits_for_slave else NO_WAIT
    return flush, replica, metadata


def metadata_wait(levels: AckLevels, tracker: Tracker, sequence: int, now: float, timeout_s: float) -> Wait:
    """Makes the wait until a slave has change number `sequence`, whatever the broker's role.  Pure."""
    if sequence <= tracker.confirmed_sequence:
        return NO_WAIT
    return _slave_wait(levels, tracker.takes_metadata(), now, timeout_s)


def _slave_wait(levels: AckLevels, is_available: bool, now: float, timeout_s: float) -> Wait:
    if not is_available:
        return Wait(PutStatus.SLAVE_NOT_AVAILABLE)
    return Wait(None, now + min(levels.slave_timeout_s, timeout_s))


class LogEnds(Protocol):
    """The two log offsets that acknowledgements need, which `MessageStore` has."""

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...


class Flushes(Protocol):
    """The receiver of requests for flushes, which is `Flusher`."""

    def request(self, offset: int) -> None:
        """Requests a flush after which everything up to `offset` is on disk."""


class Readers(Protocol):
    """The receiver of the offset up to which consumers may see the log, which is `Visibility`."""

    def changed(self, visible_offset: int | None) -> None:
        """Called when the end up to which consumers may see the log has moved; None means the end of the log."""


class Acknowledgements:
    """The puts and commits that wait, with their futures."""

    def __init__(self, levels: AckLevels, tracker: Tracker, log: LogEnds, flusher: Flushes, readers: Readers) -> None:
        self.levels = levels
        self.tracker = tracker
        self._log = log
        self._flusher = flusher
        self._readers = readers
        self._visible: int | None = None
        self._pending = PendingPuts()
        self._futures: dict[PendingPut, asyncio.Future[PutStatus]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def confirm_offset(self) -> int:
        return self.tracker.confirm_offset

    @property
    def makes_puts_wait(self) -> bool:
        """True if a put waits for the disk or for a slave."""
        return self.levels.sync_flush or self.levels.sync_master

    def change_levels(self, levels: AckLevels) -> None:
        """Sets the levels for later puts.  Records that consumers could see stay visible."""
        if levels.sync_master and not self.levels.sync_master:
            self.tracker.shown(self._log.end_offset)
        self.levels = levels
        self._update_visible()

    def check_room(self) -> None:
        """Raises SystemBusy while too many puts wait already; to be called before an append or a commit."""
        if len(self._pending) >= self.levels.max_pending:
            raise SystemBusy(
                f"{len(self._pending)} puts and commits wait for a disk or a slave already; send again in a moment"
            )

    async def wait(self, end_offset: int, timeout_s: float) -> PutStatus:
        """Waits for a put that was just appended, up to `end_offset`; returns its status after `timeout_s` at most."""
        if not self.makes_puts_wait:
            return PutStatus.PUT_OK
        return await self._end_of(self.admit(end_offset, asyncio.get_running_loop().time(), timeout_s))

    async def wait_for_commit(self, sequence: int, timeout_s: float) -> PutStatus:
        """Waits for a commit that was just made, and that slaves get as the change with the number `sequence`.

        The wait takes `timeout_s` at most, and returns the status of the commit.
        """
        if not self.levels.sync_master:
            return PutStatus.PUT_OK
        return await self._end_of(self.admit_commit(sequence, asyncio.get_running_loop().time(), timeout_s))

    async def wait_for_change(self, sequence: int, timeout_s: float, *, in_any_mode: bool) -> PutStatus:
        """Waits for an operator's change that was just made, and that slaves get as the change with the number
        `sequence`.

        The wait takes `timeout_s` at most, and returns the status of the change.  With `in_any_mode`, the change waits
        for a slave even if the broker is no SYNC_MASTER.
        """
        now = asyncio.get_running_loop().time()
        return await self._end_of(self.admit_change(sequence, now, timeout_s, in_any_mode=in_any_mode))

    async def _end_of(self, put: PendingPut) -> PutStatus:
        if put.status is not None:
            return put.status
        future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self._futures[put] = future
        self._arm()
        try:
            return await future
        finally:
            self._futures.pop(put, None)  # a later flush or ack ignores puts that have ended

    def admit(self, end_offset: int, now: float, timeout_s: float) -> PendingPut:
        """Registers a put, so that a flush or an ack can end it.  If there is nothing to wait for, the returned put
        already has its status.
        """
        waits = put_waits(self.levels, self.tracker, self._log.flushed_offset, end_offset, now, timeout_s)
        return self._flushing(self._pending.add(end_offset, *waits))

    def admit_commit(self, sequence: int, now: float, timeout_s: float) -> PendingPut:
        """Registers a commit, so that an ack can end it.  If there is nothing to wait for, the returned put already has
        its status.
        """
        end_offset = self._log.end_offset
        replica, metadata = commit_waits(self.levels, self.tracker, sequence, end_offset, now, timeout_s)
        return self._pending.add(end_offset, replica=replica, metadata=metadata, sequence=sequence)

    def admit_change(self, sequence: int, now: float, timeout_s: float, *, in_any_mode: bool) -> PendingPut:
        """Registers an operator's change, so that flushes and acks can end it.

        If there is nothing to wait for, the returned put already has its status.
        """
        end_offset = self._log.end_offset
        offsets = self._log.flushed_offset, end_offset
        waits = change_waits(self.levels, self.tracker, sequence, *offsets, now, timeout_s, in_any_mode=in_any_mode)
        return self._flushing(self._pending.add(end_offset, *waits, sequence=sequence))

    def _flushing(self, put: PendingPut) -> PendingPut:
        """Requests a flush if the put waits for one, and returns the put."""
        if put.flush.status is None:
            self._flusher.request(put.end_offset)
        return put

    def on_flushed(self, offset: int) -> None:
        self._resolve(self._pending.on_flushed(offset))

    def begin(self) -> None:
        """Starts a term as master, before the first write; discards what was confirmed in an earlier term."""
        self.tracker.begin(self._log.end_offset)
        self._update_visible()

    def on_join(self, slave_id: int, address: str, slave_end: int) -> SlaveProgress:
        slave = self.tracker.join(slave_id, address, slave_end, self._log.end_offset)
        self._update_visible()
        return slave

    def on_leave(self, slave: SlaveProgress) -> None:
        """Removes a slave's connection.  Puts keep waiting, since the slave may reconnect before their deadline."""
        self.tracker.leave(slave)
        self._update_visible()

    def on_ack(self, slave: SlaveProgress, ack_offset: int) -> None:
        """Records an ack and ends the puts that it covers.  Raises AckRefused for an ack beyond the log's end."""
        if self.tracker.ack(slave, ack_offset, self._log.end_offset):
            self._resolve(self._pending.on_confirmed(self.tracker.confirm_offset))
        self._update_visible()

    def on_metadata_ack(self, slave: SlaveProgress, sequence: int) -> None:
        if self.tracker.ack_metadata(slave, sequence):
            self._resolve(self._pending.on_metadata(self.tracker.confirmed_sequence))

    def expire(self, now: float) -> None:
        """Ends the puts whose deadline has passed."""
        self._resolve(self._pending.expire(now))
        self._update_visible()

    def abandon(self) -> None:
        """Ends every waiting put as if its time had run out; called at shutdown, when no flush or ack follows."""
        self._resolve(self._pending.expire(float("inf")))

    async def slaves_caught_up(self, within_s: float) -> bool:
        """Waits up to `within_s` until every connected slave has all of the log; returns True if they have."""
        until = asyncio.get_running_loop().time() + within_s
        while not self.tracker.have_all(self._log.end_offset):
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(CATCH_UP_LOOK_S)
        return True

    def _resolve(self, puts: list[PendingPut]) -> None:
        for put in puts:
            future = self._futures.get(put)
            if future is not None and not future.done():
                future.set_result(_status(put))

    def _arm(self) -> None:
        deadline = self._pending.next_deadline()
        if deadline is None or (self._timer is not None and self._timer.when() <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.expire(asyncio.get_running_loop().time())
        self._arm()

    def _update_visible(self) -> None:
        visible = self.tracker.visible_offset(self._log.end_offset) if self.levels.sync_master else None
        if visible != self._visible:
            self._visible = visible
            self._readers.changed(visible)

    def __str__(self) -> str:
        waiting = len(self._pending)
        puts = f"{waiting} put{'' if waiting == 1 else 's'} waiting"
        return f"{self.tracker.describe(self._log.end_offset)} | flushed={self._log.flushed_offset} | {puts}"


def _status(put: PendingPut) -> PutStatus:
    assert put.status is not None
    return put.status
