"""The cluster as Spark uses it: routes, bounds, range pulls that continue at another broker, commits with a target."""

import pickle
import socket

import grpc
import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.records.columnar import Records

from rocketsim_client import Cluster, Message, MessageQueue, Producer, QueueRange
from rocketsim_client.connection import Connection
from rocketsim_client.errors import (
    BadAnswer,
    BrokerNotExist,
    BrokerUnavailable,
    CallTimeout,
    CommitFailed,
    NameServerUnavailable,
    NoRoute,
    SendFailed,
    TopicNotExist,
)
from rocketsim_client.group_offsets import newest_offsets
from rocketsim_client.model import GetMessageStatus
from rocketsim_client.transport.own.channels import Channels
from rocketsim_client.transport.reads import OffsetsAnswer
from testbed.polling import PATIENCE_S, wait_until
from tests.support.fake_broker import Answer, Hang, Refuse

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def reader(cluster):
    with Producer(cluster.address) as producer:
        for queue_id in range(4):
            queue = MessageQueue("T", "broker-a", queue_id)
            producer.send_batch([Message("T", b"%d-%d" % (queue_id, number)) for number in range(55)], queue=queue)
    with Cluster(cluster.address, timeout_s=PATIENCE_S) as made:
        yield made


def ranges(until=55):
    return [QueueRange("T", queue_id, queue_id, until) for queue_id in range(4)]


def bodies_of(frames):
    found = {}
    for frame in frames:
        records = Records.walk(frame.records, frame.count, frame.sizes)
        bodies = records.bodies().to_pylist()
        at = 0
        for segment in frame.segments:
            found.setdefault(segment.range_index, []).extend(bodies[at : at + segment.count])
            at += segment.count
    return found


def expected(until=55):
    return {queue_id: [b"%d-%d" % (queue_id, number) for number in range(queue_id, until)] for queue_id in range(4)}


def test_ranges_of_many_queues_come_whole_and_in_order(reader):
    assert bodies_of(reader.pull_range("broker-a", ranges())) == expected()


@pytest.mark.parametrize("frames_before_break", [0, 1, 7, 20])
def test_a_stream_that_breaks_goes_on_at_the_slave_without_a_gap_or_a_double(cluster, reader, frames_before_break):
    cluster.brokers["broker-a", 0].frames_before_break = frames_before_break
    seen = set()
    frames = []
    for frame in reader.pull_range("broker-a", ranges()):
        seen.add(frame.broker_id)
        frames.append(frame)
    assert bodies_of(frames) == expected()
    assert seen == ({1} if frames_before_break == 0 else {0, 1})


def test_a_master_that_dies_in_the_middle_is_left_for_its_slave(cluster, reader):
    stream = reader.pull_range("broker-a", ranges())
    frames = [next(stream)]
    cluster.freeze()
    cluster.stop("broker-a")
    frames += stream
    assert bodies_of(frames) == expected()
    assert frames[-1].broker_id in (0, 1)


def test_a_master_that_is_back_is_read_from_again_at_once(cluster, reader):
    cluster.stop("broker-a")
    reader.route("T", fresh=True)
    assert {frame.broker_id for frame in reader.pull_range("broker-a", ranges())} == {1}
    cluster.start("broker-a")
    wait_until(lambda: {frame.broker_id for frame in reader.pull_range("broker-a", ranges())} == {0}, "the master")


def test_the_hint_chooses_the_broker(reader):
    assert {frame.broker_id for frame in reader.pull_range("broker-a", ranges(), broker_id_hint=1)} == {1}


def test_only_this_broker_is_a_failure_when_it_is_gone(cluster, reader):
    reader.queues("T")
    cluster.stop("broker-a")
    with pytest.raises((BrokerUnavailable, BrokerNotExist)):
        list(reader.pull_range("broker-a", ranges(), only_this=True))


def test_only_this_broker_is_asked_again_though_it_failed_a_moment_ago(cluster, reader):
    master = reader.route("T").addresses("broker-a")[0]
    reader.failed(master, CallTimeout("no frame in time", address=master))
    frames = reader.pull_range("broker-a", ranges(), only_this=True)
    assert {frame.broker_id for frame in frames} == {0}
    reader.failed(master, CallTimeout("no answer in time", address=master))
    assert reader.ask("T", "broker-a", lambda member: member.broker_id, only_this=True) == 0


