"""Fetches the ranges of one task, in order, each from the broker that should serve it.

If a broker is unreachable, another broker of its name is asked at once.  Three other kinds of failure have files of
their own: a range that its broker ends early (`early_ends.py`), records that cannot be read (`copies.py`), and records
that are lost (`losses.py`).
"""

import time
from collections.abc import Callable, Generator, Iterator, MutableMapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from rocketsim_proto.records.columnar import RecordError

from rocketsim_client.errors import (
    BadAnswer,
    BrokerRefused,
    InvalidParameter,
    NoPermission,
    RocketSimError,
    TopicNotExist,
)
from rocketsim_client.model import MASTER_ID, MessageQueue, OffsetRange
from rocketsim_client.retry import is_worth_asking_again
from rocketsim_source.options.data_loss import DELETED
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.reading.broker_choice import BrokerChoice
from rocketsim_source.reading.copies import Copies
from rocketsim_source.reading.early_ends import EarlyEnds
from rocketsim_source.reading.fetched import Decode, Fetched, Undecodable, Undecoded
from rocketsim_source.reading.losses import Losses
from rocketsim_source.reading.patience import Patience
from rocketsim_source.reading.prefetch import FrameLate, prefetched
from rocketsim_source.reading.task_progress import CheckedFrame, TaskProgress
from rocketsim_source.reading.unreadable import Place
from rocketsim_source.source_cluster import ReadIn, SourceCluster

if TYPE_CHECKING:
    from rocketsim_client.model import PullFrame

T = TypeVar("T")


