"""Promises keeps the promise that this slave has given to a broker that is being promoted, until the promise ends.

A promise says that this slave follows no master of a lower epoch.  `replication/promise.py` decides which promise may
be given, and `EpochFile` keeps the promise on disk.
"""

import logging

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.leadership.following import Following
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import NO_EPOCH, PROMOTION
from broker_service.replication.promise import Promise, refusal

logger = logging.getLogger(__name__)


class Promises:
    """Keeps one promise at most; a newer one replaces it."""

    def __init__(self, broker: Broker, epochs: EpochFile, following: Following) -> None:
        self._broker = broker
        self._epochs = epochs
        self._following = following

    @property
    def promised(self) -> Promise | None:
        """The promise that holds now, or None."""
        return self._epochs.promised

    @property
    def epoch(self) -> int:
        """The promised epoch, below which no master is followed; NO_EPOCH without a promise."""
        return self._epochs.promised.epoch if self._epochs.promised else NO_EPOCH

    @property
    def may_be_over(self) -> Promise | None:
        """The promise about which the candidate must be asked; None if there is no promise, and on a master."""
        return self._epochs.promised if self._broker.mastership.standing is Standing.SLAVE else None

    def promise(self, candidate: Promise) -> str:
        """Gives this promise and returns an empty text, or returns the reason for a refusal, as a clause."""
        reason = refusal(
            candidate,
            self._epochs.promised,
            self._epochs.epochs.last,
            is_slave=self._broker.is_slave,
            follows=self._following.address,
            candidate_epoch=self._broker.mastership.candidate_epoch,
        )
        return reason or self._note(candidate)

    def newer_master(self, master: Promise) -> None:
        """Notes that a promoted broker is the master, so that this slave no longer follows the master that was
        replaced.
        """
        newest = max(self._epochs.epochs.last, self.epoch)
        if self._broker.is_slave and master.epoch // PROMOTION > newest // PROMOTION:
            if problem := self._note(master):
                logger.error("this slave %s", problem)

    def forget(self, broker_id: int, address: str) -> bool:
        """Ends the promise to a broker that an operator has removed for good; returns True if there was such a
        promise.
        """
        promised = self._epochs.promised
        if promised is None or (broker_id != promised.broker_id and address != promised.address):
            return False
        self.end(promised, "that broker is gone for good")
        return True

    def end(self, promise: Promise, why: str) -> None:
        logger.warning("this slave is no longer bound by its promise of %s: %s", promise, why)
        try:
            self._epochs.end_promise()
        except OSError as error:
            logger.warning(
                "the end of the promise cannot be written, so the promise must be ended again after a restart: %s",
                error,
            )
        self._following.try_now()

    def _note(self, promise: Promise) -> str:
        try:
            self._epochs.promise(promise)
        except OSError as error:
            return f"cannot write its promise: {error}"
        logger.warning("promised %s: this slave follows no master of a lower epoch", promise)
        self._broker.members_changed.notify()
        return ""
