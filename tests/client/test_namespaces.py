"""Cloud instances, whose servers call a topic `INSTANCE%topic`, and the namespaces of RocketMQ 5."""

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.metadata_pb2 import SubscriptionGroupConfig, TopicConfig
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import Record
from rocketsim_proto.remoting import acl
from rocketsim_proto.remoting.codes import RequestCode

from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Connection
from rocketsim_client.errors import BadAnswer, InvalidParameter
from rocketsim_client.model import MessageQueue, QueueRange
from rocketsim_client.producer import Producer
from rocketsim_client.transport.opening import open_transport
from rocketsim_client.transport.remoting.namespaces import Namespace, NamespacedTransport, rename
from rocketsim_source.options.sink_options import sink_options
from rocketsim_source.options.source_options import source_options
from tests.support.cloud_instance import INSTANCE, Instance
from tests.support.records import decode_all, encode_raw, in_bulk, records
from tests.support.remoting_peer import GROUP, TOPIC, Recording, RemotingPeer

NAMES = {
    "orders": "MQ_INST_1%orders",
    "%RETRY%group": "%RETRY%MQ_INST_1%group",
    "%DLQ%group": "%DLQ%MQ_INST_1%group",
    "RMQ_SYS_TRANS_HALF_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC",
    "TBW102": "TBW102",
    "": "",
}


@pytest.mark.parametrize(("name", "at_the_servers"), NAMES.items())
def test_names_get_the_instance_and_lose_it_again(name: str, at_the_servers: str) -> None:
    namespace = Namespace(INSTANCE)
    assert namespace.added(name) == namespace.added(at_the_servers) == at_the_servers
    assert namespace.removed(at_the_servers) == namespace.removed(name) == name
    assert namespace.removed("MQ_INST_2%orders") == "MQ_INST_2%orders"


topics = st.sampled_from(
    ["orders", "%RETRY%group", "%DLQ%g", "o", "%", "%x", "MQ_INST_2%orders", "x" * 100, "MQ_INST_1"]
)


@given(st.lists(st.tuples(records, topics, st.booleans()), max_size=6))
def test_records_are_those_of_the_topic_without_the_instance(made: list[tuple[Record, str, bool]]) -> None:
    namespace = Namespace(INSTANCE)
    made = in_bulk(made) if len(made) > 3 else made
    data = b"".join(
        encode_raw(replace(one, topic=namespace.added(topic)), b"TAGS\x01a\x02", version_2=second)
        for one, topic, second in made
    )
    found = namespace.records(data, "a:1")
    assert [one.topic for one in decode_all(found)] == [topic for _, topic, _ in made]
    assert found == b"".join(
        encode_raw(replace(one, topic=topic), b"TAGS\x01a\x02", version_2=second) for one, topic, second in made
    )


def test_damaged_records_are_a_bad_answer() -> None:
    with pytest.raises(BadAnswer, match="a:1 sent damaged records"):
        Namespace(INSTANCE).records(b"x" * 200, "a:1")


def test_all_calls_name_topics_and_groups_with_the_instance() -> None:
    instance = Instance()
    with instance.peer as peer:
        where = Connection.of(peer.address, protocol="remoting", timeout_s=20.0, namespace=INSTANCE)
        with Cluster(where) as cluster:
            queue = MessageQueue(TOPIC, "interop", 0)
            assert cluster.queues(TOPIC) == [queue, queue._replace(queue_id=1)]
            assert cluster.bounds(TOPIC)[queue].max_offset == 40
            frames = list(cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], group=GROUP))
            for frame in frames:
                Records.walk(frame.records, frame.count).check_topic(TOPIC)
            assert sum(frame.count for frame in frames) == 40
            assert cluster.committed(GROUP, [queue]) == {queue: -1}
            assert cluster.commit(GROUP, {queue: 40}).offsets == {queue: 40}
            assert cluster.search(TOPIC, {queue: 1}) == {queue: 0}
            assert cluster.topics() == []  # the recorded topics belong to no instance
            with Producer(cluster=cluster, group="senders") as producer:
                producer.send_columns(TOPIC, pa.array([b"1", b"2"]), queue=queue)
    assert [(one.fields["a"], one.fields["b"]) for one in instance.sent] == [("senders", TOPIC)]