class RangeFetch:
    """Fetches the ranges of one task.

    `hints` has the broker to ask first for a queue, and is updated with the brokers' suggestions for later tasks.
    `read_in` has the leader epochs in which the ranges were planned.
    """

    def __init__(
        self,
        cluster: SourceCluster,
        ranges: list[OffsetRange],
        hints: MutableMapping[MessageQueue, int],
        options: SourceOptions,
        *,
        read_in: ReadIn | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._ranges = ranges
        self._options = options
        self._read_in = read_in or {}
        self._losses = Losses(options.data_loss)
        self._patience = Patience(options, clock, sleep)
        self._progress = TaskProgress(ranges, options, self._losses)
        self._brokers = BrokerChoice(cluster, options, hints)
        self._copies = Copies(self._progress, self._brokers, self._patience, options)
        self._early_ends = EarlyEnds(self._progress, self._brokers, self._patience, self._losses, options)
        self._answering = MASTER_ID  # the broker that sent the last frame, or that is asked for the next one

    def frames(self) -> Iterator[Fetched]:
        """Yields all records of all ranges, in order.  Raises an error if the task has to fail."""
        return self.decoded(_as_fetched)

    def decoded(self, decode: Decode[T]) -> Iterator[T]:
        """Yields the results of `decode` for each frame.  Asks another broker for the records that `decode` cannot
        read.
        """
        while (first := self._progress.first_open()) is not None:
            try:
                target = self._brokers.target(self._ranges[first].queue)
                yield from self._stream(self._one_call(first, target), target, decode)
            except (RecordError, BadAnswer) as error:
                self._bad_frame(first, error)
            except RocketSimError as error:
                self._refused(first, error)

    def _one_call(self, first: int, target: int) -> list[int]:
        """Returns the ranges that one call to one broker can serve: the first unfinished range and those that follow it
        directly.  The order of the ranges is kept, so that a repeated task returns its rows in the same order.
        """
        broker_name = self._ranges[first].queue.broker_name
        indices = []
        for index in range(first, len(self._ranges)):
            if not self._progress.is_open(index):
                continue
            queue = self._ranges[index].queue
            if queue.broker_name != broker_name or self._brokers.target(queue) != target:
                break
            indices.append(index)
        return indices

    def _stream(self, indices: list[int], target: int, decode: Decode[T]) -> Iterator[T]:
        """Makes one call, and yields the rows of its frames.  Ends when all ranges of the call are complete, or when
        another call has to be made.
        """
        asked = self._progress.left_of(indices)
        stream = self._cluster.pull(
            asked,
            broker_id=target,
            only_this=self._brokers.only_master,
            group=self._options.pull_group,
            expression=self._options.expression.asked,
            frame_bytes=self._options.pull_max_bytes,
            read_in=self._read_in,
        )
        self._answering = target
        try:
            with prefetched(stream, self._options.prefetch_pulls, self._options.pull_timeout_ms / 1000) as frames:
                for frame in frames:
                    self._answering = frame.broker_id
                    checked = self._progress.check(frame, indices)
                    fetched = self._fetched(checked, frame.broker_id)
                    if len(fetched.records):
                        undecoded = yield from decode(fetched)
                        if undecoded is not None:
                            self._ask_again(fetched, undecoded)
                            return
                    if checked.early_end is not None:
                        if not self._copies.is_missing_too(checked.early_end):
                            self._early_ends.resolve(checked.early_end)
                        return
                    if self._is_over(frame, indices):
                        return
        except FrameLate:
            self._cluster.suspect(asked[0].queue, self._answering)
            raise

    def _fetched(self, checked: CheckedFrame, broker_id: int) -> Fetched:
        """Moves the positions past the frame, and returns the frame for the decoder."""
        failures = self._patience.failures
        self._patience.progressed(self._progress.advance(checked.moves))
        records, extents = self._copies.without_left_out(checked.records, checked.extents)
        return Fetched(records, extents, broker_id, checked.moves, failures)

    def _is_over(self, frame: "PullFrame", indices: list[int]) -> bool:
        """Returns True if the call has nothing left to send, or if the next queue is to be read from another broker."""
        open_now = next((index for index in indices if self._progress.is_open(index)), None)
        if open_now is None:
            return True
        touched = {self._ranges[indices[segment.range_index]].queue for segment in frame.segments}
        suggested, answering = frame.suggest_which_broker_id, frame.broker_id
        followed = [self._brokers.follow(queue, suggested, answering) for queue in sorted(touched)]
        return any(followed) and self._brokers.target(self._ranges[open_now].queue) != answering

    # --- failures -----------------------------------------------------------------------------------------------------

    def _bad_frame(self, first: int, error: RecordError | BadAnswer) -> None:
        """Handles a frame that this task or the client found invalid.

        The next attempt asks another broker of the same name, if there is one.
        """
        open_now = self._progress.first_open()
        queue = self._ranges[first if open_now is None else open_now].queue
        self._brokers.ask_instead_of(queue, self._answering)
        if isinstance(error, RecordError):
            error = BadAnswer(f"{queue}: a broker sent bytes that are not a record: {error}")
        self._patience.failed(error)

    def _ask_again(self, fetched: Fetched, undecoded: Undecoded) -> None:
        """Moves the positions back to the first record that was not returned yet, and asks for the unreadable records
        again.
        """
        if not undecoded.rows:
            raise Undecodable(str(undecoded.why)) from undecoded.why
        self._patience.failures = fetched.failures
        row = 0
        for extent, (index, before, after) in zip(fetched.extents, fetched.moves, strict=True):
            used = min(max(0, undecoded.used - row), extent.size)
            if used == extent.size:
                self._progress.at[index] = after
            else:
                self._progress.at[index] = int(fetched.records.queue_offset[row + used]) if used else before
            row += extent.size
        queues = np.repeat(np.arange(len(fetched.extents)), [extent.size for extent in fetched.extents])
        places = [
            Place(fetched.extents[queues[row]].queue, int(fetched.records.queue_offset[row])) for row in undecoded.rows
        ]
        self._copies.ask_for(places, fetched.broker_id, undecoded.why)

    def _refused(self, first: int, error: RocketSimError) -> None:
        """Handles a call that failed.  A broker that lacks one topic or queue refuses the whole call.  If the master
        confirms that a queue does not exist, the task skips the queue and reads the others.  A temporary error is
        retried, and all other errors are raised.
        """
        if says_missing(error) and self._skip_deleted(first, error):
            return
        if isinstance(error, NoPermission):
            raise PermissionError(f"reading {self._ranges[first].queue} is not permitted: {error}") from error
        if not is_worth_asking_again(error) and not says_missing(error):
            raise error
        self._patience.failed(error)

    def _skip_deleted(self, first: int, error: RocketSimError) -> bool:
        broker_name = self._ranges[first].queue.broker_name
        of_broker = [
            index
            for index, planned in enumerate(self._ranges)
            if planned.queue.broker_name == broker_name and self._progress.is_open(index)
        ]
        gone = self._cluster.bounds(sorted({self._ranges[index].queue for index in of_broker})).gone
        for index in of_broker:
            queue, _, until = self._ranges[index]
            if queue in gone:
                self._losses.allow(DELETED, queue, f"is gone while it was read: {error}")
                self._progress.at[index] = until
        return bool(gone)


def _as_fetched(fetched: Fetched) -> Generator[Fetched, None, None]:
    yield fetched


def says_missing(error: RocketSimError) -> bool:
    """Returns True if the error can mean that a topic does not exist, or that a queue id is beyond the topic's queues.
    RocketMQ has no error code of its own for a queue id that is too high.
    """
    return isinstance(error, TopicNotExist | InvalidParameter) or type(error) is BrokerRefused
