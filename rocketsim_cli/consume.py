"""`rocketsim consume`: a topic's messages, shown and committed."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli.credentials import credentials
from rocketsim_cli.message_facts import message_facts, message_text
from rocketsim_cli.options import NameServer, Topic
from rocketsim_cli.tables import note, show_json
from rocketsim_cli.tls import tls_files
from rocketsim_cli.trouble import Trouble

if TYPE_CHECKING:
    from rocketsim_client import MessageQueue, PullConsumer
    from rocketsim_client.message_view import Messages, MessageView

COMMIT_EVERY_S = 1.0
IDLE_S = 0.2


class Start(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


def consume(
    name_server: NameServer,
    topic: Topic,
    group: Annotated[
        str | None, typer.Option("-g", "--group", help="The consumer group; without one nothing is committed.")
    ] = None,
    start: Annotated[
        Start | None, typer.Option("--from", help="Default: committed (or earliest) with a group, earliest without.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more until Ctrl-C.")] = False,
    tags: Annotated[str, typer.Option("--tags", help="RocketMQ's expression: '*' or 'TagA || TagB'.")] = "*",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line a message, errors too (on standard error).")
    ] = False,
) -> None:
    """Show messages and commit what was shown."""
    from rocketsim_client import PullConsumer

    if start is Start.COMMITTED and group is None:
        raise Trouble("--from committed needs a group: -g NAME")
    with PullConsumer(
        name_server=name_server, group=group or "rocketsim-consume", **credentials(), **tls_files()
    ) as consumer:
        reader = Reader(consumer, topic, tags, commits=group is not None, tell=partial(note, as_json=as_json))
        reader.start(start or (Start.COMMITTED if group else Start.EARLIEST))
        show = _show_json if as_json else _show_text
        with stop_on_signal() as stop:
            try:
                for message in reader.messages(stop, follow=follow):
                    show(message)
            finally:
                reader.commit()


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event: between two messages, so that all that was shown is committed, and no more."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Reader:
    """All queues of a topic in turn; commits what its caller has taken."""

    def __init__(
        self, consumer: "PullConsumer", topic: str, tags: str, *, commits: bool, tell: Callable[[str], None]
    ) -> None:
        self._tell = tell
        self._consumer = consumer
        self._tags = tags
        self._commits = commits
        self._queues = consumer.message_queues(topic)
        self._positions: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}
        self._last_commit = time.monotonic()

    def start(self, start: Start) -> None:
        """Where nothing is committed, `committed` is the earliest."""
        topic = self._queues[0].topic
        bounds = self._consumer.bounds(topic)
        committed = self._consumer.committed_all(self._queues) if start is Start.COMMITTED else {}
        for queue in self._queues:
            first, end = (bounds[queue].min_offset, bounds[queue].max_offset) if queue in bounds else (0, 0)
            known = committed.get(queue, -1)
            self._positions[queue] = end if start is Start.LATEST else known if known >= 0 else first
        self._ends = {queue: bounds[queue].max_offset for queue in self._queues if queue in bounds}

    def messages(self, stop: threading.Event, *, follow: bool) -> "Iterator[MessageView]":
        """Up to where the queues ended at the start, or until `stop`."""
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

        result = self._consumer.pull(queue, self._positions[queue], expression=self._tags)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._tell(
                f"{queue.broker_name} queue {queue.queue_id} has no offset {self._positions[queue]} "
                f"(it has {result.min_offset} to {result.max_offset}); continuing at {result.next_begin_offset}"
            )
        return result.messages, result.next_begin_offset

    def commit(self) -> None:
        self._last_commit = time.monotonic()
        changed = {queue: at for queue, at in self._positions.items() if self._committed.get(queue) != at}
        if self._commits and changed:
            self._consumer.commit_all(changed)
            self._committed.update(changed)


def _show_json(message: "MessageView") -> None:
    show_json(message_facts(message))


def _show_text(message: "MessageView") -> None:
    where = f"{message.broker_name} queue {message.queue_id} offset {message.queue_offset}"
    print(f"{where}\t{message.tags or '-'}\t{message_text(message)}", flush=True)