def test_a_range_beyond_the_end_is_told_and_not_asked_for_again(cluster, reader):
    frames = list(reader.pull_range("broker-a", ranges(60)))
    ends = {s.range_index: s.status for frame in frames for s in frame.segments if s.status != GetMessageStatus.FOUND}
    assert ends == dict.fromkeys(range(4), GetMessageStatus.OFFSET_OVERFLOW_ONE)
    assert bodies_of(frames) == expected()
    assert len(cluster.brokers["broker-a", 0].calls["PullRange"]) == 1


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(pb.PullFrame(segments=[{"range_index": 9}]), id="a range that was not asked for"),
        pytest.param(pb.PullFrame(records=b"x", sizes=b"\1\0\0\0", segments=[{"count": 2}]), id="count"),
        pytest.param(pb.PullFrame(records=b"xx", sizes=b"\1\0\0\0", segments=[{"count": 1}]), id="sizes"),
        pytest.param(pb.PullFrame(), id="no segment"),
    ],
)
def test_a_frame_that_does_not_add_up_is_an_error(cluster, reader, frame):
    cluster.brokers["broker-a", 0].script["PullRange"].append(Answer(frame))
    with pytest.raises(BadAnswer):
        list(reader.pull_range("broker-a", ranges()))


def test_closing_the_iterator_ends_the_call(reader):
    stream = reader.pull_range("broker-a", ranges())
    next(stream)
    stream.close()
    assert bodies_of(reader.pull_range("broker-a", ranges())) == expected()


def test_bounds_of_a_topic_take_one_call_a_broker(cluster, reader):
    bounds = reader.bounds("T")
    assert bounds[QUEUE].max_offset == 55 and bounds[MessageQueue("T", "broker-b", 0)].max_offset == 0
    assert len(bounds) == 8
    assert [len(cluster.brokers[name, 0].calls["QueueBounds"]) for name in ("broker-a", "broker-b")] == [1, 1]


def test_a_hanging_master_costs_one_timeout_and_then_none(cluster):
    with Cluster(cluster.address, timeout_s=1.0) as reader:
        cluster.brokers["broker-a", 0].script["QueueBounds"].extend([Hang()] * 9)
        for _ in range(2):
            assert not reader.bounds("T", [QUEUE])[QUEUE].is_master
        assert len(cluster.brokers["broker-a", 0].calls["QueueBounds"]) == 1


def test_a_queue_that_is_not_there_does_not_hide_the_others(cluster, reader):
    """A broker refuses a whole call that names a queue that does not exist."""
    asked = [QUEUE, MessageQueue("T", "broker-a", 7)]
    assert set(reader.bounds("T", asked)) == {QUEUE}
    assert set(reader.bounds("T", asked[1:])) == set()


def test_a_commit_that_one_queue_is_refused_for_is_taken_for_the_others(cluster, reader):
    offsets = {MessageQueue("T", "broker-a", queue_id): queue_id + 1 for queue_id in (0, 1, 7, 2)}
    with pytest.raises(CommitFailed, match="queue 7") as failed:
        reader.commit("g", offsets)
    there = {queue: offset for queue, offset in offsets.items() if queue.queue_id < 4}
    assert failed.value.result.offsets == there
    assert reader.committed("g", list(there)) == there


NO_TOPIC = Refuse(17, grpc.StatusCode.NOT_FOUND)


def test_only_a_master_says_that_a_topic_is_gone(cluster, reader):
    """A slave may not know of the topic yet."""
    reader.queues("T")
    cluster.brokers["broker-a", 1].script["QueueBounds"].extend([NO_TOPIC] * 9)
    cluster.stop("broker-a")
    with pytest.raises((BrokerNotExist, BrokerUnavailable)):
        reader.bounds("T", [QUEUE])
    back = cluster.start("broker-a")
    back.script["QueueBounds"].append(NO_TOPIC)
    reader.route("T", fresh=True)
    with pytest.raises(TopicNotExist):
        reader.bounds("T", [QUEUE])


def test_what_a_slave_does_not_know_is_not_the_answer_to_a_pull(cluster, reader):
    reader.queues("T")
    cluster.brokers["broker-a", 1].script["PullRange"].extend([NO_TOPIC] * 9)
    cluster.stop("broker-a")
    with pytest.raises((BrokerNotExist, BrokerUnavailable)):
        list(reader.pull_range("broker-a", ranges()))


def test_an_empty_route_proves_nothing_the_brokers_are_asked(cluster):
    """A name server gives an empty route when it has just started, or when all brokers of the topic were away a moment
    ago.
    """
    cluster.topics.clear()
    with Cluster(cluster.address) as fresh:
        with pytest.raises(NoRoute, match=r"none of its brokers runs, or .* updateTopic -t T\)"):
            fresh.queues("T")
        assert fresh.bounds("T", [QUEUE])[QUEUE].is_master
        assert fresh.commit("g", {QUEUE: 0}).offsets == {QUEUE: 0}
        for broker_id in (0, 1):
            cluster.stop("broker-a", broker_id)
    with Cluster(cluster.address) as fresh, pytest.raises(BrokerNotExist, match="broker-a"):
        fresh.bounds("T", [QUEUE])


