"""Asks each broker of the demo for the offsets that the consumer group has committed there."""

from types import TracebackType
from typing import Self

from rocketsim_cli.demo.report import QueueProgress
from rocketsim_cli.local_cluster import ServerProcess

TIMEOUT_S = 2.0


class DemoOffsets:
    """Keeps the committed offsets that each running broker has reported last.  DemoOffsets is a context manager,
    because it opens gRPC channels.
    """

    def __init__(self, brokers: list[ServerProcess], group: str, topic: str) -> None:
        from rocketsim_client import Cluster

        self._cluster = Cluster([broker.address for broker in brokers])
        self._brokers = brokers
        self._group = group
        self._topic = topic
        # (broker name, queue) -> broker id -> (end offset, committed offset)
        self._known: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.close()

    def ask(self) -> None:
        from rocketsim_proto.admin_pb2 import ConsumerProgressRequest

        from rocketsim_client.admin.groups import progress_of
        from rocketsim_client.errors import RocketSimError

        request = ConsumerProgressRequest(group=self._group, topic=self._topic)
        for broker in self._brokers:
            for members in (members for (name, _), members in self._known.items() if name == broker.broker_name):
                members.pop(broker.broker_id, None)
            if not broker.is_running():
                continue
            try:
                answer = self._cluster.transport.admin.command(broker.address, request, TIMEOUT_S)
            except RocketSimError:
                continue  # the broker is starting or has just ended, so its offsets are unknown
            for entry in progress_of(answer, broker.broker_name):
                if entry.queue.topic != self._topic:
                    continue  # leaves out the group's retry topics
                members = self._known.setdefault((broker.broker_name, entry.queue.queue_id), {})
                members[broker.broker_id] = (entry.broker_offset, entry.consumer_offset)

    def progress(self) -> list[QueueProgress]:
        rows = []
        for (broker_name, queue_id), members in sorted(self._known.items()):
            ends = [end for end, _ in members.values()]
            # A broker reports -1 if nothing is committed yet, which counts as 0, the beginning of the queue.
            committed = {broker_id: max(offset, 0) for broker_id, (_, offset) in members.items()}
            rows.append(QueueProgress(broker_name, queue_id, max(ends, default=0), committed.get(0), committed.get(1)))
        return rows

    def committed_on_slave(self, broker_name: str) -> int:
        """Returns the sum of the slave's committed offsets for this broker name."""
        return sum(row.on_slave or 0 for row in self.progress() if row.broker_name == broker_name)

    def are_at_the_end(self) -> bool:
        """Asks the brokers, and returns True if the end offset of every queue is committed on master and slave."""
        self.ask()
        rows = self.progress()
        return bool(rows) and all(row.on_master == row.on_slave == row.max_offset for row in rows)
