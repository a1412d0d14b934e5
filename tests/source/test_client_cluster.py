"""Tests how the source interprets brokers' answers over real calls: a queue exists, is deleted, or is unavailable at
the moment.
"""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from rocketsim_client import Cluster, Message, MessageQueue, Producer, SendFailed
from rocketsim_client.model import OffsetRange
from rocketsim_source.batch_reader import ranges
from rocketsim_source.options.data_loss import DataLossError
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import source_options
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.planning.queue_watch import NothingAnswers
from rocketsim_source.reading.range_fetch import RangeFetch
from rocketsim_source.source_cluster import ClientCluster, Offsets
from rocketsim_source.stream_query import StreamQuery
from tests.support.fake_broker import FakeCluster
from tests.support.remoting_peer import RemotingPeer, answer_to

Q0, Q1, Q7 = (MessageQueue("T", "broker-a", number) for number in (0, 1, 7))
OTHER = MessageQueue("U", "broker-a", 0)
B = MessageQueue("T", "broker-b", 0)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Pairs broker-a and broker-b with topics T and U, ten messages in queues 0 and 1 of broker-a."""
    with FakeCluster("T", "U") as cluster:
        for name in ("broker-a", "broker-b"):
            for broker_id in (0, 1):
                cluster.start(name, broker_id)
        with Producer(cluster.address) as producer:
            for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
                messages = [Message(topic, b"%d" % number) for number in range(10)]
                producer.send_batch(messages, queue=MessageQueue(topic, "broker-a", queue_id))
        yield cluster


def opened(fake: FakeCluster) -> ClientCluster:
    """Returns a cluster that knows nothing yet, as in a new worker or driver."""
    return ClientCluster(Cluster(fake.address, timeout_s=30, poll_interval_s=1))


def test_a_queue_beyond_the_count_is_gone_and_hides_nobody(fake: FakeCluster) -> None:
    seen = opened(fake).bounds([Q0, Q7, OTHER, B])
    assert (set(seen.bounds), seen.gone, seen.unreachable) == ({Q0, OTHER, B}, {Q7}, {})


def test_a_queue_beyond_the_read_queues_is_gone_too(fake: FakeCluster) -> None:
    """The topic has the queue only for writing, so no broker lets a consumer read it."""
    for broker_id in (0, 1):
        fake.brokers["broker-a", broker_id].read_queue_nums = 1
    seen = opened(fake).bounds([Q0, Q1, B])
    assert (set(seen.bounds), seen.gone, seen.unreachable) == ({Q0, B}, {Q1}, {})
    assert fetched(fake, Q0, Q1, dataLossAction="deleted=skip") == {Q0: list(range(10))}
    fake.stop("broker-a", 0)
    seen = opened(fake).bounds([Q0, Q1])
    assert (set(seen.bounds), seen.gone, set(seen.unreachable)) == ({Q0}, set(), {Q1})


def static(fake: FakeCluster) -> Cluster:
    """Returns a cluster for option `brokers`, without a name server."""
    brokers = {name: dict(members) for name, members in fake.addresses().items()}
    return Cluster("", brokers=brokers, timeout_s=60.0, poll_interval_s=1.0)


def test_without_a_name_server_a_lowered_number_of_write_queues_is_heard_of(fake: FakeCluster) -> None:
    """The queues that are no longer writable can still be read."""
    with static(fake) as cluster, Producer(cluster=cluster) as producer:
        assert len(producer.publish_queues("T")) == 8
        for broker in fake.brokers.values():
            broker.write_queues = 2
        assert len(producer.send_columns("T", pa.array([b"%d" % row for row in range(400)]))) == 400
        assert {queue.queue_id for queue in producer.publish_queues("T")} == {0, 1}
        assert {queue.queue_id for queue in cluster.queues("T", fresh=True)} == {0, 1, 2, 3}
        for broker in fake.brokers.values():
            broker.read_queue_nums = 1
        assert {queue.queue_id for queue in cluster.queues("T", fresh=True)} == {0}


def test_without_a_name_server_an_older_brokers_queues_are_all_taken_for_writable(fake: FakeCluster) -> None:
    for broker in fake.brokers.values():
        broker.write_queues, broker.says_write_queues = 2, False
    with static(fake) as cluster, Producer(cluster=cluster, retry_times_when_send_async_failed=1) as producer:
        assert len(producer.publish_queues("T")) == 8
        with pytest.raises(SendFailed, match=r"after 2 attempts \(broker-[ab], broker-[ab]\)"):
            producer.send_columns("T", pa.array([b"%d" % row for row in range(400)]))


def test_a_topic_that_the_master_does_not_have_is_gone_and_hides_nobody(fake: FakeCluster) -> None:
    fake.brokers["broker-a", 0].missing = {"T"}
    seen = opened(fake).bounds([Q0, Q1, OTHER, B])
    assert (set(seen.bounds), seen.gone, seen.unreachable) == ({OTHER, B}, {Q0, Q1}, {})


def test_a_queue_is_gone_too_when_no_name_server_names_its_topic_any_more(fake: FakeCluster) -> None:
    """A driver that starts after the deletion of the topic hears of the deletion from the master."""
    fake.topics.discard("T")
    fake.brokers["broker-a", 0].missing = {"T"}
    seen = opened(fake).bounds([Q0, OTHER, B])
    assert (set(seen.bounds), seen.gone, seen.unreachable) == ({OTHER, B}, {Q0}, {})


def test_an_empty_route_is_silence_or_nothing_at_all(fake: FakeCluster) -> None:
    fake.topics.clear()
    assert opened(fake).queues("T") is None
    assert set(opened(fake).bounds([Q0, B]).bounds) == {Q0, B}
    for broker_id in (0, 1):
        fake.stop("broker-a", broker_id)
    seen = opened(fake).bounds([Q0, OTHER, B])
    assert (set(seen.bounds), seen.gone, set(seen.unreachable)) == ({B}, set(), {Q0, OTHER})


@pytest.mark.parametrize("lacks", ["topic", "queue"])
def test_what_only_a_slave_lacks_is_silence(fake: FakeCluster, lacks: str) -> None:
    fake.stop("broker-a", 0)
    slave = fake.brokers["broker-a", 1]
    if lacks == "topic":
        slave.missing = {"T"}
    else:
        slave.queue_nums = 1
    seen = opened(fake).bounds([Q0, Q1, OTHER])
    assert seen.gone == set()
    assert set(seen.unreachable) == ({Q0, Q1} if lacks == "topic" else {Q1})
    assert OTHER in seen.bounds and not seen.bounds[OTHER].is_master


def test_offsets_and_times_are_asked_broker_by_broker(fake: FakeCluster) -> None:
    cluster = opened(fake)
    cluster.commit("g", {Q0: 3, OTHER: 4}, "masterFirst", 60.0)
    for broker_id in (0, 1):
        fake.stop("broker-b", broker_id)
    fake.topics.discard("T")
    committed = opened(fake).committed("g", [Q0, Q1, OTHER, B])
    assert (committed.offsets, set(committed.unreachable)) == ({Q0: 3, OTHER: 4}, {B})
    found = opened(fake).search({Q0: 50, B: 50, OTHER: 20})
    assert (found.offsets, set(found.unreachable)) == ({Q0: 5, OTHER: 2}, {B})


def test_a_commit_goes_where_it_can(fake: FakeCluster) -> None:
    committed = opened(fake).commit("g", {Q0: 3, Q7: 4, OTHER: 5}, "masterFirst", 60.0)
    assert committed.offsets == {Q0: 3, OTHER: 5}
    assert list(committed.failures) == ["broker-a"]


def fetched(fake: FakeCluster, *queues: MessageQueue, **given: str) -> dict[MessageQueue, list[int]]:
    options = source_options({"nameServer": "h:1", "topic": "T", "pullRetryBackoffMs": "1"} | given, streaming=True)
    found: dict[MessageQueue, list[int]] = {}
    for part in RangeFetch(opened(fake), [OffsetRange(queue, 0, 10) for queue in queues], {}, options).frames():
        offsets = iter(part.records.queue_offset.tolist())
        for extent in part.extents:
            found.setdefault(extent.queue, []).extend(next(offsets) for _ in range(extent.size))
    return found


@pytest.mark.parametrize("read_from", ["suggested", "slave", "masterOnly"])
def test_a_fresh_worker_skips_nothing_because_a_route_is_empty(fake: FakeCluster, read_from: str) -> None:
    fake.topics.clear()
    everything = {Q0: list(range(10))}
    assert fetched(fake, Q0, failOnDataLoss="false", readFrom=read_from) == everything
    for broker_id in (0, 1):
        fake.stop("broker-a", broker_id)
    with pytest.raises(Exception, match="broker-a"):
        fetched(fake, Q0, failOnDataLoss="false", readFrom=read_from, pullRetries="2")


def test_one_lost_queue_does_not_end_the_reading_of_others(fake: FakeCluster) -> None:
    for broker_id in (0, 1):
        fake.brokers["broker-a", broker_id].queue_nums = 1
    assert fetched(fake, Q0, Q1, OTHER, dataLossAction="deleted=skip") == {
        Q0: list(range(10)),
        OTHER: list(range(10)),
    }
    with pytest.raises(DataLossError, match=f"{Q1} is gone"):
        fetched(fake, Q0, Q1, OTHER)


@pytest.mark.parametrize("streaming", [True, False])
def test_that_a_slave_has_no_offset_of_the_group_is_no_start(fake: FakeCluster, streaming: bool) -> None:
    """The slave's master may have an offset of the group, and the query must not begin anywhere else."""
    given = {"nameServer": "h:1", "topic": "T", "group": "g", "startingOffsets": "committed,latest"}
    given |= {"commitOffsets": "none"} if streaming else {"startingOffsets": "committed,earliest"}
    options = source_options(given, streaming=streaming)

    def starts() -> Offsets:
        cluster = opened(fake)
        if streaming:
            return StreamQuery(options, cluster).initial_offset().offsets
        return {queue: start for queue, start, _ in ranges(options, cluster)[0]}

    fake.stop("broker-a", 0)
    with pytest.raises(NothingAnswers, match="committed offset of T@broker-a:0"):
        starts()
    fake.start("broker-a", 0)
    opened(fake).commit("g", {Q0: 3}, "masterFirst", 60.0)
    found = starts()
    assert (found[Q0], found[Q1]) == (3, 10 if streaming else 0)


