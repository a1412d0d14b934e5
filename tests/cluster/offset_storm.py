"""Many concurrent commits and queries of offsets.  Offsets that were answered COMMIT_OK are recorded: no query may
return less afterwards."""

import threading
from dataclasses import dataclass, field

from rocketsim_client import Cluster, CommitStatus, MessageQueue
from rocketsim_client.errors import RocketSimError

Place = tuple[str, MessageQueue]  # a group and the queue that it reads


@dataclass(slots=True)
class OffsetHistory:
    """The offsets of a storm.  `floor` is the highest offset that was answered OK.  `committed` is the last offset that
    a committer has tried to commit, and no query may return a higher one.
    """

    floor: dict[Place, int] = field(default_factory=dict)
    committed: dict[Place, int] = field(default_factory=dict)
    ok: int = 0
    others: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    reads_of_slaves: int = 0
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __str__(self) -> str:
        others = ", ".join(f"{count} {name}" for name, count in sorted(self.others.items()))
        return f"{self.ok} ok, {others}, {self.reads} reads ({self.reads_of_slaves} of slaves)"

    @property
    def answers(self) -> int:
        return self.ok + sum(self.others.values())

    def answered(self, place: Place, offset: int, standing: int, status: str) -> None:
        with self.lock:
            self._check(place, standing, self.floor.get(place, 0), f"a commit of {offset} answered {status}")
            if status == CommitStatus.COMMIT_OK.name:
                self.ok += 1
                self.floor[place] = max(standing, self.floor.get(place, 0))
            else:
                self.others[status] = self.others.get(status, 0) + 1

    def failed(self, error: RocketSimError) -> None:
        with self.lock:
            name = type(error).__name__
            self.others[name] = self.others.get(name, 0) + 1

    def read(self, place: Place, offset: int, floor: int, who: str) -> None:
        """Checks an offset that a query returned.  `floor` is the highest offset that was answered OK before the query
        was sent.
        """
        with self.lock:
            self.reads += 1
            self.reads_of_slaves += who != "broker id 0"
            self._check(place, offset, floor, who)

    def _check(self, place: Place, offset: int, floor: int, who: str) -> None:
        if not floor <= offset <= self.committed[place]:
            self.faults.append(f"{who}: {place} at {offset}, {floor} was OK and {self.committed[place]} the furthest")


class OffsetStorm:
    """Commits and queries offsets.  Each group has a thread that commits rising offsets, and a thread that queries the
    master first, then its slave.
    """

    def __init__(self, name_server: str, queues: list[MessageQueue], groups: int, end: int) -> None:
        self.history = OffsetHistory()
        self._end = end
        self._queues = queues
        self._stop = threading.Event()
        self._clusters = [Cluster(name_server, timeout_s=1.0) for _ in range(2 * groups)]
        self._threads: list[threading.Thread] = []
        for number in range(groups):
            for work, cluster in (
                (self._commit, self._clusters[2 * number]),
                (self._read, self._clusters[2 * number + 1]),
            ):
                for queue in queues:
                    self.history.committed[f"g{number}", queue] = 0
                self._threads.append(threading.Thread(target=work, args=(f"g{number}", cluster)))

    def __enter__(self) -> "OffsetStorm":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> OffsetHistory:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for cluster in self._clusters:
            cluster.close()
        return self.history

    def _commit(self, group: str, cluster: Cluster) -> None:
        offset = 0
        while not self._stop.is_set():
            offset = min(offset + 1, self._end)
            for queue in self._queues:
                place = (group, queue)
                self.history.committed[place] = offset
                try:
                    result = cluster.commit(group, {queue: offset})
                except RocketSimError as error:
                    self.history.failed(error.__cause__ if isinstance(error.__cause__, RocketSimError) else error)
                    self._stop.wait(0.05)  # a broker is dead at the moment
                    continue
                status = result.statuses[queue.broker_name].name
                self.history.answered(place, offset, result.offsets[queue], status)

    def _read(self, group: str, cluster: Cluster) -> None:
        while not self._stop.is_set():
            with self.history.lock:
                floors = {queue: self.history.floor.get((group, queue), 0) for queue in self._queues}
            try:
                found, who = self._committed(group, cluster)
            except RocketSimError:
                self._stop.wait(0.05)
                continue
            for queue, offset in found.items():
                self.history.read((group, queue), max(offset, 0), floors[queue], f"broker id {who}")
            self._stop.wait(0.002)

    def _committed(self, group: str, cluster: Cluster) -> tuple[dict[MessageQueue, int], int]:
        """Returns the same as `Cluster.committed`, and the id of the broker that answered."""
        first = self._queues[0]
        answer = cluster.ask(
            first.topic,
            first.broker_name,
            lambda member: cluster.transport.reads.query_offsets(
                member.address, group, self._queues, False, cluster.timeout_s
            ),
        )
        return {
            MessageQueue(topic, first.broker_name, queue_id): offset for topic, queue_id, offset in answer.offsets
        }, answer.broker_id
