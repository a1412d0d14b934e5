"""Extends the deadlines of messages that are being processed, in a thread of its own."""

import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterable

from rocketsim_client.consuming.inbox import Inbox
from rocketsim_client.consuming.options import ConsumerOptions
from rocketsim_client.consuming.settler import Settler
from rocketsim_client.errors import ClientClosed, RocketSimError
from rocketsim_client.received_message import ReceivedMessage

logger = logging.getLogger(__name__)


class Renewal:
    """The thread that extends deadlines.  The thread starts with the first messages, and ends when the consumer is
    closed or garbage-collected."""

    def __init__(self, settler: Settler, options: ConsumerOptions, inbox: Inbox, clock: Callable[[], float]) -> None:
        self._settler = settler
        self._options = options
        self._inbox = inbox
        self._clock = clock
        self.sooner = threading.Event()  # set to make the thread look for due renewals before its pause is over
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread unless the thread runs already.  The caller holds the inbox's condition."""
        if self.thread is None and self._options.renew_for_s > 0:
            self.thread = threading.Thread(
                target=_renew_while_alive,
                args=(weakref.ref(self), self._inbox.closed, self.sooner, self._options.renewal_interval_s),
                name=f"rocketsim-renew-{self._options.group}",
                daemon=True,
            )
            self.thread.start()

    def join(self, timeout_s: float) -> None:
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)

    def renew(self) -> float:
        """Extends the deadlines that are due.  Returns in how many seconds the next renewal is due, or a negative
        number if the renewal is overdue.  The brokers share the time equally, so that a broker that does not answer
        leaves time for the others."""
        until = self._clock() + min(self._options.timeout_s, self._options.renewal_interval_s)
        with self._inbox.changed:
            left = _by_broker_name(self._inbox.in_flight.to_renew(self._clock()))
        has_failed = False
        while left:
            name, due = left.popitem()
            share_s = max(0.0, until - self._clock()) / (len(left) + 1)
            with self._settler.moving(due):
                with self._inbox.changed:  # some messages may be acknowledged or given back by now
                    due = _by_broker_name(self._inbox.in_flight.to_renew(self._clock())).get(name, [])
                try:
                    self._settler.move(due, self._options.invisible_s, share_s, renews=True)
                except ClientClosed:
                    pass
                except RocketSimError as error:
                    logger.warning("%s: the deadlines of some messages were not extended: %s", self._inbox, error)
                    has_failed = True
        with self._inbox.changed:
            now = self._clock()
            # A failed renewal is not repeated at once.
            return math.inf if has_failed else self._inbox.in_flight.next_renewal(now) - now


def _renew_while_alive(
    renewal: "weakref.ref[Renewal]", closed: threading.Event, sooner: threading.Event, every_s: float
) -> None:
    pause_s = every_s
    while True:
        sooner.wait(pause_s)
        sooner.clear()
        alive = renewal()
        if closed.is_set() or alive is None:
            return
        pause_s = min(max(alive.renew(), 0.001), every_s)
        del alive


def _by_broker_name(messages: Iterable[ReceivedMessage]) -> dict[str, list[ReceivedMessage]]:
    found: dict[str, list[ReceivedMessage]] = {}
    for message in messages:
        found.setdefault(message.broker_name, []).append(message)
    return found
