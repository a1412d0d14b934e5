"""StateWriter appends changes of the state to the log of a master.

A change is a transition, or a record from which a transition follows, such as a retry copy.  A change can be appended
in two ways:

- `submit` makes the change pending.  The pending changes of calls that come together (`GroupCommit`) become one record.
- `append` first appends the pending changes and then its own, at once, so that an ack that was accepted earlier comes
  before an expiry or a reset.  `append_record` appends one record at once; its callers call `flush` first if pending
  changes must come before the record.

The state changes only when the record of a change is applied from the log, as on a slave, and is therefore never ahead
of the log.  Only `next_of` looks at pending changes, too: it returns the offset behind the messages that they take.
"""

import asyncio
from collections.abc import Callable, Sequence

from rocketsim_proto.records.record import Record, RecordError
from rocketsim_proto.reserved import STATE_TOPIC

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import MessageIllegal, RocketSimError, ServiceNotAvailable
from broker_service.put_result import PutStatus
from broker_service.runtime.group_commit import GroupCommit
from broker_service.state import transitions
from broker_service.state.state import State
from broker_service.state.state_log import StateLog, Written
from broker_service.state.transitions import Place, Take, TakeInOrder, Transition

_BODY = 16 << 10  # bytes; a body that exceeds this size gets no further transitions
MAX_PENDING = 128  # this many pending transitions are appended without waiting for others


class StateWriter:
    """Appends changes of the state.  The functions in `changed` are called each time the state has caught up with the
    log.
    """

    def __init__(self, broker: Broker, log: StateLog) -> None:
        self.changed: list[Callable[[], None]] = []
        self._broker = broker
        self._log = log
        self.group_commit = GroupCommit(self.flush)
        self._pending: list[Transition] = []
        self._appended: asyncio.Future[int] | None = None  # gets the log's end after the pending transitions
        self._taken: dict[Place, int] = {}  # place -> next offset after the pending transitions

    @property
    def state(self) -> State:
        return self._log.state

    @property
    def pending(self) -> int:
        """Returns the number of pending transitions."""
        return len(self._pending)

    def next_of(self, place: Place) -> int | None:
        """Returns the group's next offset in this queue; None if the group has taken nothing from it."""
        if (taken := self._taken.get(place)) is not None:
            return taken
        queue = self.state.queues.get(place)
        return queue.next if queue is not None else None

    # --- following the log --------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Reads the state again, at a start and after a cut of the log.

        Pending changes are refused, because the broker takes no writes at a start or after a cut.
        """
        self.flush()
        self._broker.offsets.kept.clear()
        self._log.reload()
        self._show_offsets()

    def catch_up(self, written: Written | None = None) -> None:
        """Brings the state to the log's end, on masters and slaves."""
        self._log.catch_up(written)
        self._show_offsets()
        for listener in self.changed:
            listener()

    def read_again(self) -> bool:
        """Reads records of transactions again that were unreadable before; returns True if there were any.

        Raises an error if a record still cannot be read.
        """
        self.check_writable()
        is_read = self._log.read_again()
        self._show_offsets()
        return is_read

    def _show_offsets(self) -> None:
        offsets = self._broker.offsets
        for place, committed in self.state.take_changed():
            if committed is None:
                offsets.release(*place)
            else:
                offsets.keep(*place, committed)

    # --- what refuses a change ----------------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raises an error if the broker takes no writes, or if a record of the state cannot be applied."""
        self._broker.check_writable()
        self.catch_up()

    def check_takes_changes(self) -> None:
        """Raises the errors of `check_writable`, and SystemBusy if too many calls wait for the disk and slaves."""
        self.check_writable()
        self._broker.acknowledgements.check_room()

    def check_transactions(self) -> None:
        """Raises the errors of `check_writable`, and an error if a record of a transaction cannot be read."""
        self.check_writable()
        self._log.check_transactions()

    def check_all_known(self) -> None:
        """Raises an error if a record of the state or of a transaction cannot be read, even on a slave."""
        self.catch_up()
        self._log.check_transactions()

    # --- appending ----------------------------------------------------------------------------------------------------

    def submit(self, *changes: Transition) -> asyncio.Future[int]:
        """Appends the changes soon, together with those of other calls.

        If few calls come, the changes are appended at the end of this turn of the event loop.  The returned future gets
        the log's end after the changes, or the refusal.
        """
        loop = asyncio.get_running_loop()
        if self._appended is None:
            self._appended = loop.create_future()
            self._appended.add_done_callback(lambda appended: appended.cancelled() or appended.exception())
        appended = self._appended
        self._pending += changes
        self._taken |= {change.place: change.next for change in changes if isinstance(change, Take | TakeInOrder)}
        if self.group_commit.call_came():
            loop.call_soon(self.flush)
        elif len(self._pending) >= MAX_PENDING:
            self.flush()
        return appended

    def flush(self) -> None:
        """Appends the pending changes now."""
        changes, self._pending = self._pending, []
        appended, self._appended = self._appended, None
        self._taken.clear()
        if appended is None:
            return
        try:
            self.check_writable()
            for body in _bodies(changes):
                end = self._append(Record(STATE_TOPIC, body))
        except BaseException as error:
            appended.set_exception(error)
            if not isinstance(error, RocketSimError):
                raise
        else:
            appended.set_result(end)

    async def stored(self, appended: asyncio.Future[int], timeout_s: float) -> PutStatus:
        """Waits until submitted changes are appended and are as safe as `brokerRole` and `flushDiskType` require."""
        end = await asyncio.shield(appended)
        return await self._broker.acknowledgements.wait(end, timeout_s)

    def append(self, *changes: Transition) -> None:
        """Appends these changes now, after the pending ones.  Raises an error if the log refuses the changes."""
        if not changes:
            return
        self.flush()
        self.check_writable()
        for body in _bodies(changes):
            self._append(Record(STATE_TOPIC, body))

    async def make_topic(self, name: str) -> None:
        """Creates a topic.  Must be awaited just before an `append_record` to this topic."""
        await self._broker.topics.make_of_one_queue(name, self._broker.now_ms())

    def append_record(self, message: Record) -> int:
        """Appends a record of the broker's own, such as a copy, which may change the state.  Returns the log's end."""
        broker = self._broker
        if reason := broker.store.admission.why_not_writable():
            raise ServiceNotAvailable(reason)
        if broker.topics.get(message.topic) is None:  # the topic was deleted after `make_topic`
            broker.topics.put(TopicConfig(message.topic, read_queue_nums=1, write_queue_nums=1), broker.now_ms())
        try:
            return self._append(message)
        except RecordError as error:
            raise MessageIllegal(f"the message cannot be moved to topic {message.topic}: {error}") from error

    def _append(self, message: Record) -> int:
        end = self._broker.append_one(message).end_offset
        self.catch_up(Written(end, message.body) if message.topic == STATE_TOPIC else None)
        return end


def _bodies(changes: Sequence[Transition]) -> list[bytes]:
    """Returns the bodies of one or several records.  Each body is small enough for any log file."""
    bodies: list[bytes] = []
    some: list[bytes] = []
    size = 0
    for change in changes:
        some.append(transitions.encoded(change))
        size += len(some[-1])
        if size > _BODY:
            bodies.append(transitions.body_of(some))
            some, size = [], 0
    return bodies if bodies and not some else [*bodies, transitions.body_of(some)]
