"""A sender that puts messages into the spool if it cannot send them, and the table from which a producer with a
spool chooses queues."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from rocketsim_client.addresses import local_ipv4
from rocketsim_client.errors import ClientClosed, QueueNotExist, RocketSimError, SendFailed, SpoolFailed
from rocketsim_client.model import BatchPart, Message, MessageQueue, SendResults, SendStatus
from rocketsim_client.retry import is_worth_sending_again
from rocketsim_client.sending.accumulator import Kind
from rocketsim_client.sending.attempts import SendAttempts
from rocketsim_client.sending.batch import OutgoingBatch
from rocketsim_client.sending.columns import cut_by_group
from rocketsim_client.sending.pending import Pending, succeed_all
from rocketsim_client.sending.publish_info import PublishTable
from rocketsim_client.sending.sender import (
    Cuts,
    Lot,
    Sender,
    by_new_route,
    fail,
    joined,
    results,
    send_all,
    send_in_turn,
)
from rocketsim_client.sending.spool import ANY_QUEUE, Lane, Spool
from rocketsim_client.transport import record_frame

NO_BROKER = ""  # the broker name of a message whose queue is chosen later, when it is sent


class AcceptingTable:
    """Chooses the queue of an accepted message.  A message with a message group gets its queue only when it is sent,
    and so does any message while no broker is known.  The messages of a topic that have no queue yet wait in one lane
    of the outbox, and so keep their order even if the route changes."""

    def __init__(self, publish_table: PublishTable, spool: Spool) -> None:
        self._publish_table = publish_table
        self._spool = spool

    def choose(self, topic: str) -> MessageQueue:
        none = MessageQueue(topic, NO_BROKER, -1)
        if self._spool.holds(Lane(topic, ANY_QUEUE)):
            return none
        try:
            return self._publish_table.choose(topic)
        except RocketSimError as error:
            if self._spool.is_parents or not is_worth_sending_again(error):
                raise
            return none

    def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, NO_BROKER, -1)]


class SpoolingSender:
    """Spools messages that no broker has acknowledged, and messages that must not overtake spooled messages.  If a
    broker refuses a message for good, the caller gets the error, as without a spool.  Thread-safe."""

    def __init__(
        self, sender: Sender, attempts: SendAttempts, publish_table: PublishTable, peer: str, spool: Spool
    ) -> None:
        self._sender = sender
        self._attempts = attempts
        self._publish_table = publish_table
        self._peer = peer
        self._spool = spool

    def new_ids(self, count: int, now_ms: int) -> pa.StringArray:
        return self._sender.new_ids(count, now_ms)

    def send(self, entries: Sequence[Pending], kind: Kind, deadline: float) -> None:
        send_all(self, entries, kind, deadline)

    # --- messages -----------------------------------------------------------------------------------------------------

    def send_messages(self, lot: Lot) -> None:
        """Spools the messages that come behind spooled messages of the same lane, sends the others, and spools those
        that cannot be sent."""
        held = [self._spool.holds(_lane_of(entry)) for entry in lot.entries] if self._spool.has_records else [False]
        if any(held) and not all(held):
            for wanted in (True, False):
                self.send_messages(lot.part([row for row, is_held in enumerate(held) if is_held is wanted]))
            return
        outgoing = self._sender.batch_of(lot)
        if all(held):
            self._spool_entries(lot.entries, outgoing, None)
            return
        try:
            parts = self._attempt(lot, outgoing)
        except RocketSimError as error:
            if self._is_for_the_spool(error, by_group=lot.entries[0].by_group):
                self._spool_entries(lot.entries, outgoing, error)
            else:
                fail(lot.entries, error)
        else:
            for part in parts:
                self.send_messages(part)

    def _attempt(self, lot: Lot, outgoing: OutgoingBatch) -> list[Lot]:
        """Sends the messages like `Sender.attempt`.  If the messages were accepted without a queue, does not send them,
        but gives them queues, and returns one lot for each broker, which the caller has to send."""
        if cast(MessageQueue, lot.entries[0].queue).broker_name != NO_BROKER:
            return self._sender.attempt(lot, outgoing)
        if not lot.entries[0].by_group:
            for entry in lot.entries:
                entry.queue = self._publish_table.choose(outgoing.topic)
        groups = by_new_route(lot.entries, self._publish_table)
        return lot._replace(msg_ids=outgoing.msg_ids).parts(groups)

    def _spool_entries(
        self, entries: Sequence[Pending], outgoing: OutgoingBatch, failure: RocketSimError | None
    ) -> None:
        try:
            part = self._spooled(outgoing, [_lane_of(entry) for entry in entries], failure)
        except RocketSimError as error:
            fail(entries, error)
        else:
            succeed_all(entries, results(part, entries))

    # --- columns, and a caller's own batch ----------------------------------------------------------------------------

    def send_columns(self, outgoing: OutgoingBatch, kind: Kind, deadline: float, routes: int) -> BatchPart:
        if self._spool.has_records:
            lanes = _lanes_of(outgoing)
            held = np.array([self._spool.holds(lane) for lane in lanes])
            if held.all():
                return self._spooled(outgoing, lanes, None)
            if held.any():
                cuts = [(outgoing.take(rows), rows) for rows in (np.flatnonzero(held), np.flatnonzero(~held))]
                return joined(cuts, lambda some: self.send_columns(some, kind, deadline, routes))
        done: BatchPart | Cuts
        try:
            if outgoing.broker_name != NO_BROKER:
                done = self._sender.attempt_columns(outgoing, kind, deadline, routes)
                routes -= 1
            elif outgoing.group_hashes is None:
                name = self._publish_table.choose(outgoing.topic).broker_name
                queues = self._publish_table.queues(outgoing.topic)
                outgoing.move([queue for queue in queues if queue.broker_name == name])
                done = self._sender.attempt_columns(outgoing, kind, deadline, routes)
            else:
                done = cut_by_group(outgoing, self._publish_table.queues(outgoing.topic))
        except RocketSimError as error:
            if not self._is_for_the_spool(error, by_group=outgoing.group_hashes is not None):
                raise
            return self._spooled(outgoing, _lanes_of(outgoing), error)
        if isinstance(done, BatchPart):
            return done
        return joined(done, lambda some: self.send_columns(some, kind, deadline, routes))

    def send_frames(
        self, frames: Sequence[Sequence[Message]], queue: MessageQueue, deadline: float, *, may_move: bool
    ) -> SendResults:
        return send_in_turn(
            frames, queue, may_move, self._sender.frame_of, lambda outgoing: self._send_frame(outgoing, deadline)
        )

    def _send_frame(self, outgoing: OutgoingBatch, deadline: float) -> BatchPart:
        lanes = _lanes_of(outgoing)
        if outgoing.broker_name == NO_BROKER or self._spool.holds(lanes[0]):
            return self._spooled(outgoing, lanes, None)
        try:
            return self._sender.send_frame(outgoing, deadline)
        except RocketSimError as error:
            if not self._is_for_the_spool(error, by_group=False):
                raise
            return self._spooled(outgoing, lanes, error)

    # --- all ----------------------------------------------------------------------------------------------------------

    def _is_for_the_spool(self, error: RocketSimError, *, by_group: bool) -> bool:
        """Returns True if a later attempt may succeed.  After QueueNotExist a later attempt may succeed only for
        message groups, because their queues change with the route."""
        if self._spool.is_parents or isinstance(error, SpoolFailed):
            return False
        if isinstance(error, QueueNotExist):
            return by_group
        return isinstance(error, SendFailed) or is_worth_sending_again(error)

    def _spooled(self, outgoing: OutgoingBatch, lanes: Sequence[Lane], failure: RocketSimError | None) -> BatchPart:
        """Writes the messages to the spool, and counts the messages even if the spool fails.  The text of SpoolFailed
        names the spool's failure and the failure of the send."""
        had_failed = isinstance(failure, SendFailed | QueueNotExist)
        is_pinned = lanes[0].is_queue
        columns = outgoing.outgoing()
        if not is_pinned:
            columns.queue_ids = [0] * len(outgoing)  # replay chooses the queues later
        data, sizes = record_frame.encode(columns, local_ipv4(self._peer))
        ids = list(map(str, outgoing.msg_ids))
        try:
            self._spool.put(lanes, ids, _pieces(data, sizes))
        except (SpoolFailed, ClientClosed) as refusal:
            if not had_failed:
                self._attempts.counts.add(sent=len(outgoing), failed=len(outgoing))
            if failure is None:
                raise
            raise SpoolFailed(
                f"{failure}; the messages were not spooled either: {refusal}",
                attempts=getattr(failure, "attempts", 0),
                maybe_stored=getattr(failure, "maybe_stored", False) or getattr(refusal, "maybe_stored", False),
                code=failure.code,
            ) from failure
        self._attempts.counts.spooled(len(outgoing), had_failed=had_failed)
        nothing = [-1] * len(outgoing)
        return BatchPart(
            SendStatus.SPOOLED,
            outgoing.topic,
            outgoing.broker_name if is_pinned else NO_BROKER,
            ids,
            outgoing.queue_ids if is_pinned else nothing,
            nothing,
            commit_log_offsets=nothing,
        )


def _lane_of(entry: Pending) -> Lane:
    queue = cast(MessageQueue, entry.queue)
    if entry.by_group:
        return Lane.of_group(queue.topic, cast(str, entry.message_group))
    return Lane.of_queue(queue) if entry.pinned else Lane(queue.topic, ANY_QUEUE)


def _lanes_of(outgoing: OutgoingBatch) -> list[Lane]:
    if outgoing.group_hashes is not None:
        return [Lane.of_group(outgoing.topic, one) for one in outgoing.group_hashes.tolist()]
    anywhere = outgoing.may_move or outgoing.broker_name == NO_BROKER
    lane = Lane(outgoing.topic, ANY_QUEUE)
    if not anywhere:
        lane = Lane.of_queue(MessageQueue(outgoing.topic, outgoing.broker_name, int(outgoing.queue_ids[0])))
    return [lane] * len(outgoing)


def _pieces(data: bytes | memoryview, sizes: Sequence[int]) -> list[bytes]:
    ends = np.cumsum(np.asarray(sizes, np.int64)).tolist()
    return [bytes(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