def test_commit_targets(cluster, reader):
    assert reader.commit("g", {QUEUE: 1}).broker_ids == {"broker-a": 0}
    assert reader.commit("g", {QUEUE: 2}, "both").broker_ids == {"broker-a": 0}
    assert len(cluster.brokers["broker-a", 1].calls["CommitOffsets"]) == 1
    with pytest.raises(ValueError, match="masterFirst"):
        reader.commit("g", {QUEUE: 2}, "nobody")


def test_master_only_says_which_brokers_took_nothing_and_what_the_others_did(cluster, reader):
    other = MessageQueue("T", "broker-b", 0)
    reader.queues("T")
    cluster.stop("broker-a")
    with pytest.raises(CommitFailed, match="broker-a") as failed:
        reader.commit("g", {QUEUE: 1, other: 2}, "masterOnly")
    assert failed.value.result.broker_ids == {"broker-b": 0}
    assert failed.value.result.offsets == {other: 2}
    assert list(failed.value.result.failures) == ["broker-a"]


def test_routes_are_remembered_and_asked_for_anew_on_request(cluster, reader):
    before = len(cluster.route_calls)
    for _ in range(5):
        reader.queues("T")
    assert len(cluster.route_calls) <= before + 1
    cluster.topics.discard("T")
    assert reader.queues("T")
    with pytest.raises(TopicNotExist):
        reader.route("T", fresh=True)


def test_an_old_route_outlives_its_name_server(cluster, reader):
    now = [0.0]
    with Cluster(cluster.address, clock=lambda: now[0]) as patient:
        patient.queues("T")
        cluster.down = True
        now[0] = 31.0
        assert len(patient.queues("T")) == 8
        with pytest.raises(NameServerUnavailable):
            patient.route("T", fresh=True)


def test_topics_are_listed(cluster, reader):
    assert reader.topics() == ["T"]
    assert {data.broker_name for data in reader.members()} == {"broker-a", "broker-b"}


@pytest.mark.parametrize(
    "error",
    [CallTimeout("x", address="a:1"), SendFailed("x", attempts=2, maybe_stored=True), TopicNotExist("y", code=17)],
)
def test_errors_survive_the_way_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)
    assert error.again() is not error


def test_a_silent_name_server_costs_one_timeout_also_for_topics_that_are_nowhere(cluster, monkeypatch):
    asked: list[str] = []
    call = Channels.call
    monkeypatch.setattr(Channels, "call", lambda self, to, *rest: asked.append(to) or call(self, to, *rest))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        # With protocol="auto" the silent server would take most of the second one's time, too.
        where = Connection.of(f"{address};{cluster.address}", timeout_s=1.5, protocol="grpc")
        with Cluster(where) as reader:
            for _ in range(2):
                with pytest.raises(TopicNotExist):
                    reader.route("Nowhere")
        assert asked == [address, cluster.address, cluster.address]


def test_a_suggested_slave_that_is_not_there_is_not_asked_about_each_time(cluster, reader):
    cluster.stop("broker-a", 1)
    reader.route("T", fresh=True)
    before = len(cluster.route_calls)
    for _ in range(5):
        assert reader.ask("T", "broker-a", lambda member: member.broker_id, broker_id=1) == 0
    assert len(cluster.route_calls) == before


def offsets(broker_id, *entries):
    """Returns a broker's answer with these entries: (topic, queue id, offset, generation)."""
    return OffsetsAnswer(
        [entry[:3] for entry in entries], broker_id, generations=[generation for *_, generation in entries]
    )


def test_of_several_slaves_the_newest_offset_counts_and_of_a_master_its_own():
    behind = offsets(1, ("T", 0, 5, 0), ("T", 1, 9, 0), ("T", 2, -1, 0), ("T", 3, 4, 0))
    ahead = offsets(2, ("T", 0, 7, 0), ("T", 1, 2, 1), ("T", 2, 3, 0), ("T", 3, -1, 1))
    # a reset of queue 1 and a deletion in queue 3 have lowered these two
    newest = {("T", 0): 7, ("T", 1): 2, ("T", 2): 3, ("T", 3): -1}
    assert newest_offsets([behind, ahead]) == newest_offsets([ahead, behind]) == newest
    assert newest_offsets([behind, offsets(0, ("T", 0, 6, 0))]) == {("T", 0): 6}
    assert newest_offsets([OffsetsAnswer([("T", 0, 5)], 1), OffsetsAnswer([("T", 0, 6)], 2)]) == {("T", 0): 6}
