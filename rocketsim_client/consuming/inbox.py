"""The state that a consumer's threads share: the received messages, and an event that is set when the consumer is
closed."""

import os
import socket
import threading
import uuid
from collections.abc import Iterable

from rocketsim_client.consuming.in_flight import InFlight
from rocketsim_client.consuming.options import ConsumerOptions
from rocketsim_client.errors import ClientClosed


class Inbox:
    """The condition `changed` guards `in_flight`, and is notified when messages are added or removed."""

    def __init__(self, options: ConsumerOptions) -> None:
        self.group = options.group
        self.client_id = f"{socket.gethostname()[:64]}@{os.getpid()}@{uuid.uuid4().hex[:12]}"
        self.in_flight = InFlight(
            options.max_in_flight, options.max_in_flight_bytes, options.invisible_s, options.renew_for_s
        )
        self.changed = threading.Condition()
        self.closed = threading.Event()

    def __str__(self) -> str:
        held = f"{len(self.in_flight)} messages in flight, {self.in_flight.size_bytes} bytes"
        return f"consumer {self.client_id} of group {self.group}: {held}"

    def check_open(self) -> None:
        if self.closed.is_set():
            raise ClientClosed(f"the consumer of group {self.group} has been closed")

    def settle(self, handles: Iterable[str]) -> None:
        """Removes messages that do not have to be acknowledged or given back any more."""
        with self.changed:
            for handle in handles:
                self.in_flight.settle(handle)
            self.changed.notify_all()
