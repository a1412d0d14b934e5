"""Sends messages as a batch, and completes their futures when the batch is acknowledged.  The sender blocks its caller,
and starts no threads."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat
from typing import NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa
from rocketsim_proto.records.columnar import UniqIds

from rocketsim_client.addresses import local_ipv4
from rocketsim_client.errors import MessageIllegal, QueueNotExist, RocketSimError, RowIllegal, SendFailed
from rocketsim_client.model import BatchPart, Message, MessageQueue, SendResult, SendResults
from rocketsim_client.sending import selection
from rocketsim_client.sending.accumulator import Kind
from rocketsim_client.sending.attempts import SendAttempts
from rocketsim_client.sending.batch import OutgoingBatch, of_messages
from rocketsim_client.sending.columns import Positions, cut_by_group
from rocketsim_client.sending.options import ProducerOptions
from rocketsim_client.sending.pending import Pending, succeed_all
from rocketsim_client.sending.publish_info import PublishTable

_MESSAGE_OF_FRAME = re.compile(r"message (\d+) of the frame (.*)", re.S)
Cuts = Iterable[tuple[OutgoingBatch, Positions]]  # the parts of a batch, each with the numbers of its rows

NEW_ROUTES = 2  # how often an ordered send gets new queues after the topic's queues have changed
MAY_MOVE = frozenset({Kind.SYNC, Kind.ASYNC, Kind.ONEWAY, Kind.ALONE})


class Lot(NamedTuple):
    """Messages that are sent together.  A lot is a tuple, because every send makes a lot and tuples are cheap."""

    entries: Sequence[Pending]
    kind: Kind
    deadline: float
    routes: int = NEW_ROUTES  # how often the message groups may still get other queues
    msg_ids: Sequence[str] | None = None  # the ids of an earlier attempt

    def part(self, rows: Sequence[int]) -> "Lot":
        ids = None if self.msg_ids is None else [self.msg_ids[row] for row in rows]
        return self._replace(entries=[self.entries[row] for row in rows], msg_ids=ids)

    def parts(self, groups: Sequence[Sequence[Pending]]) -> "list[Lot]":
        """Returns one lot for each list of messages in `groups`, in which the messages keep their ids."""
        ids = dict(zip(self.entries, cast(Sequence[str], self.msg_ids), strict=True))
        return [self._replace(entries=group, msg_ids=[ids[entry] for entry in group]) for group in groups]


class MessageSender(Protocol):
    """Sends messages and columns, and completes their futures.  `Sender` and `SpoolingSender` implement this
    protocol."""

    def new_ids(self, count: int, now_ms: int) -> pa.StringArray: ...
    def send(self, entries: Sequence[Pending], kind: Kind, deadline: float) -> None:
        """Sends accepted messages and completes their futures."""

    def send_messages(self, lot: Lot) -> None: ...
    def send_columns(self, outgoing: OutgoingBatch, kind: Kind, deadline: float, routes: int) -> BatchPart: ...
    def send_frames(
        self, frames: Sequence[Sequence[Message]], queue: MessageQueue, deadline: float, *, may_move: bool
    ) -> SendResults:
        """Sends a caller's own batch, one frame after the other, into one queue.  The first frame may move to another
        broker, and the later frames go to the queue of the first one."""


class Sender:
    """Sends messages without a spool.  `peer` is a server that this client talks to, and the message ids have this
    machine's address as `peer` sees it.  Thread-safe."""

    def __init__(
        self, attempts: SendAttempts, publish_table: PublishTable, options: ProducerOptions, peer: str
    ) -> None:
        self._attempts = attempts
        self._publish_table = publish_table
        self._options = options
        self._peer = peer
        self._ids: UniqIds | None = None
        self._retries = {kind: options.async_retries for kind in Kind} | {
            Kind.SYNC: options.retries,
            Kind.ORDERED: options.retries,
            Kind.ONEWAY: 0,
        }

    def new_ids(self, count: int, now_ms: int) -> pa.StringArray:
        return self._id_maker().next(count, now_ms)

    def _id_maker(self) -> UniqIds:
        """Returns the maker of message ids.  The maker is made at the first message, because finding this machine's
        address may need a name service."""
        made = self._ids
        if made is None:
            made = self._ids = UniqIds(local_ipv4(self._peer))
        return made

    def send(self, entries: Sequence[Pending], kind: Kind, deadline: float) -> None:
        send_all(self, entries, kind, deadline)

    # --- messages -----------------------------------------------------------------------------------------------------

    def send_messages(self, lot: Lot) -> None:
        """Sends the messages and completes their futures."""
        try:
            parts = self.attempt(lot, self.batch_of(lot))
        except RocketSimError as error:
            fail(lot.entries, error)
        else:
            for part in parts:
                self.send_messages(part)

    def batch_of(self, lot: Lot) -> OutgoingBatch:
        entries = lot.entries
        return self._batch(
            cast(list[Message], [entry.message for entry in entries]),
            cast(list[MessageQueue], [entry.queue for entry in entries]),
            [entry.message_group for entry in entries],
            lot.kind in MAY_MOVE and not entries[0].pinned,
            lot.msg_ids,
        )

    def attempt(self, lot: Lot, outgoing: OutgoingBatch) -> list[Lot]:
        """Sends `outgoing`, the batch of the lot's messages, and completes the futures of these messages once a broker
        has acknowledged the batch.

        If no broker acknowledges the batch, the method completes no future, but raises an error, or returns lots that
        the caller has to send instead.  If a broker refuses a message of the batch as illegal, returns the two halves
        of the batch, so that the other messages are sent.  If the queue of a message group does not exist any more,
        gives all messages their queues by the present route, and returns one lot for each broker.
        """
        entries = lot.entries
        by_group = lot.routes and any(entry.by_group for entry in entries)
        split_on = MessageIllegal if len(entries) > 1 else QueueNotExist if by_group else None
        try:
            part = self._send_batch(outgoing, lot.deadline, self._retries[lot.kind], split_on)
        except RocketSimError as error:
            if split_on is None or not isinstance(error, split_on):
                raise
            again = lot._replace(msg_ids=outgoing.msg_ids)
            if by_group and isinstance(error, QueueNotExist):
                return again._replace(routes=lot.routes - 1).parts(by_new_route(entries, self._publish_table))
            return again.parts([entries[: len(entries) // 2], entries[len(entries) // 2 :]])
        succeed_all(entries, results(part, entries))
        return []

    # --- columns ------------------------------------------------------------------------------------------------------

    def send_columns(self, outgoing: OutgoingBatch, kind: Kind, deadline: float, routes: int) -> BatchPart:
        done = self.attempt_columns(outgoing, kind, deadline, routes)
        if isinstance(done, BatchPart):
            return done
        return joined(done, lambda some: self.send_columns(some, kind, deadline, routes - 1))

    def attempt_columns(self, outgoing: OutgoingBatch, kind: Kind, deadline: float, routes: int) -> BatchPart | Cuts:
        """Sends columns, and returns where a broker has stored them.  If the queue of a message group does not exist
        any more, cuts the batch by the topic's present queues instead, and returns the parts, which the caller has to
        send."""
        split_on = QueueNotExist if routes and outgoing.group_hashes is not None else None
        try:
            return self._send_batch(outgoing, deadline, self._retries[kind], split_on)
        except QueueNotExist:
            if split_on is None:
                raise
        except MessageIllegal as error:
            raise of_its_row(error, outgoing) from error
        return cut_by_group(outgoing, self._publish_table.queues(outgoing.topic))

    # --- a caller's own batch -----------------------------------------------------------------------------------------

    def send_frames(
        self, frames: Sequence[Sequence[Message]], queue: MessageQueue, deadline: float, *, may_move: bool
    ) -> SendResults:
        return send_in_turn(
            frames, queue, may_move, self.frame_of, lambda outgoing: self.send_frame(outgoing, deadline)
        )

    def frame_of(self, messages: Sequence[Message], queue: MessageQueue, may_move: bool) -> OutgoingBatch:
        outgoing = self._batch(messages, [queue] * len(messages), None, may_move)
        outgoing.one_queue = True
        return outgoing

    def send_frame(self, outgoing: OutgoingBatch, deadline: float) -> BatchPart:
        return self._send_batch(outgoing, deadline, self._options.retries, None)

    # --- all ----------------------------------------------------------------------------------------------------------

    def _batch(
        self,
        messages: Sequence[Message],
        queues: Sequence[MessageQueue],
        message_groups: Sequence[str | None] | None,
        may_move: bool,
        msg_ids: Sequence[str] | None = None,
    ) -> OutgoingBatch:
        now_ms = time.time_ns() // 1_000_000
        if msg_ids is None:
            count, ids = len(messages), self._id_maker()
            msg_ids = [ids.one(now_ms)] if count == 1 else ids.next(count, now_ms).to_pylist()
        return of_messages(
            messages,
            queues,
            msg_ids,
            now_ms,
            may_move=may_move,
            compress_over=self._options.compress_over,
            compression=self._options.compression,
            message_groups=message_groups,
        )

    def _send_batch(
        self, outgoing: OutgoingBatch, deadline: float, retries: int, split_on: type[RocketSimError] | None
    ) -> BatchPart:
        """Sends a batch and counts its messages.  After the error `split_on` the batch is not counted, because the
        caller sends the parts of the batch instead."""
        count = self._attempts.counts.add
        count(sent=len(outgoing))
        try:
            part = self._attempts.send(outgoing, deadline, retries)
        except BaseException as error:
            if split_on is not None and isinstance(error, split_on):
                count(sent=-len(outgoing))
            else:
                count(failed=len(outgoing))
            raise
        count(acknowledged=len(outgoing))
        return part


def send_all(sender: MessageSender, entries: Sequence[Pending], kind: Kind, deadline: float) -> None:
    """Sends the accepted messages and completes their futures.  Every error goes to the futures.  An Exception is not
    raised, because it would end the sending thread, and entries that are accepted later would wait for ever."""
    try:
        if len(entries) == 1 and not _is_columns(entries[0]):
            sender.send_messages(Lot(entries, kind, deadline))
            return
        for are_columns, run in groupby(entries, _is_columns):  # the entries may be messages or Arrow columns
            if not are_columns:
                sender.send_messages(Lot(list(run), kind, deadline))
                continue
            for entry in run:
                try:
                    entry.succeed(sender.send_columns(cast(OutgoingBatch, entry.message), kind, deadline, NEW_ROUTES))
                except RocketSimError as error:
                    fail([entry], error)
    except Exception as error:
        fail(entries, error)
    except BaseException as error:  # for example Ctrl-C in a caller that sends its own batch
        fail(entries, error)
        raise


def by_new_route(entries: Sequence[Pending], publish_table: PublishTable) -> list[Sequence[Pending]]:
    """Gives message groups their queues by the current route.  Returns, for each broker, a list of the messages for its
    queues, in their old order."""
    groups: dict[str, list[Pending]] = {}
    for entry in entries:
        queue = cast(MessageQueue, entry.queue)
        if entry.by_group:
            queue = entry.queue = selection.by_group(publish_table.queues(queue.topic), cast(str, entry.message_group))
        groups.setdefault(queue.broker_name, []).append(entry)
    return list(groups.values())


def joined(cuts: Cuts, send: Callable[[OutgoingBatch], BatchPart]) -> BatchPart:
    return BatchPart.joined([(send(some), rows.tolist()) for some, rows in cuts])


def send_in_turn(
    frames: Sequence[Sequence[Message]],
    queue: MessageQueue,
    may_move: bool,
    make: Callable[[Sequence[Message], MessageQueue, bool], OutgoingBatch],
    send: Callable[[OutgoingBatch], BatchPart],
) -> SendResults:
    parts: list[BatchPart] = []
    for messages in frames:
        outgoing = make(messages, queue, may_move and not parts)
        try:
            part = send(outgoing)
        except RocketSimError as error:
            if not parts:
                raise
            stored = sum(len(part.msg_ids) for part in parts)
            raise SendFailed(
                f"{stored} of {sum(map(len, frames))} messages were acknowledged, then: {error}",
                attempts=1,
                maybe_stored=True,
            ) from error
        queue = MessageQueue(queue.topic, part.broker_name, int(part.queue_ids[0]))
        parts.append(part)
    return SendResults(parts)


def _is_columns(entry: Pending) -> bool:
    return isinstance(entry.message, OutgoingBatch)


def results(part: BatchPart, entries: Sequence[Pending]) -> "map[SendResult]":
    """Returns one result for each message, in order.  The results have the callers' own queue objects, unless the batch
    has moved to other queues."""
    queues = cast(list[MessageQueue], [entry.queue for entry in entries])
    if queues[0].broker_name != part.broker_name or [queue.queue_id for queue in queues] != _plain(part.queue_ids):
        queues = [MessageQueue(part.topic, part.broker_name, int(queue_id)) for queue_id in part.queue_ids]
    return map(
        SendResult,
        repeat(part.send_status),
        part.msg_ids,
        queues,
        _plain(part.queue_offsets),
        repeat(part.store_host),
        _plain(part.commit_log_offsets),
    )


def _plain(values: Sequence[int]) -> Sequence[int]:
    return values.tolist() if isinstance(values, np.ndarray) else values


def of_its_row(error: MessageIllegal, outgoing: OutgoingBatch) -> MessageIllegal:
    """Returns a broker's refusal with another text: the number of the message in the frame is replaced by its row in
    the caller's columns."""
    said = _MESSAGE_OF_FRAME.match(str(error))
    if said is None or outgoing.rows is None or int(said[1]) >= len(outgoing.rows):
        return error
    row = int(outgoing.rows[int(said[1])])
    return RowIllegal(outgoing.topic, row, f"broker {outgoing.broker_name} refuses the message: it {said[2]}")


def fail(entries: Sequence[Pending], error: BaseException) -> None:
    for entry in entries:
        if entry.done():
            continue
        entry.fail(error.again() if isinstance(error, RocketSimError) and len(entries) > 1 else error)
