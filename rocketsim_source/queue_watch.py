"""The driver's view of the queues: which there are, and how far they reach.  Asks no more often than the options
say."""

import difflib
import logging
import re
from collections.abc import Callable, Iterable

from rocketsim_source.cluster import BrokerCluster, Seen
from rocketsim_source.option_values import OptionError
from rocketsim_source.options import SourceOptions
from rocketsim_source.queue import Queue

logger = logging.getLogger(__name__)

# RocketMQ's own topics, which no pattern is meant to find.
SYSTEM_TOPICS = frozenset({"TBW102", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "BenchmarkTest"})
SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "rmq_sys_")


class NothingAnswers(RuntimeError):
    """No broker of any queue can be reached."""


class QueueWatch:
    def __init__(self, cluster: BrokerCluster, options: SourceOptions, clock: Callable[[], int]) -> None:
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._queues: set[Queue] = set()
        self._discovered_ms: int | None = None
        self._silent_since_ms: int | None = None
        self._reported: set[str] = set()

    def discover(self, *, must_exist: bool = False) -> set[Queue]:
        """All queues to read, as far as is known; looked for again every queueDiscoveryIntervalMs.

        `must_exist` asks now, and raises for a topic that is not there: at a query's start that is a mistake, later it
        is trouble.
        """
        now = self._clock()
        fresh = must_exist or self._discovered_ms is None
        due = fresh or now - (self._discovered_ms or 0) >= self._options.queue_discovery_interval_ms
        if not due:
            return self._queues
        from rocketsim_client.errors import RocketSimError

        try:
            self._queues = self._look(must_exist)
        except RocketSimError as error:
            if must_exist or self._discovered_ms is None:
                raise
            logger.warning("looking for new queues failed, going on with those known: %s", error)
        self._discovered_ms = now
        return self._queues

    def _look(self, must_exist: bool) -> set[Queue]:
        if self._options.assign:
            if must_exist:
                self._check_assigned(self._options.assign)
            return set(self._options.assign)
        topics = self._options.topics
        if self._options.subscribe_pattern:
            matches = re.compile(self._options.subscribe_pattern).fullmatch
            topics = tuple(topic for topic in self._cluster.topics() if not is_system(topic) and matches(topic))
            if not topics and must_exist:
                logger.warning("no topic matches subscribePattern=%s yet", self._options.subscribe_pattern)
        found: set[Queue] = set()
        for topic in topics:
            queues = self._cluster.queues(topic, fresh=True)
            if queues is None and must_exist and not self._options.subscribe_pattern:
                raise OptionError(self._no_topic(topic))
            found.update(queues or ())
        return found

    def _check_assigned(self, assigned: Iterable[Queue]) -> None:
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
        return f"topic {topic} does not exist{hint} (create it with: rocketsim admin updateTopic -t {topic})"

    def look(self, queues: Iterable[Queue], *, must_answer: bool = False) -> Seen:
        """Bounds of the queues, now.  Broker names that do not answer are left out, unless `must_answer`."""
        wanted = list(queues)
        seen = self._cluster.bounds(wanted)
        for broker_name, error in seen.silent.items():
            if broker_name not in self._reported:
                logger.warning("no broker of %s answers, its queues wait: %s", broker_name, error)
        for broker_name in self._reported - seen.silent.keys():
            if any(queue.broker_name == broker_name for queue in seen.bounds):
                logger.warning("%s answers again", broker_name)
        self._reported = set(seen.silent)
        if seen.silent and must_answer:
            name, error = next(iter(seen.silent.items()))
            raise NothingAnswers(f"no broker of {name} answers: {error}") from error
        self._give_up_some_time(wanted, seen)
        return seen

    def _give_up_some_time(self, wanted: list[Queue], seen: Seen) -> None:
        """A query of which no broker at all answers waits, but not for ever."""
        if not wanted or seen.bounds or seen.gone:
            self._silent_since_ms = None
            return
        now = self._clock()
        self._silent_since_ms = now if self._silent_since_ms is None else self._silent_since_ms
        if now - self._silent_since_ms >= self._options.broker_down_timeout_ms:
            error = next(iter(seen.silent.values()))
            raise NothingAnswers(
                f"no broker has answered for {self._options.broker_down_timeout_ms} ms (brokerDownTimeoutMs): {error}"
            ) from error


def is_system(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)