@pytest.mark.parametrize(
    ("address", "given", "namespace"),
    [
        ("MQ_INST_1234_abc.mq.example.com:80", {}, "MQ_INST_1234_abc"),
        ("http://MQ_INST_1234_abc.mq.example.com:80", {}, "MQ_INST_1234_abc"),
        ("host:1; MQ_INST_1234_abc.mq.example.com:80", {}, "MQ_INST_1234_abc"),
        ("MQ_INST_1234_abc.mq.example.com:80", {"namespace": "own"}, "own"),
        ("MQ_INST_1234_abc.mq.example.com:80", {"namespace_v2": "own"}, ""),
        ("MQ_INST_1234.mq.example.com:80", {}, ""),
        ("x.MQ_INST_1234_abc.example.com:80", {}, ""),
        ("mq.example.com:80", {}, ""),
    ],
)
def test_an_endpoint_names_its_instance(address: str, given: dict[str, str], namespace: str) -> None:
    found = Connection.of(address, **given)  # type: ignore[arg-type]
    assert found.namespace == namespace
    assert not any("/" in one for one in found.name_servers)
    names = {"namespace": "namespace", "namespace_v2": "namespaceV2"}
    options = {"nameServer": address, "topic": "t", **{names[name]: value for name, value in given.items()}}
    assert source_options(options, streaming=True).connection.namespace == namespace
    assert sink_options(options).connection.namespace == namespace


def test_the_instance_of_an_endpoint_is_in_the_names_of_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *others, **named: real("127.0.0.1", *others, **named))
    instance = Instance("MQ_INST_1234_abc")
    with instance.peer as peer:
        endpoint = f"http://MQ_INST_1234_abc.mq.example.com:{peer.address.rpartition(':')[2]}"
        options = source_options({"nameServer": endpoint, "topic": TOPIC}, streaming=False)
        with Cluster(options.connection) as cluster:
            frames = list(cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], group=GROUP))
    assert sum(frame.count for frame in frames) == 40
    assert instance.names == {f"MQ_INST_1234_abc%{TOPIC}", f"MQ_INST_1234_abc%{GROUP}"}


def test_commands_name_topics_and_groups_with_the_instance_too() -> None:
    namespace = Namespace(INSTANCE)
    request: Any = pb.UpdateTopicRequest(topic=TopicConfig(topic_name="orders", attributes={"topic": "orders"}))
    rename(request, namespace.added)
    assert request.topic.topic_name == "MQ_INST_1%orders"
    assert dict(request.topic.attributes) == {"topic": "orders"}
    entry = pb.ConsumerProgressResponse.Entry(group="MQ_INST_1%g", topic="%RETRY%MQ_INST_1%g", queue_id=1)
    answer: Any = pb.ConsumerProgressResponse(entries=[entry])
    rename(answer, namespace.removed)
    assert (answer.entries[0].group, answer.entries[0].topic) == ("g", "%RETRY%g")


def of_instance(request: Any, answer: Any) -> tuple[Any, Any]:
    """Returns the request as the servers of the instance get it, and what the user gets of this answer."""
    asked: list[Any] = []

    def command(_: str, request: Any, __: float) -> Any:
        asked.append(request)
        return answer

    calls = SimpleNamespace(routes=None, reads=None, admin=SimpleNamespace(command=command))
    found = NamespacedTransport(cast(Any, calls), INSTANCE).admin.command("a:1", request, 1.0)
    return asked[0], found


