"""Promises: what this slave has promised to a broker that is being promoted, from the promise until it is over.

A promise says that this slave follows no master of a lower epoch.  `replication/promise.py` decides which promise may
be given, and `EpochFile` keeps it.
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
    """Holds one promise at most: a newer one takes the place of the older one."""

    def __init__(self, broker: Broker, epochs: EpochFile, following: Following) -> None:
        self._broker = broker
        self._epochs = epochs
        self._following = following

    @property
    def promised(self) -> Promise | None:
        """The promise that holds now."""
        return self._epochs.promised

    @property
    def epoch(self) -> int:
        """No master of a lower epoch is followed."""
        return self._epochs.promised.epoch if self._epochs.promised else NO_EPOCH

    @property
    def may_be_over(self) -> Promise | None:
        """The promise of which this slave asks the candidate whether it is over."""
        return self._epochs.promised if self._broker.mastership.standing is Standing.SLAVE else None

    def promise(self, candidate: Promise) -> str:
        """Give this promise and return an empty text, or return why it is refused, as a clause."""
        reason = refusal(
            candidate,
            self._epochs.promised,
            self._epochs.epochs.last,
            is_slave=self._broker.is_slave,
            follows=self._following.address,
            candidate_epoch=self._broker.mastership.candidate_epoch,
        )
        return reason or self._note(candidate)

    def hears_of_master(self, master: Promise) -> None:
        """A promoted broker says that it is the master: this slave does not follow the replaced master any more."""
        newest = max(self._epochs.epochs.last, self.epoch)
        if self._broker.is_slave and master.epoch // PROMOTION > newest // PROMOTION:
            if problem := self._note(master):
                logger.error("this slave %s", problem)

    def forget(self, broker_id: int, address: str) -> bool:
        """An operator says that this broker is gone for good.  Returns whether a promise to it has ended by that."""
        promised = self._epochs.promised
        if promised is None or (broker_id != promised.broker_id and address != promised.address):
            return False
        self.end(promised, "that broker is gone for good")
        return True

    def end(self, promise: Promise, why: str) -> None:
        logger.warning("the promise of %s is over: %s", promise, why)
        try:
            self._epochs.end_promise()
        except OSError as error:
            logger.warning("%s: after a restart it has to end once more", error)
        self._following.try_now()

    def _note(self, promise: Promise) -> str:
        try:
            self._epochs.promise(promise)
        except OSError as error:
            return f"cannot write its promise: {error}"
        logger.warning("promised %s: no master of a lower epoch is followed", promise)
        self._broker.members_changed.notify()
        return ""
