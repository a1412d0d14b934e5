"""Decides which broker a task asks for a queue.  With readFrom=suggested, the first call goes to the broker in the
task's hints, or else to the master.  After each frame the task follows the suggestion of the broker that has
answered."""

from collections.abc import MutableMapping

from rocketsim_client.model import MASTER_ID, MessageQueue
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.source_cluster import SourceCluster


class BrokerChoice:
    """Chooses the broker to ask for each queue of one task.

    `hints` has the broker to ask first for a queue, and is updated with the brokers' suggestions for later tasks.
    """

    def __init__(
        self, cluster: SourceCluster, options: SourceOptions, hints: MutableMapping[MessageQueue, int]
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._hints = dict(hints)  # a copy for this task
        self._learned = hints
        # The queues for which the master is asked, because a slave lacked records.
        self._left_slave: set[MessageQueue] = set()
        # Queue -> the broker to ask, because another broker sent unreadable records.
        self._instead: dict[MessageQueue, int] = {}

    @property
    def only_master(self) -> bool:
        return self._options.read_from == "masterOnly"

    def members(self, queue: MessageQueue) -> dict[int, bool]:
        """Maps each broker id of the queue's broker name to True if the broker is worth asking."""
        return self._cluster.members(queue)

    def target(self, queue: MessageQueue) -> int:
        if queue in self._instead:
            return self._instead[queue]
        if queue in self._left_slave:
            return MASTER_ID
        match self._options.read_from:
            case "slave":
                slaves = sorted(i for i, usable in self.members(queue).items() if i != MASTER_ID and usable)
                # A broker's suggestion is not used here, because it may name the master.
                return slaves[0] if slaves else MASTER_ID
            case "suggested":
                return self._hints.get(queue, MASTER_ID)
        return MASTER_ID

    def follow(self, queue: MessageQueue, suggested: int, answering: int) -> bool:
        """Notes which broker the answering broker suggests for the queue.  Returns True if the task is to ask another
        broker for this queue now.
        """
        if self._options.read_from != "suggested" or queue in self._left_slave or queue in self._instead:
            return False
        if suggested != answering and not self.members(queue).get(suggested, False):
            return False  # the suggested broker is unknown, or failed a moment ago
        self._learned[queue] = suggested
        if "task" not in self._options.suggest_scope:
            return False
        self._hints[queue] = suggested
        return suggested != answering

    def leave_slave(self, queue: MessageQueue) -> bool:
        """Makes the task ask the master for this queue from now on, because the master may have records that a slave
        lacks.

        Returns False if the master was asked already or does not answer.
        """
        master_is_there = self.members(queue).get(MASTER_ID, False) if queue not in self._left_slave else False
        self._left_slave.add(queue)
        return master_is_there

    def ask_instead(self, queue: MessageQueue, broker_id: int) -> None:
        """Sends the next request for the queue to this broker, because another broker sent unreadable records."""
        self._instead[queue] = broker_id

    def ask_instead_of(self, queue: MessageQueue, broker_id: int) -> None:
        """Sends the next request for the queue to any other broker of the name that answers and may be asked."""
        members = {} if self.only_master else self.members(queue)
        others = [other for other, usable in members.items() if usable and other != broker_id]
        if others:
            self._instead[queue] = min(others, key=lambda other: (other < broker_id, other))

    def was_asked_instead(self, queue: MessageQueue, broker_id: int) -> bool:
        """Returns True if `ask_instead` had chosen this broker for the queue, and forgets that choice."""
        if self._instead.get(queue) != broker_id:
            return False
        del self._instead[queue]
        return True
