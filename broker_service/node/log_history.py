"""LogHistory tells the table of consumer offsets where the log ends, and if an earlier point belongs to the log's
history.
"""

from broker_service.replication.epoch_file import EpochFile
from broker_service.store.message_store import MessageStore
from broker_service.store.offset_journal import LogPoint


class LogHistory:
    """The history of the log, for the generations of consumer offsets.

    A reset, for example, raises the generation of an offset.  The table of consumer offsets stores the point of the log
    at which a generation was raised.
    """

    def __init__(self, epochs: EpochFile, store: MessageStore) -> None:
        self._epochs = epochs
        self._store = store

    def end(self) -> LogPoint:
        epochs = self._epochs.epochs
        return LogPoint(epochs.last, epochs.last_id, self._store.end_offset)

    def has_passed(self, point: LogPoint) -> bool:
        return self._epochs.epochs.has_passed(*point)
