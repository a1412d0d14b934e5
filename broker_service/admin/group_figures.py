"""GroupFigures: yields the metrics of each topic and each consumer group.

The thread that answers a scrape makes these metrics from counts that the event loop keeps in any case, so that a scrape
costs the event loop nothing, even with many topics.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rocketsim_proto.reserved import RETRY_PREFIX

from broker_service.admin.lags import GroupLag
from broker_service.broker.core.traffic import Counts, Labels, Traffic
from broker_service.names import is_internal_group, is_system_topic
from broker_service.runtime.figures import Figure, by_labels

logger = logging.getLogger(__name__)

_NODE = ("cluster", "node_type", "node_id")
_TOPIC = (*_NODE, "topic", "is_system")
_GROUP = (*_NODE, "topic", "consumer_group", "is_retry", "is_system")

Row = tuple[Labels, Counts]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Passed:
    """Counts of messages and bytes.  `taken` counts what producers sent, by topic; the other fields count by topic and
    group.
    """

    taken: Traffic
    given: Traffic
    retried: Traffic
    dead_letters: Traffic

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        for traffic in (self.taken, self.given, self.retried, self.dead_letters):
            traffic.forget(is_gone)


class GroupFigures:
    """Makes metrics, each with samples for at most `most` topics or pairs of topic and group.

    The event loop periodically replaces `lags` (by group and topic) and `consumers` (by group) by new mappings.
    """

    def __init__(self, cluster: str, broker_name: str, most: int, passed: Passed) -> None:
        self.passed = passed
        self.lags: Mapping[tuple[str, str], GroupLag] = {}
        self.consumers: Mapping[str, int] = {}
        self._node = (cluster, "broker", broker_name)
        self._most = most
        self._cut: dict[str, bool] = {}

    def figures(self) -> Iterator[Figure]:
        """Yields the metrics, for one thread at a time.  Each sample is made only when it is read."""
        passed = self.passed
        taken = passed.taken.rows()
        yield self._of_topics("rocketmq_messages_in", "Messages that producers have sent.", taken, 0)
        help_text = "Bytes of the records that producers have sent."
        yield self._of_topics("rocketmq_throughput_in", help_text, taken, 1)
        given = passed.given.rows()
        yield self._of_groups("rocketmq_messages_out", "Messages that consumers were given.", given, 0)
        help_text = "Bytes of the records that consumers were given."
        yield self._of_groups("rocketmq_throughput_out", help_text, given, 1)
        help_text = "Messages that will be delivered again, because they were not acknowledged in time."
        yield self._of_groups("rocketsim_retried_messages", help_text, passed.retried.rows(), 0)
        help_text = "Messages that became dead letters: their last delivery was not acknowledged."
        yield self._of_groups("rocketmq_send_to_dlq_messages", help_text, passed.dead_letters.rows(), 0)
        yield from self._lag_figures()
        consumers = self._most_of("consumers", self.consumers, lambda count: count)
        yield by_labels(
            "rocketmq_consumer_connections",
            "Consumers of a group that have popped in the last minute. Readers of queues, such as Spark, do not count.",
            (*_NODE, "consumer_group", "is_system"),
            [((*self._node, group, _text(is_internal_group(group))), count) for group, count in consumers],
        )
        self._note("messages in", passed.taken.is_cut)
        self._note("messages out", passed.given.is_cut)
        self._note("retries", passed.retried.is_cut or passed.dead_letters.is_cut)
        yield by_labels(
            "rocketsim_metrics_cut",
            "1: these metrics do not show all topics and groups separately (metricsOtelCardinalityLimit).",
            ("metrics",),
            [((what,), is_cut) for what, is_cut in self._cut.items()],
        )

    def _lag_figures(self) -> Iterator[Figure]:
        shown = self._most_of("lags", self.lags, lambda lag: lag.messages)
        help_text = "Messages that a group has yet to settle. The master and each slave report it."
        yield self._of_lags("rocketmq_consumer_lag_messages", help_text, shown, lambda lag: lag.messages)
        help_text = "Messages that consumers were given and have not acknowledged."
        yield self._of_lags("rocketmq_consumer_inflight_messages", help_text, shown, lambda lag: lag.under_way)
        help_text = "Age in milliseconds of the oldest message that a group has yet to settle. 0: it has settled all."
        yield self._of_lags("rocketmq_consumer_lag_latency", help_text, shown, lambda lag: lag.oldest_ms)
        help_text = "Deprecated: the same as rocketmq_consumer_lag_messages, with the labels group and topic."
        old = ((key, lag.messages) for key, lag in shown)
        yield Figure("rocketsim_consumer_lag_messages", help_text, old, ("group", "topic"))

    def _of_lags(
        self,
        name: str,
        help_text: str,
        shown: list[tuple[tuple[str, str], GroupLag]],
        value_of: Callable[[GroupLag], int | None],
    ) -> Figure:
        samples = (
            (self._group_labels(topic, group), value)
            for (group, topic), lag in shown
            if (value := value_of(lag)) is not None
        )
        return Figure(name, help_text, samples, _GROUP)

    def _of_topics(self, name: str, help_text: str, rows: list[Row], column: int) -> Figure:
        samples = (((*self._node, topic, _text(is_system_topic(topic))), counts[column]) for (topic,), counts in rows)
        return Figure(name, help_text, samples, _TOPIC, is_counter=True)

    def _of_groups(self, name: str, help_text: str, rows: list[Row], column: int) -> Figure:
        samples = ((self._group_labels(topic, group), counts[column]) for (topic, group), counts in rows)
        return Figure(name, help_text, samples, _GROUP, is_counter=True)

    def _group_labels(self, topic: str, group: str) -> Labels:
        is_system = is_system_topic(topic) or is_internal_group(group)
        return (*self._node, topic, group, _text(topic.startswith(RETRY_PREFIX)), _text(is_system))

    def _most_of(self, what: str, values: Mapping[K, V], size: Callable[[V], int]) -> list[tuple[K, V]]:
        """Returns all values, or only the `most` largest ones.  Writes a log line if values are left out."""
        found = list(values.items())
        self._note(what, len(found) > self._most)
        if len(found) > self._most:
            found = sorted(found, key=lambda one: -size(one[1]))[: self._most]
        return found

    def _note(self, what: str, is_cut: bool) -> None:
        if is_cut and not self._cut.get(what):
            logger.warning(
                "metrics of %s: not all topics and groups are shown separately, because there are more than %d; raise "
                "metricsOtelCardinalityLimit if Prometheus has room for more",
                what,
                self._most,
            )
        self._cut[what] = is_cut


def _text(value: bool) -> str:
    return "true" if value else "false"
