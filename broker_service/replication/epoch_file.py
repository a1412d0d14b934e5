"""EpochFile is `rocketsim/epochs.json`, which has the epochs of this broker's log.

An epoch is on disk before its first byte is appended.  The file has no backup copy: with an older list the broker would
assign a part of its log to another master.
"""

from pathlib import Path
from typing import Any

from broker_service.errors import StoreCorrupt
from broker_service.replication.epochs import Epoch, EpochList
from broker_service.replication.promise import Promise
from broker_service.store.files import Files
from broker_service.store.json_file import decoded, encoded


class EpochFile:
    """The content of `rocketsim/epochs.json`.

    - `epochs`: the log's epochs.  A log that existed before the file, such as RocketMQ's, has epoch 0.
    - `begun_here`: this broker began the last epoch itself, so the log was not copied from another broker.
    - `may_resume`: this broker began the last epoch and has not lost a byte of it since, so it may continue the epoch.
    - `is_noted`: the file has the same content as this object.
    - `promised`: the promise of this slave to a candidate; None once the slave's log has the promised epoch.

    An epoch that a promotion began is valid only if the role on disk (`role_file.py`) is master, or if the epoch has
    bytes.  A failed promotion, which has not saved the role master, is therefore undone without a write, even on a full
    disk.  A slave ignores an epoch that is not valid, and uses the list from before the promotion.  The list from
    before the promotion keeps even epochs without bytes, because this broker recognises replaced masters by their
    epochs.
    """

    def __init__(self, path: Path, log_end_offset: int, files: Files | None = None) -> None:
        self._path = path
        self._files = files or Files()
        self.may_resume, self.begun_here = False, True
        self.is_noted = True
        # `epochs` and `begun_here` before the promotion that began the last epoch; None if no promotion began it.
        self._before: tuple[EpochList, bool] | None = None
        # kept even when the log has the promised epoch, since the promotion to that epoch may be undone
        self._promise: Promise | None = None
        self.epochs = self._load(log_end_offset)

    @property
    def promised(self) -> Promise | None:
        return self._promise if self._promise is not None and self._promise.epoch > self.epochs.last else None

    def _load(self, log_end_offset: int) -> EpochList:
        try:
            text = self._files.read_synced(self._path)
        except FileNotFoundError:
            return EpochList.of((0, 0)) if log_end_offset else EpochList()
        try:
            content = decoded(self._path, text)
            entries = content["epochs"]
            self.may_resume = content.get("goesOn") is True
            self.begun_here = content.get("begunHere", True) is True  # older versions did not write the field
            if (promotion := content.get("promotion")) is not None:
                before = promotion.get("epochsBefore", entries[:-1])  # older versions did not write the field
                self._before = _epochs(before), promotion["begunHereBefore"] is True
            if (promise := content.get("promise")) is not None:
                self._promise = Promise(int(promise["epoch"]), int(promise["brokerId"]), str(promise["address"]))
            return _epochs(entries)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(
                f"{self._path} is damaged ({error}): only this file records which master wrote which part of the log. "
                "Copy it from the broker's peer, or start this broker with an empty store as a slave of its peer. "
                "If this broker was the master, promote the peer before this broker starts"
            ) from error

    def save(
        self, epochs: EpochList, *, begun_here: bool = False, may_resume: bool = False, promotion: bool = False
    ) -> None:
        """Writes the list and syncs it; a crash leaves the old or the new list.

        `promotion` is True if a promotion begins the last epoch.
        """
        self.is_noted = False  # the write below can reach the disk even if it raises an error
        content: dict[str, Any] = {"epochs": _entries(epochs), "begunHere": begun_here, "goesOn": may_resume}
        if promotion:
            content["promotion"] = {"begunHereBefore": self.begun_here, "epochsBefore": _entries(self.epochs)}
        if self._promise is not None:
            to = self._promise
            content["promise"] = {"epoch": to.epoch, "brokerId": to.broker_id, "address": to.address}
        self._files.make_directory(self._path.parent)
        self._files.write_atomically(self._path, encoded(self._path, content))
        self._before = (self.epochs, self.begun_here) if promotion else None
        self.epochs, self.begun_here, self.may_resume, self.is_noted = epochs, begun_here, may_resume, True

    def promise(self, promise: Promise) -> None:
        """Writes and syncs a promise.

        After an OSError the promise does not count, unless a restart finds it in the file.
        """
        before, self._promise = self._promise, promise
        try:
            self.save(self.epochs, begun_here=self.begun_here, may_resume=self.may_resume)
        except OSError:
            self._promise = before
            raise

    def end_promise(self) -> None:
        """Removes the promise.

        After an OSError the file may still have the promise, so the caller must call `end_promise` again after a
        restart.
        """
        self._promise = None
        self.save(self.epochs, begun_here=self.begun_here, may_resume=self.may_resume)

    def forget_promotion(self, log_end_offset: int) -> None:
        """Ignores the last epoch if a promotion began it and it has no bytes.  To be called on a slave only."""
        if self._before is None or log_end_offset > self.epochs.epochs[-1].start_offset:
            return
        self.epochs, self.begun_here = self._before
        self._before, self.may_resume, self.is_noted = None, False, False

    def note_unclean_stop(self) -> None:
        """Records that bytes of the last epoch may be missing, so that no later start continues the epoch."""
        if self.may_resume:
            self.may_resume = False
            self.is_noted = False
        if not self.is_noted:
            self.save(self.epochs, begun_here=self.begun_here)


def _entries(epochs: EpochList) -> list[dict[str, Any]]:
    return [
        {"epoch": epoch.epoch, "startOffset": epoch.start_offset} | ({"id": f"{epoch.id:016x}"} if epoch.id else {})
        for epoch in epochs.epochs
    ]


def _epochs(entries: list[dict[str, Any]]) -> EpochList:
    return EpochList(
        tuple(Epoch(int(entry["epoch"]), int(entry["startOffset"]), int(entry.get("id", "0"), 16)) for entry in entries)
    )