def test_a_new_queue_waits_for_a_master_to_say_that_its_group_has_no_offset(fake: FakeCluster) -> None:
    given = {"nameServer": "h:1", "topic": "T", "group": "g", "newQueueOffsets": "committed,latest"}
    given |= {"commitOffsets": "none", "idlePollMs": "0"}
    found = StreamQuery(source_options(given, streaming=True), opened(fake))
    fake.stop("broker-a", 0)
    known = StreamOffset({B: 0})
    queues = found.latest_offset(known, unlimited=False).offsets.keys()
    assert queues == {MessageQueue("T", "broker-b", number) for number in range(4)}


@pytest.mark.parametrize("streaming", [True, False])
def test_a_pattern_is_refused_at_a_proxy_with_what_to_write_instead(streaming: bool) -> None:
    """A proxy of RocketMQ does not know the call for the list of topics."""
    with RemotingPeer(lambda request, _: answer_to(request, 3, " request type not supported")) as proxy:
        given = {"nameServer": proxy.address, "protocol": "remoting", "subscribePattern": "T.*"}
        given |= {"pullTimeoutMs": "60000"}
        options = source_options(given, streaming=streaming)
        cluster = ClientCluster.open(options.connection)
        try:
            with pytest.raises(OptionError) as refused:
                if streaming:
                    StreamQuery(options, cluster).initial_offset()
                else:
                    ranges(options, cluster)
        finally:
            cluster.close()
    said = str(refused.value)
    assert "subscribePattern=T.* needs the list of all topics" in said
    assert "a proxy of RocketMQ cannot list topics: write subscribe with the names of the topics instead" in said
    assert "cluster's name server as nameServer" in said and proxy.address in said
