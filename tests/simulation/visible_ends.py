"""Checks that a SYNC_MASTER shows only as much of its log as slaves have acknowledged, or as existed before any slave
(I11).

The check uses what masters are told on their streams and where their logs end, not what they believe is confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.network import ServerCall
    from tests.simulation.world import World


@dataclass
class _Stream:
    call: ServerCall
    has_acknowledged: bool = False

    @property
    def is_in_sync(self) -> bool:
        return self.has_acknowledged and not self.call.is_ending


@dataclass
class _Process:
    """The process of a broker.  `shown` is the highest log offset up to which any reader may have read, and `confirmed`
    is the log offset up to which a slave has acknowledged.
    """

    run: int
    shown: int = 0
    confirmed: int = 0
    streams: dict[int, _Stream] = field(default_factory=dict)  # by the slave's broker id


class VisibleEnds:
    def __init__(self, world: World) -> None:
        self._world = world
        self._processes: dict[int, _Process] = {}
        self._terms: set[tuple[int, int, object]] = set()

    def told(self, broker: Broker, call: ServerCall, message: Any) -> None:
        """Notes that the broker has received this message from a slave."""
        process = self._look(broker)
        match message.WhichOneof("kind"):
            case "handshake":
                process.streams[message.handshake.broker_id] = _Stream(call)
            case "ack" if message.ack.epoch < broker.live.epochs.epochs.last:
                pass  # The slave does not have the master's epoch yet, and will acknowledge again when it has.
            case "ack":
                for stream in process.streams.values():
                    stream.has_acknowledged |= stream.call is call
                process.confirmed = max(process.confirmed, message.ack.ack_offset)

    def term_begins(self, broker: Broker, epoch: object) -> None:
        """Notes that the broker is the master now, so that readers may see its whole log up to the present end."""
        term = broker.broker_id, broker.run, epoch
        if term not in self._terms:
            self._terms.add(term)
            process = self._look(broker)
            process.shown = max(process.shown, broker.live.store.end_offset)

    def of(self, broker: Broker) -> int:
        """Returns the log offset up to which the broker shows records.  A slave and an ASYNC_MASTER show their whole
        log.
        """
        end = broker.live.store.end_offset
        if not self._world.levels.sync_master or not broker.is_writable:
            return end
        process = self._look(broker)
        return min(end, max(process.shown, process.confirmed))

    def at_least(self, broker: Broker) -> int:
        """Returns a log offset.  If the broker is a master that takes writes, it shows at least the records before this
        offset.
        """
        end = broker.live.store.end_offset
        return min(end, self._look(broker).confirmed) if self._world.levels.sync_master else end

    def _look(self, broker: Broker) -> _Process:
        process = self._processes.get(broker.broker_id)
        if process is None or process.run != broker.run:
            process = self._processes[broker.broker_id] = _Process(broker.run)
        if not any(stream.is_in_sync for stream in process.streams.values()) and broker.serves:
            process.shown = max(process.shown, broker.live.store.end_offset)
        return process
