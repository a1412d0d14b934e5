"""The queues of a query that the driver knows, and the bounds of these queues.  The driver asks name servers for new
queues every queueDiscoveryIntervalMs.
"""

import difflib
import logging
import re
from collections.abc import Callable, Iterable

from rocketsim_proto.reserved import SYSTEM_PREFIXES, SYSTEM_TOPICS

from rocketsim_client.model import MessageQueue
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.source_cluster import OffsetAnswers, Offsets, QueueStates, ReadIn, SourceCluster

logger = logging.getLogger(__name__)

# The prefixes of RocketMQ's own topics, which subscribePattern leaves out.
HIDDEN_PREFIXES = (*SYSTEM_PREFIXES, "RMQ_SYS_")


class NothingAnswers(RuntimeError):
    """Raised if no broker of any queue can be reached."""


class QueueWatch:
    """Finds the queues of one query, and asks brokers for their bounds."""

    def __init__(self, cluster: SourceCluster, options: SourceOptions, clock: Callable[[], int]) -> None:
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._queues: set[MessageQueue] = set()
        self._discovered_ms: int | None = None
        self._unreachable_since_ms: int | None = None
        self._reported: set[str] = set()

    @property
    def discovery_due_in_ms(self) -> int:
        """The time until `discover` asks the name servers again; 0 or less if it asks with its next call."""
        if self._discovered_ms is None:
            return 0
        return self._discovered_ms + self._options.queue_discovery_interval_ms - self._clock()

    def discover(self, *, must_exist: bool = False, must_answer: bool = False) -> set[MessageQueue]:
        """Returns the queues that the option assign names, or else all queues of the topics to read that the name
        servers know.  The name servers are asked again every queueDiscoveryIntervalMs.  A queue may be missing because
        its broker is down, so its master is asked before the queue counts as deleted.

        With `must_exist` the name servers are asked at once, and an unknown topic is an error.  A query sets
        `must_exist` only when it starts.  When a query starts, an unknown topic is probably misspelt, but later the
        topic's brokers may just be down.  With `must_answer` an error is raised if the name servers do not answer.
        """
        now = self._clock()
        if not must_exist and self.discovery_due_in_ms > 0:
            return self._queues
        from rocketsim_client.errors import RocketSimError

        try:
            self._queues = self._find_queues(must_exist)
        except (RocketSimError, OptionError) as error:
            if must_exist or must_answer:
                raise
            logger.warning("looking for new queues failed, continuing with the known ones: %s", error)
        self._discovered_ms = now
        return self._queues

    def _find_queues(self, must_exist: bool) -> set[MessageQueue]:
        if self._options.assign:
            if must_exist:
                self._check_assigned(self._options.assign)
            return set(self._options.assign)
        found: set[MessageQueue] = set()
        for topic in self._topics(must_exist):
            queues = self._cluster.queues(topic, fresh=True)
            if queues is None and must_exist and not self._options.subscribe_pattern:
                raise OptionError(self._no_topic(topic))
            found.update(queues or ())
        return found

    def _topics(self, must_exist: bool) -> tuple[str, ...]:
        if not self._options.subscribe_pattern:
            return self._options.topics
        matches = re.compile(self._options.subscribe_pattern).fullmatch
        topics = tuple(topic for topic in self._all_topics() if not is_system(topic) and matches(topic))
        if not topics and must_exist:
            logger.warning("no topic matches subscribePattern=%s yet", self._options.subscribe_pattern)
        return topics

    def _all_topics(self) -> list[str]:
        """Returns all topics of the cluster.  Raises OptionError if the server at nameServer cannot list topics."""
        from rocketsim_client.errors import NotSupported

        try:
            return self._cluster.topics()
        except NotSupported as error:
            raise OptionError(
                f"subscribePattern={self._options.subscribe_pattern} needs the list of all topics, and a proxy of "
                "RocketMQ cannot list topics: write subscribe with the names of the topics instead, or give the "
                f"cluster's name server as nameServer ({error})"
            ) from error

    def _check_assigned(self, assigned: Iterable[MessageQueue]) -> None:
        for topic in self._options.topics:
            queues = self._cluster.queues(topic, fresh=True)
            if queues is None:
                raise OptionError(self._no_topic(topic))
            for queue in sorted(assigned):
                if queue.topic == topic and queue not in queues:
                    there = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)
                    raise OptionError(f"option assign names {queue}, but the readable queues of {topic} are {there}")

    def _no_topic(self, topic: str) -> str:
        from rocketsim_client.errors import RocketSimError

        try:
            near = difflib.get_close_matches(
                topic, [name for name in self._cluster.topics() if not is_system(name)], n=3
            )
        except RocketSimError:
            near = []
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return (
            f"topic {topic} does not exist, or none of its brokers is registered{hint} (create it with: "
            f"rocketsim admin updateTopic -t {topic})"
        )

    def states(
        self, queues: Iterable[MessageQueue], *, must_answer: bool = False, read_in: ReadIn | None = None
    ) -> QueueStates:
        """Returns the present bounds of the queues.

        With `must_answer`, raises NothingAnswers if a queue is unreachable.
        """
        wanted = list(queues)
        states = self._cluster.bounds(wanted, read_in, self._options.pull_group)
        self._report(states)
        if must_answer:
            refuse_unreachable(states)
        self._fail_after_timeout(wanted, states)
        return states

    def _report(self, states: QueueStates) -> None:
        """Logs a warning when no broker of a broker name answers any more, and another warning when the broker name
        answers again."""
        unreachable = states.unreachable_names
        for broker_name, error in unreachable.items():
            if broker_name not in self._reported:
                count = sum(queue.broker_name == broker_name for queue in states.unreachable)
                logger.warning("no broker answers for %d queues of %s, which wait: %s", count, broker_name, error)
        for broker_name in self._reported - unreachable.keys():
            if any(queue.broker_name == broker_name for queue in states.bounds):
                logger.warning("%s answers again", broker_name)
        self._reported = set(unreachable)

    def _fail_after_timeout(self, wanted: list[MessageQueue], states: QueueStates) -> None:
        """Raises NothingAnswers when all brokers have been unreachable for brokerDownTimeoutMs."""
        if not wanted or states.bounds or states.gone:
            self._unreachable_since_ms = None
            return
        now = self._clock()
        self._unreachable_since_ms = now if self._unreachable_since_ms is None else self._unreachable_since_ms
        if now - self._unreachable_since_ms >= self._options.broker_down_timeout_ms:
            error = next(iter(states.unreachable.values()))
            raise NothingAnswers(
                f"no broker has answered for {self._options.broker_down_timeout_ms} ms (brokerDownTimeoutMs): {error}"
            ) from error


def refuse_unreachable(states: QueueStates) -> None:
    """Raises NothingAnswers if a queue is unreachable, for a caller that needs all queues."""
    for queue, error in sorted(states.unreachable.items()):
        raise NothingAnswers(f"no broker answers for {queue}: {error}") from error


def answered(answer: OffsetAnswers, what: str) -> Offsets:
    """Returns the offsets of the answer, for a caller that needs all queues.  Raises NothingAnswers if a queue is
    unreachable."""
    for queue, error in sorted(answer.unreachable.items()):
        raise NothingAnswers(f"no broker answers for the {what} of {queue}: {error}") from error
    return answer.offsets


def is_system(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(HIDDEN_PREFIXES)
