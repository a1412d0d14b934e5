"""Mover: copies messages to retry topics and dead letter topics.  Each copy settles the delivery of its message."""

import logging
from functools import partial

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import DLQ_PREFIX, RETRY_PREFIX

from broker_service.broker.core.broker import Broker
from broker_service.errors import RocketSimError
from broker_service.pop.deliveries import Counts
from broker_service.pop.outcome import Outcome
from broker_service.runtime import cold_reads
from broker_service.state import moves
from broker_service.state.moves import original_topic
from broker_service.state.state import Due
from broker_service.state.transitions import Settle
from broker_service.state.writer import StateWriter

logger = logging.getLogger(__name__)


class NotReadable(RocketSimError):
    """The message exists, but cannot be read now."""


class Mover:
    def __init__(self, broker: Broker, writer: StateWriter, counts: Counts) -> None:
        self._broker = broker
        self._writer = writer
        self._counts = counts

    async def message(self, due: Due) -> Record | None:
        """Reads the message of a delivery whose deadline has come.  Returns None if the message has expired."""
        return await cold_reads.read(self._broker.store, partial(self._read, due))

    def _read(self, due: Due) -> Record | None:
        store, (place, queue_offset, _) = self._broker.store, due
        first, end = store.queues.bounds(place.topic, place.queue_id)
        if queue_offset < first:
            return None
        if queue_offset >= end:
            raise NotReadable(f"the message is beyond the present end {end} of its queue")
        found = store.queues.read_ranges([(place.topic, place.queue_id, queue_offset, queue_offset + 1)], max_bytes=1)
        data = b"".join(found.records)
        with store.log.decoding(data):
            return record.decode(data) if data else None

    def move(self, copy: Record) -> int:
        """Appends a copy, which also settles the delivery of the original.  Returns the log's end after the copy.  The
        caller must have created the copy's topic.
        """
        end = self._writer.append_record(copy)
        move = moves.move_of(copy)
        labels = ("", "") if move is None else (original_topic(move.place), move.place.group)
        if copy.topic.startswith(DLQ_PREFIX):
            self._counts.dead_letters.add(labels, 1, len(copy.body))
            if move is not None:
                # The copy alone cannot settle the delivery for good, because an operator may delete the copy with the
                # dead letter topic.
                self._writer.submit(Settle(move.place, (move.delivery,)))
        elif copy.topic.startswith(RETRY_PREFIX):
            self._counts.retried.add(labels, 1, len(copy.body))
        return end


def copy_of(message: Record, due: Due, ends: Outcome) -> Record:
    """Returns the copy for the retry topic or the dead letter topic.

    A message whose properties leave no room for those of a retry also becomes a dead letter.
    """
    if ends is Outcome.RETRY:
        copy = moves.retry_copy(message, due)
        if moves.fits(copy.properties):
            return copy
        logger.warning(
            "message %d of topic %s becomes a dead letter of group %s, as its properties leave no room for a retry",
            *name_of(due),
        )
    return dead_letter_of(message, due)


def dead_letter_of(message: Record, due: Due) -> Record:
    copy = moves.dead_letter(message, due)
    if left_out := sorted(message.properties.keys() - copy.properties.keys()):
        logger.warning(
            "the dead letter of message %d of topic %s for group %s lacks these properties, which do not fit: %.200s",
            *name_of(due),
            ", ".join(left_out),
        )
    return copy


def name_of(due: Due) -> tuple[int, str, str]:
    return due.queue_offset, due.place.topic, due.place.group
