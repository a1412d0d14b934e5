"""Asks the other members of a broker name for records that one member has sent unreadable."""

import logging

import numpy as np
from rocketsim_proto.records.columnar import Records

from rocketsim_client.arrow import OfQueue
from rocketsim_client.model import MASTER_ID, GetMessageStatus, MessageQueue
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.reading.broker_choice import BrokerChoice
from rocketsim_source.reading.patience import Patience
from rocketsim_source.reading.task_progress import EarlyEnd, TaskProgress
from rocketsim_source.reading.unreadable import Place, Unreadable

logger = logging.getLogger(__name__)


class Copies:
    """Handles the unreadable records of one task."""

    def __init__(
        self, progress: TaskProgress, brokers: BrokerChoice, patience: Patience, options: SourceOptions
    ) -> None:
        self._progress = progress
        self._brokers = brokers
        self._patience = patience
        self._skips = options.corrupt != "fail"
        self._unreadable = Unreadable()

    def without_left_out(self, records: Records, extents: list[OfQueue]) -> tuple[Records, list[OfQueue]]:
        """Returns a frame without those records that no broker has in readable form."""
        if not self._unreadable.left_out:
            return records, extents
        keep = np.ones(len(records), np.bool_)
        row, kept = 0, []
        for queue, size in extents:
            left_out = self._unreadable.left_out.get(queue)
            if left_out:
                keep[row : row + size] = ~np.isin(records.queue_offset[row : row + size], sorted(left_out))
            kept.append(OfQueue(queue, int(keep[row : row + size].sum())))
            row += size
        return (records, extents) if keep.all() else (records[keep], kept)

    def ask_for(self, places: list[Place], broker_id: int, why: object) -> None:
        """Handles records that a broker has sent unreadable: asks another broker, fails the attempt, or leaves the
        records out.
        """
        self._unreadable.add(places, broker_id, why)
        self._ask_another_or_give_up(places[0])

    def is_missing_too(self, end: EarlyEnd) -> bool:
        """Returns True if the broker was asked for another copy of an unreadable record, but has deleted the record or
        has not received it yet.  After a result of True, the next request goes to another broker.
        """
        queue = self._progress.ranges[end.index].queue
        if not self._brokers.was_asked_instead(queue, end.broker_id):
            return False
        place = self._unreadable.first_of(queue, self._progress.at[end.index])
        if place is None:
            return False
        if end.segment.status == GetMessageStatus.OFFSET_TOO_SMALL:
            self.ask_for([place], end.broker_id, self._unreadable.why[place])
        else:
            self._patience.failed(self._unreadable.error(place))
        return True

    def _ask_another_or_give_up(self, place: Place) -> None:
        members = {MASTER_ID: True} if self._brokers.only_master else self._brokers.members(place.queue)
        error = self._unreadable.error(place)
        other = self._unreadable.ask_instead(place, members)
        if not members:
            self._patience.failed(error)  # no broker is reachable now, not even the one that sent the record
        elif other is not None:
            self._brokers.ask_instead(place.queue, other)
            if members[other]:
                logger.warning("asking broker id %d for another copy: %s", other, error)
            else:
                self._patience.failed(error)
        elif self._skips:
            self._leave_out(place.queue, members, error)
        else:
            raise error

    def _leave_out(self, queue: MessageQueue, members: dict[int, bool], error: Exception) -> None:
        offsets = self._unreadable.leave_out(queue, members)
        logger.warning(
            "records are left out, as corrupt=skip allows: %s offsets %s, %d records in this task so far. %s",
            *(queue, offsets, self._unreadable.count, error),
        )
