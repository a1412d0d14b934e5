"""Compares the messages that the demo sent, read and committed, and lists the guarantees that did not hold."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue: its end offset, and the group's committed offsets on the master and on the slave."""

    broker_name: str
    queue_id: int
    max_offset: int
    on_master: int | None
    on_slave: int | None

    @property
    def lag(self) -> int:
        return self.max_offset - (self.on_master or 0)


@dataclass(frozen=True, slots=True)
class DemoReport:
    sent: int
    statuses: Mapping[str, int]
    sent_again: int
    read: int
    acknowledged_ids: frozenset[str]
    counted_ids: Mapping[str, int]
    progress: list[QueueProgress]
    served: Mapping[tuple[str, int], int]
    killed_broker: str
    committed_to_slave: int  # by how many messages the slave's committed offsets moved while its master was away
    last_error: str = ""  # the error of the last send that failed
    problems: list[str] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        *,
        sent: int,
        statuses: Mapping[str, int],
        sent_again: int,
        read: int,
        acknowledged_ids: Iterable[str],
        counted_ids: Iterable[str],
        progress: list[QueueProgress],
        served: Mapping[tuple[str, int], int],
        killed_broker: str,
        committed_to_slave: int,
        last_error: str = "",
        trouble: Iterable[str] = (),
    ) -> "DemoReport":
        report = cls(
            sent,
            statuses,
            sent_again,
            read,
            frozenset(acknowledged_ids),
            Counter(counted_ids),
            progress,
            served,
            killed_broker,
            committed_to_slave,
            last_error,
        )
        report.problems.extend([*trouble, *report._findings()])
        return report

    @property
    def acknowledged(self) -> int:
        return len(self.acknowledged_ids)

    @property
    def lost(self) -> int:
        """Counts the acknowledged messages whose id is in no window of the query's result."""
        return len(self.acknowledged_ids - self.counted_ids.keys())

    @property
    def duplicates_dropped(self) -> int:
        return self.read - sum(self.counted_ids.values())

    @property
    def duplicates(self) -> int:
        """Counts the ids in the query's result that repeat an id which is already in the result."""
        return sum(count - 1 for count in self.counted_ids.values())

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.progress)

    @property
    def committed(self) -> int:
        return sum(queue.on_master or 0 for queue in self.progress)

    @property
    def ok(self) -> bool:
        return not self.problems

    def _findings(self) -> list[str]:
        """Returns a sentence for each guarantee that did not hold, such as a lost message.  The demo has succeeded if
        the list is empty.
        """
        found = []
        if not self.acknowledged:
            found.append("no message was acknowledged")
        if self.lost:
            found.append(f"{self.lost} acknowledged messages were never read")
        if self.duplicates:
            found.append(f"{self.duplicates} messages were counted more than once")
        if not self.progress:
            found.append("the group has no committed offsets")
        if self.lag:
            found.append(f"the group is {self.lag} messages behind")
        apart = [queue for queue in self.progress if queue.on_slave is not None and queue.on_slave != queue.on_master]
        if apart:
            found.append(f"{len(apart)} queues have different offsets on master and slave")
        if not self.served.get((self.killed_broker, 1)):
            found.append(f"the slave of {self.killed_broker} served nothing while its master was away")
        if self.committed_to_slave <= 0:
            found.append(f"the slave of {self.killed_broker} took no offsets while its master was away")
        return found

    def sums(self) -> list[str]:
        """Returns a sentence for each total that differs from the number of acknowledged messages."""
        told = []
        counted = self.counted_ids.keys()
        if self.sent != self.acknowledged:
            stored = len(counted - self.acknowledged_ids)
            told.append(
                f"{self.sent - self.acknowledged} of {self.sent} sent messages were not acknowledged; "
                f"{stored} of them were stored all the same, and are in the result"
            )
        if self.duplicates_dropped:
            told.append(
                f"read {self.read} = {self.read - self.duplicates_dropped} in the result + {self.duplicates_dropped} "
                "duplicates: messages that were stored, and sent again because the answer was lost"
            )
            told.append('"served by" leaves the duplicates out; the committed offsets count them, too')
        return told

    def as_json(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            "problems": self.problems,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "statuses": dict(self.statuses),
            "lastError": self.last_error,
            "sentAgain": self.sent_again,
            "read": self.read,
            "lost": self.lost,
            "duplicatesDropped": self.duplicates_dropped,
            "duplicates": self.duplicates,
            "committed": self.committed,
            "committedToSlave": self.committed_to_slave,
            "lag": self.lag,
            "offsets": [
                {
                    "brokerName": queue.broker_name,
                    "queueId": queue.queue_id,
                    "maxOffset": queue.max_offset,
                    "committedOnMaster": queue.on_master,
                    "committedOnSlave": queue.on_slave,
                }
                for queue in self.progress
            ],
            "served": {f"{name}:{broker_id}": count for (name, broker_id), count in sorted(self.served.items())},
        }