def test_lists_of_a_shared_cluster_have_the_topics_and_groups_of_the_instance_only() -> None:
    """Without the instance, a topic of no instance would look like the topic of the same name."""
    names = ["orders", "MQ_INST_1%orders", "MQ_INST_2%orders", "%RETRY%g", "%RETRY%MQ_INST_1%g", "TBW102"]
    topics = [TopicConfig(topic_name=name, read_queue_nums=at) for at, name in enumerate(names)]
    _, found = of_instance(pb.ListTopicsRequest(), pb.ListTopicsResponse(topics=topics))
    assert [(one.topic_name, one.read_queue_nums) for one in found.topics] == [("orders", 1), ("%RETRY%g", 4)]
    groups = [SubscriptionGroupConfig(group_name=name) for name in ("MQ_INST_2%g", "g", "MQ_INST_1%g", "CID_RMQ_SYS_X")]
    _, found = of_instance(pb.ListSubGroupsRequest(), pb.ListSubGroupsResponse(groups=groups))
    assert [one.group_name for one in found.groups] == ["g"]


@pytest.mark.parametrize(
    ("group", "entries", "kept"),
    [
        ("", [("MQ_INST_1%g", "MQ_INST_1%t"), ("g", "t"), ("MQ_INST_2%g", "MQ_INST_2%t")], [("g", "t")]),
        ("g", [("MQ_INST_1%g", "t"), ("MQ_INST_1%g", "%RETRY%MQ_INST_1%g")], [("g", "%RETRY%g")]),
        ("g", [("MQ_INST_1%g", "RMQ_SYS_TRACE_TOPIC")], [("g", "RMQ_SYS_TRACE_TOPIC")]),
        ("CID_RMQ_SYS_TRANS", [("CID_RMQ_SYS_TRANS", "RMQ_SYS_T")], [("CID_RMQ_SYS_TRANS", "RMQ_SYS_T")]),
        ("", [("CID_RMQ_SYS_TRANS", "RMQ_SYS_T")], []),
    ],
)
def test_progress_on_a_shared_cluster_is_that_of_the_instance(
    group: str, entries: list[tuple[str, str]], kept: list[tuple[str, str]]
) -> None:
    answer = pb.ConsumerProgressResponse(
        entries=[pb.ConsumerProgressResponse.Entry(group=one, topic=topic) for one, topic in entries]
    )
    asked, found = of_instance(pb.ConsumerProgressRequest(group=group), answer)
    assert asked.group == Namespace(INSTANCE).added(group)
    assert [(one.group, one.topic) for one in found.entries] == kept


def test_entries_that_name_no_topic_or_group_stay() -> None:
    answer = pb.TopicStatusResponse(entries=[pb.TopicStatusResponse.Entry(queue_id=1, max_offset=7)])
    asked, found = of_instance(pb.TopicStatusRequest(topic="orders"), answer)
    assert (asked.topic, [one.max_offset for one in found.entries]) == ("MQ_INST_1%orders", [7])


@pytest.mark.parametrize("keys", [{}, {"access_key": "ak", "secret_key": "sk"}], ids=["plain", "signed"])
def test_the_namespace_of_rocketmq_5_travels_beside_the_names(keys: dict[str, str]) -> None:
    recording = Recording("5.5.0")
    with RemotingPeer(recording) as peer:
        recording.address = peer.address
        where = Connection.of(peer.address, protocol="remoting", timeout_s=20.0, namespace_v2="one", **keys)
        with Cluster(where) as cluster:
            frames = cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], group=GROUP)
            assert sum(frame.count for frame in frames) == 40
    assert {(one.fields["nsd"], one.fields["ns"]) for one in peer.requests} == {("true", "one")}
    assert any(one.code == RequestCode.PULL_MESSAGE for one in peer.requests)
    for one in peer.requests if keys else []:
        assert one.fields["Signature"] == acl.signature("sk", one.fields)


def test_a_namespace_is_refused_where_it_makes_no_sense() -> None:
    for given_twice in ({"namespace": "a%b"}, {"namespace_v2": "ü"}, {"namespace": "a", "namespace_v2": "b"}):
        with pytest.raises(InvalidParameter, match="namespace"):
            Connection.of("a:1", **given_twice)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="RocketSim's own servers have no namespaces"):
        open_transport(Connection.of("a:1", protocol="grpc", namespace=INSTANCE))
