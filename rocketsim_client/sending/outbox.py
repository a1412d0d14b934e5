"""Keeps accepted messages until they are sent, and runs the few threads that send them.  The outbox adds a lock and
threads to the accumulator.

A thread is started when a message has to be sent and all other threads are busy.  `close` first sends all accepted
messages.
"""

# Arrow imports this module with the first batch.  The import would fail at the end of the process, when producers that
# the program did not close are closed, so the module is imported here.
import concurrent.futures.thread  # noqa: F401
import threading
from collections.abc import Callable

from rocketsim_client.errors import CallTimeout, ClientClosed, SendFailed
from rocketsim_client.sending.accumulator import Accumulator, Batch, Kind
from rocketsim_client.sending.options import ProducerOptions
from rocketsim_client.sending.pending import Pending
from rocketsim_client.sending.sender import MessageSender

MAX_SENDERS = 32


class Outbox:
    """Accepts messages and hands batches to `sender`, which sends them and completes their futures.  Thread-safe."""

    def __init__(
        self,
        options: ProducerOptions,
        sender: MessageSender,
        clock: Callable[[], float],
        *,
        waits_for_room: bool,
    ) -> None:
        """With `waits_for_room`, `accept` waits for space in the buffer without a limit.  Without `waits_for_room`,
        `accept` waits for space no longer than a send may take."""
        self._options = options
        self._sender = sender
        self._timeout_s = options.timeout_s
        self._room_timeout_s = None if waits_for_room else options.timeout_s
        self._buffer_bytes = options.buffer_bytes
        self._clock = clock
        self._closed = False
        self.start_anew()

    def start_anew(self) -> None:
        """Makes the outbox empty, with new locks and no threads.  The method is called by the constructor, and in a
        forked child."""
        options = self._options
        self._accumulator: Accumulator[Pending] = Accumulator(
            linger_s=options.linger_s, batch_bytes=options.batch_bytes, max_in_flight=options.max_in_flight
        )
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # notified when a sender may have something to do
        self._done = threading.Condition(
            self._lock
        )  # notified when a batch has ended, so that the buffer has space or is empty
        self._senders: list[threading.Thread] = []
        self._idle = 0

    def __str__(self) -> str:
        return str(self._accumulator)

    # --- accepting ------------------------------------------------------------------------------------------------

    def accept(
        self,
        entry: Pending,
        topic: str,
        kind: Kind,
        wait_store_msg_ok: bool,
        size: int,
        *,
        waits_s: float | None = None,
    ) -> None:
        """Accepts a message, and waits first while the buffer is full.  If the caller will wait `waits_s` for the
        result, and no other message of the same lane waits or is under way, the caller's thread sends the message
        itself."""
        queue = entry.queue
        assert queue is not None
        with self._lock:
            if self._closed:
                raise ClientClosed("this producer has been closed")
            accumulator = self._accumulator
            lane = accumulator.lane(queue.broker_name, topic, kind, wait_store_msg_ok)
            own = None if waits_s is None else accumulator.start_alone(lane, entry, size)
            if own is None:
                if accumulator.size_bytes + size > self._buffer_bytes:
                    self._wait_for_room(topic, size)
                    lane = accumulator.lane(queue.broker_name, topic, kind, wait_store_msg_ok)
                if accumulator.add(lane, entry, size, self._clock()):
                    self._notify_a_sender()
        if own is not None and waits_s is not None:
            self._run(own, self._clock() + waits_s)

    def _wait_for_room(self, topic: str, size: int) -> None:
        accumulator = self._accumulator

        def room() -> bool:
            return self._closed or not accumulator.size_bytes or accumulator.size_bytes + size <= self._buffer_bytes

        if not self._done.wait_for(room, self._room_timeout_s):
            assert self._room_timeout_s is not None
            raise SendFailed(
                f"topic {topic!r}: {accumulator.size_bytes} bytes wait for brokers, "
                f"no space in buffer_bytes within {self._room_timeout_s:.3g} s",
                attempts=0,
                maybe_stored=False,
                code=2,
            )
        if self._closed:
            raise ClientClosed("this producer has been closed")

    def _notify_a_sender(self) -> None:
        if self._idle:
            self._work.notify()
        elif len(self._senders) < MAX_SENDERS:
            name = f"rocketsim-send-{len(self._senders)}"
            sender = threading.Thread(target=self._send_batches, name=name, daemon=True)
            sender.start()
            self._senders.append(sender)

    # --- ending ---------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None) -> None:
        """Waits until all accepted messages are sent or have failed."""
        with self._lock:
            self._accumulator.closing = True
            self._work.notify_all()
            done = self._done.wait_for(self._accumulator.is_empty, timeout_s)
            self._accumulator.closing = self._closed
        if not done:
            raise CallTimeout(f"some messages were not sent within {timeout_s} s: {self}")

    def close(self) -> None:
        """Sends the accepted messages, then ends the threads."""
        with self._lock:
            self._closed = self._accumulator.closing = True
            self._work.notify_all()
            self._done.notify_all()
            self._done.wait_for(self._accumulator.is_empty)
            self._work.notify_all()
        for sender in self._senders:
            if sender is not threading.current_thread():
                sender.join()

    # --- sending --------------------------------------------------------------------------------------------------

    def _send_batches(self) -> None:
        while True:
            with self._lock:
                while (batch := self._accumulator.take(now := self._clock())) is None:
                    if self._closed and self._accumulator.is_empty():
                        return
                    self._idle += 1
                    self._work.wait(self._accumulator.due_in(now))
                    self._idle -= 1
            self._run(batch, self._clock() + self._timeout_s)

    def _run(self, batch: Batch[Pending], deadline: float) -> None:
        try:
            self._sender.send(batch.entries, batch.lane.key.kind, deadline)
        finally:
            with self._lock:
                self._accumulator.done(batch)
                self._done.notify_all()
                if self._idle:
                    self._work.notify()
                elif not self._senders and (batch.lane.open or batch.lane.full):
                    self._notify_a_sender()  # entries may have come while a caller's thread sent its own batch
