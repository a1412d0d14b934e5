"""Sends a batch: makes it into records, has it acknowledged, and completes every message that somebody waits for.
Blocks its caller; knows nothing of threads.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import cast

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
from rocketsim_client.sending.columns import cut_by_group
from rocketsim_client.sending.pending import Pending, succeed_all
from rocketsim_client.sending.publish_info import PublishTable

_MESSAGE_OF_FRAME = re.compile(r"message (\d+) of the frame (.*)", re.S)
NEW_ROUTES = 2  # how often an ordered send is routed anew when the topic's queues change under it
MAY_MOVE = frozenset({Kind.SYNC, Kind.ASYNC, Kind.ONEWAY, Kind.ALONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    compress_over: int  # bytes of a body
    compression: str
    retries: int  # of a caller that waits
    async_retries: int


class Sender:
    """Thread-safe.  `peer`: a server that this client talks to, for the address in the message ids."""

    def __init__(self, attempts: SendAttempts, publish: PublishTable, options: SenderOptions, peer: str) -> None:
        self._attempts = attempts
        self._publish = publish
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
        """Made at the first message: this machine's address may need its name service."""
        made = self._ids
        if made is None:
            made = self._ids = UniqIds(local_ipv4(self._peer))
        return made

    # --- what was accepted --------------------------------------------------------------------------------------------

    def send(self, entries: Sequence[Pending], kind: Kind, deadline: float) -> None:
        """Whatever goes wrong is told to those who wait for the entries, and ends no sender: what is accepted later
        would wait for ever."""
        try:
            if kind is Kind.ORDERED and len(entries) > 1:  # messages and column batches may have met in one lane
                for _, run in groupby(entries, _is_columns):
                    self._send_alike(list(run), kind, deadline)
            else:
                self._send_alike(entries, kind, deadline)
        except Exception as error:
            fail(entries, error)
        except BaseException as error:  # Ctrl-C in a caller that sends for itself
            fail(entries, error)
            raise

    def send_as(self, entry: Pending, msg_id: str, kind: Kind, deadline: float) -> None:
        """One message, under an id that the caller has from `new_ids`."""
        self._send_messages([entry], kind, deadline, NEW_ROUTES, [msg_id])

    def _send_alike(self, entries: Sequence[Pending], kind: Kind, deadline: float) -> None:
        if not _is_columns(entries[0]):
            self._send_messages(entries, kind, deadline, NEW_ROUTES)
            return
        for entry in entries:
            self._send_columns(entry, kind, deadline)

    def _send_messages(
        self, entries: Sequence[Pending], kind: Kind, deadline: float, routes: int, msg_ids: Sequence[str] | None = None
    ) -> None:
        """One message that a broker finds illegal does not take the others with it; message groups whose queues are
        gone find others, by up to `routes` new routes.  `msg_ids`: of an earlier attempt."""
        by_group = routes and any(entry.by_group for entry in entries)
        apart = MessageIllegal if len(entries) > 1 else QueueNotExist if by_group else None
        outgoing = self._batch_of(entries, kind, msg_ids)
        try:
            part = self._send_batch(outgoing, deadline, self._retries[kind], apart)
        except RocketSimError as error:
            if apart is None or not isinstance(error, apart):
                self._not_sent(entries, outgoing, error)
                return
            if by_group and isinstance(error, QueueNotExist):
                groups, routes = self._by_new_route(entries), routes - 1
            else:
                groups = [entries[: len(entries) // 2], entries[len(entries) // 2 :]]
            ids = dict(zip(entries, outgoing.msg_ids, strict=True))
            for group in groups:
                self._send_messages(group, kind, deadline, routes, [ids[entry] for entry in group])
        else:
            succeed_all(entries, results(part, entries))

    def _batch_of(self, entries: Sequence[Pending], kind: Kind, msg_ids: Sequence[str] | None = None) -> OutgoingBatch:
        return self._batch(
            cast(list[Message], [entry.message for entry in entries]),
            cast(list[MessageQueue], [entry.queue for entry in entries]),
            [entry.message_group for entry in entries],
            kind in MAY_MOVE and not entries[0].pinned,
            msg_ids,
        )

    def _not_sent(self, entries: Sequence[Pending], outgoing: OutgoingBatch, error: RocketSimError) -> None:
        """No broker has acknowledged `outgoing`, which was made of the entries."""
        fail(entries, error)

    def _by_new_route(self, entries: Sequence[Pending]) -> list[Sequence[Pending]]:
        """The entries by the brokers that their queues are of now, each broker's in the order of the entries."""
        groups: dict[str, list[Pending]] = {}
        for entry in entries:
            queue = cast(MessageQueue, entry.queue)
            if entry.by_group:
                queue = entry.queue = selection.by_group(
                    self._publish.queues(queue.topic), cast(str, entry.message_group)
                )
            groups.setdefault(queue.broker_name, []).append(entry)
        return list(groups.values())

    def _send_columns(self, entry: Pending, kind: Kind, deadline: float) -> None:
        try:
            entry.succeed(self._send_column_batch(cast(OutgoingBatch, entry.message), kind, deadline, NEW_ROUTES))
        except RocketSimError as error:
            fail([entry], error)

    def _send_column_batch(self, outgoing: OutgoingBatch, kind: Kind, deadline: float, routes: int) -> BatchPart:
        apart = QueueNotExist if routes and outgoing.group_hashes is not None else None
        try:
            return self._send_batch(outgoing, deadline, self._retries[kind], apart)
        except QueueNotExist:
            if apart is None:
                raise
        except MessageIllegal as error:
            raise of_its_row(error, outgoing) from error
        cuts = cut_by_group(outgoing, self._publish.queues(outgoing.topic))
        return BatchPart.joined(
            [(self._send_column_batch(some, kind, deadline, routes - 1), rows.tolist()) for some, rows in cuts]
        )

    # --- a caller's own batch -----------------------------------------------------------------------------------------

    def send_frames(
        self, frames: Sequence[Sequence[Message]], queue: MessageQueue, deadline: float, *, may_move: bool
    ) -> SendResults:
        """One after the other into one queue: the first one finds it for all, unless it may not move."""
        parts: list[BatchPart] = []
        for messages in frames:
            outgoing = self._batch(messages, [queue] * len(messages), None, may_move and not parts)
            outgoing.one_queue = True
            try:
                part = self._send_frame(outgoing, deadline)
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

    def _send_frame(self, outgoing: OutgoingBatch, deadline: float) -> BatchPart:
        return self._send_batch(outgoing, deadline, self._options.retries, None)

    # --- both ---------------------------------------------------------------------------------------------------------

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
        self, outgoing: OutgoingBatch, deadline: float, retries: int, apart: type[RocketSimError] | None
    ) -> BatchPart:
        """`apart`: the error after which the batch is taken apart, and its parts are counted instead of it."""
        count = self._attempts.count
        count(sent=len(outgoing))
        try:
            part = self._attempts.send(outgoing, deadline, retries)
        except BaseException as error:
            if apart is not None and isinstance(error, apart):
                count(sent=-len(outgoing))
            else:
                count(failed=len(outgoing))
            raise
        count(acknowledged=len(outgoing))
        return part


def _is_columns(entry: Pending) -> bool:
    return isinstance(entry.message, OutgoingBatch)


def results(part: BatchPart, entries: Sequence[Pending]) -> "map[SendResult]":
    """One result a message, in order; the queue objects are the callers' own unless the batch has moved."""
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
    """A broker's refusal, which counts the messages of the frame, with the row of the caller's columns instead."""
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
