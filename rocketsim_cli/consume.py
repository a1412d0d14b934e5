"""`rocketsim consume`: shows a topic's messages, and commits or acknowledges them."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rocketsim_proto.printable import printable

from rocketsim_cli import completion
from rocketsim_cli.connection import connection_to
from rocketsim_cli.message_facts import message_facts, message_text
from rocketsim_cli.options import NameServer, Topic
from rocketsim_cli.tables import cell, note, show_json
from rocketsim_cli.trouble import WrongCommandLine

if TYPE_CHECKING:
    from rocketsim_client import CommitStatus, Consumer, MessageQueue, PullConsumer, ReceivedMessage, SqlExpression
    from rocketsim_client.message_view import Messages, MessageView

COMMIT_EVERY_S = 1.0
IDLE_S = 0.2
WAIT_S = 1.0  # how long a pop waits for a message, in seconds
AHEAD = 1000  # the most messages that are received and not yet acknowledged
ACKS = 32  # the most messages that are shown and not yet acknowledged


class Start(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


def consume(
    context: typer.Context,
    name_server: NameServer,
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            help="The consumer group. Without a group, no offset is committed.",
            autocompletion=completion.groups,
        ),
    ] = None,
    start: Annotated[
        Start | None,
        typer.Option("--from", help="Where to start. Default: committed (or earliest) with a group, earliest without."),
    ] = None,
    pop: Annotated[
        bool,
        typer.Option(
            "--pop",
            help="Consume as a member of the group: get messages that no other member has, and acknowledge them.",
        ),
    ] = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for further messages until Ctrl-C.")] = False,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", help="End after this number of messages.", min=1)
    ] = None,
    tags: Annotated[
        str, typer.Option("--tags", help="The tags to show, as RocketMQ's expression: '*' or 'TagA || TagB'.")
    ] = "*",
    sql: Annotated[
        str | None, typer.Option("--sql", help='An SQL92 condition over properties, as in "price > 20".')
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON line for each message; errors are JSON on standard error.")
    ] = False,
) -> None:
    """Show messages, and commit the offsets of the messages that were shown.

    The command pulls all queues up to their ends. With --pop the brokers deliver each message to one member of the
    group, as with RocketMQ 5's clients. Messages that were shown are acknowledged; messages that were received but not
    shown are delivered to other members. With --pop the command ends when no message has come for a second.
    """
    from rocketsim_client import Consumer, PullConsumer, SqlExpression

    if start is Start.COMMITTED and group is None:
        raise WrongCommandLine("--from committed needs a group: -g NAME")
    if pop and group is None:
        raise WrongCommandLine("--pop needs a group: -g NAME")
    if pop and start is not None:
        raise WrongCommandLine(
            "--pop starts at the group's offsets, not at --from; `rocketsim admin resetOffsetByTime` moves the offsets"
        )
    if sql is not None and tags != "*":
        raise WrongCommandLine("--tags or --sql, not both: in SQL92 the tag is the property TAGS")
    expression = tags if sql is None else SqlExpression(sql)
    connection = connection_to(name_server, context)
    tell = partial(note, as_json=as_json)
    show = _show_json if as_json else _show_text
    if pop:
        assert group is not None
        most = min(max_messages or AHEAD, AHEAD)
        with (
            Consumer(connection, group, {topic: expression}, max_in_flight=most) as member,
            stop_on_signal() as stop,
        ):
            show_until(stop, Member(member, tell=tell), show, follow=follow, max_messages=max_messages)
        return
    with PullConsumer(connection, group=group or "rocketsim-consume") as consumer:
        reader = Reader(consumer, topic, expression, commits=group is not None, tell=tell)
        reader.start(start or (Start.COMMITTED if group else Start.EARLIEST))
        with stop_on_signal() as stop:
            show_until(stop, reader, show, follow=follow, max_messages=max_messages)


class Source(Protocol):
    """Yields messages, and commits the messages that its caller has taken. A message is taken when the caller asks for
    the next message.
    """

    def messages(self, stop: threading.Event, *, follow: bool) -> "Iterator[MessageView]": ...
    def commit(self) -> None: ...


def show_until(
    stop: threading.Event,
    source: Source,
    show: "Callable[[MessageView], None]",
    *,
    follow: bool,
    max_messages: int | None,
) -> None:
    """Shows messages until `stop` is set. Commits the messages that were shown, even after an error."""
    try:
        for number, message in enumerate(source.messages(stop, follow=follow), 1):
            show(message)
            if number == max_messages:
                stop.set()
    finally:
        source.commit()


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C and SIGTERM set. Neither signal interrupts the program, so that exactly the messages
    that were shown are committed.
    """
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Reader:
    """Reads all queues of a topic in turn, and commits the messages that its caller has taken."""

    def __init__(
        self,
        consumer: "PullConsumer",
        topic: str,
        expression: "str | SqlExpression",
        *,
        commits: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._tell = tell
        self._statuses = _Statuses("committed", tell)
        self._consumer = consumer
        self._expression = expression
        self._commits = commits
        self._queues = consumer.message_queues(topic)
        self._positions: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}
        self._last_commit = time.monotonic()

    def start(self, start: Start) -> None:
        """Sets the position of each queue. With `committed`, a queue without a committed offset starts at its earliest
        message.
        """
        topic = self._queues[0].topic
        bounds = self._consumer.bounds(topic)
        committed = self._consumer.committed_all(self._queues) if start is Start.COMMITTED else {}
        for queue in self._queues:
            first, end = (bounds[queue].min_offset, bounds[queue].max_offset) if queue in bounds else (0, 0)
            known = committed.get(queue, -1)
            self._positions[queue] = end if start is Start.LATEST else known if known >= 0 else first
        self._ends = {queue: bounds[queue].max_offset for queue in self._queues if queue in bounds}

    def messages(self, stop: threading.Event, *, follow: bool) -> "Iterator[MessageView]":
        """Yields messages until `stop` is set. Without `follow`, ends when every queue is read up to the end that the
        queue had at `start`.
        """
        from rocketsim_client.errors import Unreachable

        while not stop.is_set():
            found = 0
            for queue in self._queues:
                if not follow and self._positions[queue] >= self._ends.get(queue, 0):
                    continue
                try:
                    messages, next_offset = self._pull(queue)
                except Unreachable as error:
                    if not follow:
                        raise
                    self._tell(f"{error}; trying again")
                    stop.wait(1.0)
                    continue
                found += next_offset != self._positions[queue]
                for message in messages:
                    yield message
                    self._positions[queue] = message.queue_offset + 1
                    if stop.is_set():
                        return
                self._positions[queue] = next_offset
            if time.monotonic() - self._last_commit >= COMMIT_EVERY_S:
                self.commit()
            if not follow and all(self._positions[queue] >= self._ends.get(queue, 0) for queue in self._queues):
                return
            if not found:
                stop.wait(IDLE_S)

    def _pull(self, queue: "MessageQueue") -> "tuple[Messages, int]":
        from rocketsim_client import PullStatus

        result = self._consumer.pull(queue, self._positions[queue], expression=self._expression)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._tell(
                f"{queue.broker_name} queue {queue.queue_id} has no offset {self._positions[queue]} "
                f"(it has {result.min_offset} to {result.max_offset}); continuing at {result.next_begin_offset}"
            )
        return result.messages, result.next_begin_offset

    def commit(self) -> None:
        from rocketsim_client.model import worst

        self._last_commit = time.monotonic()
        changed = {queue: at for queue, at in self._positions.items() if self._committed.get(queue) != at}
        if self._commits and changed:
            self._statuses.tell(worst(self._consumer.commit_all(changed).statuses.values()))
            self._committed.update(changed)


