"""A consumer that reads every queue of topic T, commits, and records what it has read: none of that may
change later.
"""

import threading

from rocketsim_client import MessageQueue, PullConsumer, PullStatus
from rocketsim_client.errors import RocketSimError

MOST = 2_000  # messages of one pull, unless the brokers' own limit is lower


class Reader:
    """A thread that reads all messages again and again.

    `faults` has events that must never happen.  `taken_back` has changes that are allowed only in a mode in which a
    promotion may lose messages: a queue that ends earlier, or a lower committed offset.
    """

    def __init__(self, name_server: str, group: str) -> None:
        self.seen: dict[tuple[int, int], bytes] = {}
        self.faults: list[str] = []
        self.taken_back: list[str] = []
        # each queue that ended earlier, and the offset from which it went on
        self.ended_earlier: list[tuple[int, int]] = []
        self._consumer = PullConsumer(name_server=name_server, group=group)
        self._positions: dict[MessageQueue, int] = {}
        self._standing: dict[MessageQueue, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for queue in self._consumer.message_queues("T"):
                    self._read(queue)
            except RocketSimError:
                self._stop.wait(0.1)  # A broker is dead at the moment.

    def _read(self, queue: MessageQueue) -> None:
        at = self._positions.setdefault(queue, 0)
        result = self._consumer.pull(queue, at, MOST)
        if result.status is PullStatus.OFFSET_ILLEGAL and result.next_begin_offset < at:
            self.taken_back.append(f"{queue}: {at} was the next, now {result.next_begin_offset} is")
            self.ended_earlier.append((queue.queue_id, result.next_begin_offset))
            self._positions[queue] = result.next_begin_offset
            return
        for message in result.messages:
            if message.queue_offset != self._positions[queue]:
                self.faults.append(f"{queue}: offset {message.queue_offset} after {self._positions[queue] - 1}")
            self.seen[queue.queue_id, message.queue_offset] = message.body
            self._positions[queue] = message.queue_offset + 1
        if self._positions[queue] > at:
            standing = self._consumer.commit(queue, self._positions[queue])
            if standing < self._standing.get(queue, 0):
                self.taken_back.append(f"{queue}: a commit stood at {self._standing[queue]} and then at {standing}")
            self._standing[queue] = standing
