"""The metrics of a broker: the values of each topic and group, slaves and disks, and what is left out at the limit."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker_service.admin import lags, metrics
from broker_service.broker.core.consumers import LATELY_S, MAX_CLIENTS, Consumers
from broker_service.broker.core.traffic import OTHERS, Traffic
from broker_service.broker.reads.pull import Pull
from broker_service.broker.reads.pull_range import Range
from broker_service.errors import TopicNotExist
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import Pop
from broker_service.replication.log_ages import MOST, LogAges
from broker_service.runtime.histogram import Histogram
from broker_service.store.files import DiskUsage
from tests.support.brokers import goes_by, put, running
from tests.support.held_memory import held_bytes

ROOT = Path(__file__).parents[2]
Labels = dict[str, str]


async def page(node: BrokerNode) -> str:
    """Returns the metrics as a scrape gets them, with all values taken now."""
    node.status.sample()
    node.metrics.take_snapshot()
    node.metrics.groups.lags = await node.administration.lags.take()
    node.metrics.groups.consumers = node.broker.consumers.counts(node.broker.clock())
    registry = CollectorRegistry()
    registry.register(node.metrics)
    return (await asyncio.to_thread(generate_latest, registry)).decode()


async def shown(node: BrokerNode, name: str) -> list[tuple[Labels, float]]:
    """Returns the samples of a metric, without is_system and the labels that name the broker."""
    found = [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(await page(node))
        for sample in family.samples
        if sample.name == name
    ]
    assert found, name
    same = {"cluster", "node_type", "node_id", "is_system"}
    return [({key: value for key, value in labels.items() if key not in same}, value) for labels, value in found]


def of(topic: str, group: str) -> Labels:
    return {"topic": topic, "consumer_group": group, "is_retry": str(topic.startswith("%RETRY%")).lower()}


async def test_messages_and_bytes_are_counted_by_topic_and_by_group(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"aaa", b"b")
        await put(node, "u", b"c")
        assert await shown(node, "rocketmq_messages_in_total") == [({"topic": "t"}, 2), ({"topic": "u"}, 1)]
        sizes = {topic: node.store.queues.size_and_time_of(topic, 0, 0)[0] for topic in "tu"}
        second = node.store.queues.size_and_time_of("t", 0, 1)[0]
        assert await shown(node, "rocketmq_throughput_in_total") == [
            ({"topic": "t"}, sizes["t"] + second),
            ({"topic": "u"}, sizes["u"]),
        ]
        await node.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=0, max_msg_nums=1))
        ranges = [Range("t", 0, 0, 2), Range("u", 0, 0, 1), Range("t", 0, 1, 2)]
        async for _ in node.wire.ranges.pull_range("spark", ranges, "*", "TAG", 1 << 20):
            pass
        await node.consumption.pop(Pop(group="p", topic="u", client_id="one"))
        assert await shown(node, "rocketmq_messages_out_total") == [
            (of("t", "g"), 1),
            (of("t", "spark"), 3),
            (of("u", "spark"), 1),
            (of("u", "p"), 1),
        ]
        assert await shown(node, "rocketmq_throughput_out_total") == [
            (of("t", "g"), sizes["t"]),
            (of("t", "spark"), sizes["t"] + 2 * second),
            (of("u", "spark"), sizes["u"]),
            (of("u", "p"), sizes["u"]),
        ]
        assert await shown(node, "rocketmq_consumer_connections") == [({"consumer_group": "p"}, 1)]
        counts = {
            name: count for name, _, count in re.findall(r"^rocketsim_(\w+)_count( )(\S+)$", await page(node), re.M)
        }
        assert (counts["put_seconds"], counts["pull_seconds"], counts["range_frame_seconds"]) == ("2.0", "1.0", "1.0")


async def test_lag_says_how_many_messages_wait_and_how_old_the_oldest_is(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        now_ms = node.broker.now_ms() + 1_000
        goes_by(node.broker, lambda: now_ms)
        await put(node, "t", b"a", b"b", queue_id=0)
        now_ms += 7_000
        await put(node, "t", b"c", queue_id=1)
        node.offsets.commit("g", "t", {0: 1, 1: 0})
        now_ms += 2_000
        assert (of("t", "g"), 2) in await shown(node, "rocketmq_consumer_lag_messages")
        assert (of("t", "g"), 9_000) in await shown(node, "rocketmq_consumer_lag_latency")
        assert ({"group": "g", "topic": "t"}, 2) in await shown(node, "rocketsim_consumer_lag_messages")
        node.offsets.commit("g", "t", {0: 2})
        assert (of("t", "g"), 2_000) in await shown(node, "rocketmq_consumer_lag_latency")
        node.offsets.commit("g", "t", {1: 1})
        assert (of("t", "g"), 0) in await shown(node, "rocketmq_consumer_lag_messages")
        assert (of("t", "g"), 0) in await shown(node, "rocketmq_consumer_lag_latency")


async def test_the_time_of_a_message_is_read_once_for_each_offset_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a", b"b")
        node.offsets.commit("g", "t", {0: 0})
        asked = []
        real = node.store.queues.store_timestamp_of
        monkeypatch.setattr(node.store.queues, "store_timestamp_of", lambda *at: asked.append(at) or real(*at))
        for _ in range(3):
            await node.administration.lags.take()
        assert asked == [("t", 0, 0)]
        node.offsets.commit("g", "t", {0: 1})
        await node.administration.lags.take()
        assert asked == [("t", 0, 0), ("t", 0, 1)]


async def test_what_has_not_changed_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as node:
        for topic in ("t", "u"):
            await put(node, topic, b"a", b"b")
            node.offsets.commit("g", topic, {0: 1})
        await node.administration.lags.take()
        looked = []
        real = node.administration.progress.of_queue
        monkeypatch.setattr(
            node.administration.progress, "of_queue", lambda place: looked.append(place.topic) or real(place)
        )
        assert (await node.administration.lags.take())["g", "t"].messages == 1
        assert looked == []
        await put(node, "t", b"c")
        node.offsets.commit("g", "u", {0: 2})
        found = await node.administration.lags.take()
        assert (found["g", "t"].messages, found["g", "u"].messages, {*looked}) == (2, 0, {"t", "u"})
        looked.clear()
        await put(node, "v", b"d")
        node.offsets.commit("h", "v", {0: 0})
        assert (await node.administration.lags.take())["h", "v"].messages == 1
        node.offsets.delete_group("g")
        assert {*await node.administration.lags.take()} == {("h", "v")}
        looked.clear()
        for _ in range(lags.FULL_EVERY):
            await node.administration.lags.take()
        assert {*looked} == {"v"}, "everything is looked at from time to time"


async def test_messages_that_a_slave_has_late_count_when_they_are_seen(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a")
        node.offsets.commit("g", "t", {0: 1})
        await node.administration.lags.take()
        seen = node.store.end_offset
        await put(node, "t", b"b")
        node.store.queues.confirm_offset = seen
        assert (await node.administration.lags.take())["g", "t"].messages == 0
        node.store.queues.confirm_offset = node.store.end_offset
        assert (await node.administration.lags.take())["g", "t"].messages == 1


async def test_the_age_of_a_message_that_cannot_be_read_is_left_out_and_the_lag_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    async with running(tmp_path) as node:
        await put(node, "t", b"a")
        node.offsets.commit("g", "t", {0: 0})
        monkeypatch.setattr(node.store.queues, "store_timestamp_of", broken)
        assert (of("t", "g"), 1) in await shown(node, "rocketmq_consumer_lag_messages")
        ages = [line for line in (await page(node)).splitlines() if line.startswith("rocketmq_consumer_lag_latency{")]
        assert not [line for line in ages if 'topic="t"' in line]


async def test_topics_and_groups_beyond_the_limit_are_added_up_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, metrics_otel_cardinality_limit=2) as node:
        for number in range(4):
            await put(node, f"t{number}", *[b"x"] * (number + 1))
            node.offsets.commit("g", f"t{number}", {0: 0})
        with caplog.at_level(logging.WARNING):
            assert await shown(node, "rocketmq_messages_in_total") == [
                ({"topic": "t0"}, 1),
                ({"topic": "t1"}, 2),
                ({"topic": OTHERS}, 7),
            ]
        assert await shown(node, "rocketmq_consumer_lag_messages") == [(of("t3", "g"), 4), (of("t2", "g"), 3)]
        cut = {labels["metrics"]: value for labels, value in await shown(node, "rocketsim_metrics_cut")}
        assert cut == {"lags": 1, "consumers": 0, "messages in": 1, "messages out": 0, "retries": 0}
        said = [one.getMessage() for one in caplog.records if "metricsOtelCardinalityLimit" in one.getMessage()]
        assert sorted(line.split(":")[0] for line in said) == ["metrics of lags", "metrics of messages in"]


async def test_a_deleted_topic_leaves_the_metrics_and_stays_in_the_totals(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a")
        await put(node, "u", b"a")
        node.topics.remove("t", node.broker.now_ms(), {})
        node.metrics.groups.passed.forget(lambda topic: node.topics.get(topic) is None)
        assert await shown(node, "rocketmq_messages_in_total") == [({"topic": "u"}, 1)]
        assert await shown(node, "rocketsim_messages_in_total") == [({}, 2)]


async def test_the_page_says_which_broker_it_is_of_what_its_disk_has_and_what_it_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"disk_max_used_space_ratio": 70, "disk_space_clean_forcibly_ratio": 80}
    async with running(tmp_path, **keys, auto_create_topic_enable=False) as node:
        info = "rocketsim_broker_info"
        role = {"broker": "broker-a", "broker_id": "0", "role": "ASYNC_MASTER"}
        assert await shown(node, info) == [(role, 1)]
        for used, level in ((60, 0), (75, 1), (85, 2)):
            monkeypatch.setattr(
                node.store.disk, "disk_usage", lambda _, used=used: DiskUsage(total=1000, free=1000 - 10 * used)
            )
            assert await shown(node, "rocketsim_disk_level") == [({}, level)]
            assert await shown(node, "rocketsim_disk_used_ratio") == [({}, used / 100)]
        monkeypatch.undo()
        with pytest.raises(TopicNotExist):
            await put(node, "t", b"a")
        assert await shown(node, "rocketsim_sends_refused_total") == [({"error": "TopicNotExist"}, 1)]


async def test_a_slave_that_is_away_is_not_in_sync(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.known_slaves.joined(1, "127.0.0.1:1")
        assert await shown(node, "rocketsim_slave_in_sync") == [({"slave": "1"}, 0)]


async def test_a_reader_of_the_metrics_gives_way_to_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []
    monkeypatch.setattr(metrics, "time", type("Time", (), {"sleep": staticmethod(pauses.append)}))
    async with running(tmp_path) as node:
        for number in range(3 * metrics.SAMPLES_A_TURN):
            node.wire.taken.add((f"t{number}",), 1, 100)
        await page(node)
    assert pauses == [metrics.PAUSE_S] * 6, "three of each of the two metrics of topics"


async def test_every_metric_is_documented_and_has_a_help_text_in_sentences(tmp_path: Path) -> None:
    documented = (ROOT / "docs/monitoring.md").read_text()
    async with running(tmp_path, remoting_port=0) as node:
        families = list(text_string_to_metric_families(await page(node)))
    names = {one.name + "_total" if one.type == "counter" else one.name for one in families}
    assert [name for name in sorted(names) if f"`{name}`" not in documented] == []
    said = {name for name in re.findall(r"^\| `((?:rocketmq|rocketsim)_\w+)`", documented, re.M)}
    assert sorted(said - names) == []
    for one in families:
        assert one.documentation.endswith("."), f"{one.name}: {one.documentation}"


# --- the parts --------------------------------------------------------------------------------------------------------


def test_traffic_has_room_for_a_topic_again_when_another_is_forgotten() -> None:
    traffic = Traffic(most=1)
    traffic.add(("a",), 1, 10)
    traffic.add(("b",), 2, 20)
    assert traffic.rows() == [(("a",), [1, 10, 1]), ((OTHERS,), [2, 20, 1])]
    traffic.forget(lambda topic: topic == "a")
    traffic.add(("c",), 4, 40)
    assert traffic.rows() == [((OTHERS,), [2, 20, 1]), (("c",), [4, 40, 1])]
    assert (traffic.messages, traffic.bytes) == (7, 70)


def test_a_slave_is_behind_since_the_log_became_longer_than_what_it_has() -> None:
    ages = LogAges()
    for now, end in ((0, 100), (1, 100), (2, 200), (3, 300), (9, 300)):
        ages.sample(now, end)
    assert ages.behind_s(10, 300) == 0
    assert ages.behind_s(10, 250) == 7
    assert ages.behind_s(10, 100) == 8
    ages.sample(10, 250)  # the log was cut
    assert ages.behind_s(12, 250) == 0
    assert ages.behind_s(12, 200) == 2


def test_the_age_of_what_the_last_slave_lacks_stays_exact_for_days_in_little_memory() -> None:
    ages = LogAges()
    for second in range(3 * MOST):
        ages.sample(second, second, acked=min(second, 100))
    assert held_bytes(ages) < 100 * MOST  # 70 bytes each
    assert ages.behind_s(3 * MOST, 100) == 3 * MOST - 101
    assert ages.behind_s(3 * MOST, 3 * MOST - 2) == 1


def test_consumers_that_have_not_popped_for_a_while_do_not_count() -> None:
    consumers = Consumers()
    consumers.popped("g", "a", 0.0)
    consumers.popped("g", "b", LATELY_S)
    consumers.popped("h", "a", 0.0)
    assert consumers.counts(LATELY_S) == {"g": 2, "h": 1}
    assert consumers.counts(LATELY_S + 1) == {"g": 1}


def test_clients_of_a_group_are_listed_until_their_way_of_consuming_makes_them_forgotten() -> None:
    consumers = Consumers()
    consumers.popped("g", "popping", 0.0)
    consumers.sent_heartbeat("g", "beating", 0.0)
    consumers.committed("g", "committing", 7, 0.0)
    consumers.sent_heartbeat("h", "another group's", 0.0)
    assert [(one.client_id, one.way, one.messages) for one in consumers.of("g", 60.0)] == [
        ("beating", "heartbeat", 0),
        ("committing", "commit", 7),
        ("popping", "pop", 0),
    ]
    assert [one.client_id for one in consumers.of("g", 61.0)] == ["beating", "committing"]
    assert [one.client_id for one in consumers.of("g", 121.0)] == ["committing"]
    assert consumers.of("g", 601.0) == []
    consumers.left("g", "committing")
    assert consumers.of("g", 121.0) == [] and consumers.counts(0.0) == {"g": 1}


def test_no_more_clients_of_a_group_are_remembered_than_there_is_room_for() -> None:
    consumers = Consumers()
    for number in range(MAX_CLIENTS + 1):
        consumers.popped("g", str(number), 0.0)
    consumers.popped("g", "0", 30.0)
    assert len(consumers.of("g", 0.0)) == MAX_CLIENTS
    assert [one.client_id for one in consumers.of("g", 90.0)] == ["0"]


def test_a_histogram_counts_what_took_at_most_its_bounds() -> None:
    one = Histogram("x", "X.")
    for seconds in (0.0005, 0.0006, 7.0):
        one.observe(seconds)
    assert one.buckets()[:2] == [("0.0005", 1), ("0.001", 2)]
    assert one.buckets()[-2:] == [("5.0", 2), ("+Inf", 3)]
    assert one.total_s == pytest.approx(7.0011)