class Member:
    """Receives messages as a member of a consumer group. Acknowledges the messages that its caller has taken, several
    with one call.
    """

    def __init__(self, consumer: "Consumer", *, tell: Callable[[str], None]) -> None:
        self._consumer = consumer
        self._tell = tell
        self._statuses = _Statuses("acknowledged", tell)
        self._taken: list[ReceivedMessage] = []

    def messages(self, stop: threading.Event, *, follow: bool) -> "Iterator[ReceivedMessage]":
        """Yields messages until `stop` is set. Without `follow`, ends when no message has come for `WAIT_S`."""
        from rocketsim_client.consuming.settler import may_succeed_later
        from rocketsim_client.errors import RocketSimError

        while not stop.is_set():
            try:
                if len(self._taken) >= ACKS:
                    self.commit()
                # While messages wait for their acknowledgement, `poll` does not wait for further messages.
                message = self._consumer.poll(0 if self._taken else WAIT_S)
                if message is None:
                    if not self._taken and not follow:
                        return
                    self.commit()
            except RocketSimError as error:
                if not follow or not may_succeed_later(error):
                    raise
                self._tell(f"{error}; trying again")
                stop.wait(WAIT_S)
                continue
            if message is not None:
                yield message
                self._taken.append(message)

    def commit(self) -> None:
        """Acknowledges the taken messages. After a failure the messages are kept for the next call."""
        from rocketsim_client import InvalidReceiptHandle

        if not self._taken:
            return
        try:
            self._statuses.tell(self._consumer.ack(self._taken))
        except InvalidReceiptHandle as error:  # this process was suspended until its receipt handles expired
            self._tell(str(error))
        self._taken = []


class _Statuses:
    """Warns the user if commits or acknowledgements are less safe than `COMMIT_OK`, once per change of the status."""

    def __init__(self, done: str, tell: Callable[[str], None]) -> None:
        self._done, self._tell = done, tell
        self._last: CommitStatus | None = None

    def tell(self, status: "CommitStatus") -> None:
        if status is not self._last and status.name not in ("COMMIT_OK", "UNSAID"):
            self._tell(f"{self._done} with {status.name}: messages may come again if the broker is lost")
        self._last = status


def _show_json(message: "MessageView") -> None:
    show_json(message_facts(message))


def _show_text(message: "MessageView") -> None:
    where = f"{message.broker_name} queue {message.queue_id} offset {message.queue_offset}"
    text = printable(message_text(message), keep="\n\t")
    print(f"{where}\t{cell(message.tags or None)}\t{text}", flush=True)
