"""Many concurrent sends, with outcomes as in Jepsen: ok, failed, unknown.

A send has failed only if it certainly had no effect.  A lost answer is unknown: the message may be found later or not.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from itertools import pairwise

from rocketsim_client import Message, Producer
from rocketsim_client.errors import RocketSimError, SendFailed, Unreachable
from rocketsim_client.model import SendResult, SendStatus

IN_FLIGHT = 2_000
GROUPS = 3  # message groups; every fourth message belongs to one of them


@dataclass(slots=True)
class History:
    """What the senders know of their messages.  Bodies are unique, so a body identifies its message."""

    ok: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # body -> (queue id, queue offset)
    # body -> place on the master; the slave may lack the message
    stored: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    failed: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    sent_again: int = 0  # sends that the producer itself repeated, known only at the end
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __str__(self) -> str:
        return f"{len(self.ok)} ok, {len(self.stored)} stored, {len(self.failed)} failed, {len(self.unknown)} unknown"

    def add(self, body: bytes, result: SendResult) -> None:
        place = (result.message_queue.queue_id, result.queue_offset)
        with self.lock:
            (self.ok if result.send_status == SendStatus.SEND_OK else self.stored)[body] = place

    def add_failure(self, body: bytes, error: BaseException) -> None:
        maybe = error.maybe_stored if isinstance(error, SendFailed) else isinstance(error, Unreachable)
        with self.lock:
            (self.unknown if maybe else self.failed).add(body)


class SendStorm:
    """A thread that sends `rate` messages a second to one topic until `stop`."""

    def __init__(self, name_server: str, topic: str, rate: float, seed: int) -> None:
        self.history = History()
        self._topic = topic
        self._rate = rate
        self._chance = random.Random(seed)
        self._producer = Producer(name_server=name_server, group="storm")
        self._stop = threading.Event()
        self._slots = threading.Semaphore(IN_FLIGHT)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "SendStorm":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> History:
        self._stop.set()
        self._thread.join()
        self._producer.close()
        self.history.sent_again = self._producer.stats.sent_again
        return self.history

    def _run(self) -> None:
        started, sent = time.monotonic(), 0
        while not self._stop.is_set():
            for _ in range(int((time.monotonic() - started) * self._rate) - sent):
                sent += 1
                group = "" if sent % 4 else f"g{sent // 4 % GROUPS}"
                body = b"%08d %s " % (sent, group.encode()) + self._chance.randbytes(self._chance.randrange(10, 300))
                self._send(body, group or None)
            self._stop.wait(0.005)

    def _send(self, body: bytes, group: str | None) -> None:
        self._slots.acquire()

        def ended(future) -> None:  # type: ignore[no-untyped-def]
            self._slots.release()
            error = future.exception()
            if error is None:
                self.history.add(body, future.result())
            else:
                self.history.add_failure(body, error)

        try:
            self._producer.send_async(Message(self._topic, body), message_group=group).add_done_callback(ended)
        except RocketSimError as error:
            self._slots.release()
            self.history.add_failure(body, error)


def check(history: History, found: dict[tuple[int, int], bytes], excused: Set[bytes] = frozenset()) -> None:
    """Checks `found`, all that one broker serves by (queue id, queue offset), against the history.  The mode allows the
    loss of the bodies in `excused`.
    """
    lost = [body[:8] for body, place in history.ok.items() if found.get(place) != body and body not in excused]
    assert not lost, f"{len(lost)} acknowledged messages are not where they were acknowledged: {lost[:5]} ({history})"
    read = Counter(found.values())
    assert not history.failed & read.keys(), "a message that certainly failed was read"
    # A message may be stored more than once only if it was sent again after a lost answer.
    again = read.total() - len(read)
    assert again <= history.sent_again, f"{again} are there once more, {history.sent_again} were sent again"
    strangers = read.keys() - history.ok.keys() - history.stored.keys() - history.unknown
    assert not strangers, f"{len(strangers)} messages were read that nobody sent"
    for queue_id in {queue for queue, _ in found}:
        offsets = sorted(offset for queue, offset in found if queue == queue_id)
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), f"queue {queue_id} has gaps"
    # Messages of one group are in one queue, in the order in which they were sent.
    groups: dict[bytes, list[tuple[bytes, tuple[int, int]]]] = {}
    for body, place in sorted((history.stored | history.ok).items()):
        if body not in excused and (group := body.split(b" ", 2)[1]):
            groups.setdefault(group, []).append((body, place))
    for group, messages in groups.items():
        wrong = [(one[0][:8], other[0][:8]) for one, other in pairwise(messages) if one[1] >= other[1]]
        assert not wrong, f"of group {group!r} {len(wrong)} messages are not in the order of their sends: {wrong[:5]}"
