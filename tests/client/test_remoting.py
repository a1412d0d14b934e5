"""The client over RocketMQ's remoting protocol, against answers recorded from real servers of three versions."""

import json
import socket
import ssl
import threading
import time
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import offset_message_id
from rocketsim_proto.remoting import acl, frame
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Form, Header

from rocketsim_client.address_map import AddressMap
from rocketsim_client.admin import Admin
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Connection
from rocketsim_client.errors import (
    AccessDenied,
    BadAnswer,
    BrokerRefused,
    BrokerUnavailable,
    CallTimeout,
    GroupNotExist,
    InvalidParameter,
    NameServerUnavailable,
    NoRoute,
    NotFound,
    NotSupported,
    ServiceNotAvailable,
    SystemBusy,
    TlsFailed,
)
from rocketsim_client.model import Message, MessageQueue, QueueRange, SendStatus
from rocketsim_client.producer import Producer
from rocketsim_client.pull_consumer import PullConsumer
from rocketsim_client.tls import Tls
from rocketsim_client.transport.opening import with_detected_protocol
from rocketsim_client.transport.remoting import connection as remoting_connection
from rocketsim_client.transport.remoting import connections as remoting_connections
from rocketsim_client.transport.remoting.connections import Connections, Reply, Request
from rocketsim_client.transport.remoting.sends import batches, rounds
from rocketsim_client.transport.server_protocol import ServerProtocol, protocol_at, protocol_of
from testbed.polling import wait_until
from tests.support.remoting_peer import GROUP, TOPIC, Recording, RemotingPeer, answer_to, readers, replaying
from tests.support.tls import CA, DATA, OTHER_CA

QUEUE = MessageQueue(TOPIC, "interop", 0)
VERSIONS = ["4.9.8", "5.1.4", "5.5.0"]
# The route of a topic with one queue.
ONE_QUEUE = (
    '{"brokerDatas":[{"brokerAddrs":{"0":"ADDRESS"},"brokerName":"interop","cluster":"c"}],"queueDatas":'
    '[{"brokerName":"interop","perm":6,"readQueueNums":1,"writeQueueNums":1,"topicSysFlag":0}]}'
)


def connection(address: str, **settings) -> Connection:
    return Connection.of(address, **{"protocol": "remoting", "timeout_s": 5.0} | settings)


def offsets(frames) -> list[int]:
    return [offset for one in frames for offset in Records.walk(one.records, one.count).queue_offset.tolist()]


class StandingClock:
    """Replaces the module `time`.  The time stands still until a test moves it on."""

    def __init__(self) -> None:
        self.now_s = float(int(time.monotonic()))

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_read_searched_and_committed(version, form):
    with replaying(version, form) as peer, Cluster(connection(peer.address)) as cluster:
        assert cluster.queues(TOPIC) == [QUEUE, QUEUE._replace(queue_id=1)]
        assert TOPIC in cluster.topics() and "interop" not in cluster.topics()
        found = cluster.bounds(TOPIC)[QUEUE]
        assert (found.min_offset, found.max_offset, found.is_master, found.readable) == (0, 40, True, True)
        frames = cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], group=GROUP)
        assert offsets(frames) == list(range(40))
        tagged = cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], group=GROUP, expression="a")
        assert offsets(tagged) == list(range(0, 40, 2))
        assert cluster.committed(GROUP, [QUEUE]) == {QUEUE: -1}
        assert cluster.commit(GROUP, {QUEUE: 40}).offsets == {QUEUE: 40}
        assert cluster.search(TOPIC, {QUEUE: 1}) == {QUEUE: 0}
        asked = [request.code for request in peer.requests]
        # The group's first commit makes it visible to RocketMQ's tools.
        assert RequestCode.UPDATE_AND_CREATE_TOPIC in asked
    assert readers() == []


def test_the_kind_of_a_topic_is_asked_for_again_if_the_broker_was_busy():
    def answer(request: Header, body: bytes) -> bytes | None:
        if request.code != RequestCode.GET_TOPIC_CONFIG:
            return recorded(request, body)
        if [one.code for one in peer.requests].count(RequestCode.GET_TOPIC_CONFIG) == 1:
            return answer_to(request, ResponseCode.SYSTEM_BUSY, "[PCBUSY_CLEAN_QUEUE]broker busy")
        return answer_to(request, body=json.dumps({"attributes": {"cleanup.policy": "COMPACTION"}}).encode())

    recorded = Recording("5.5.0")
    with RemotingPeer(answer) as peer, Cluster(connection(peer.address)) as cluster:
        recorded.address = peer.address
        cluster.bounds(TOPIC)
        with pytest.raises(NotSupported, match="is compacted"):
            cluster.bounds(TOPIC)


def test_what_is_beyond_the_end_is_never_asked_for():
    with replaying("5.5.0") as peer, Cluster(connection(peer.address)) as cluster:
        assert offsets(cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], group=GROUP)) == list(range(40))
        pulls = [one.fields for one in peer.requests if one.code == RequestCode.PULL_MESSAGE]
        assert all(int(one["queueOffset"]) + int(one["maxMsgNums"]) <= 40 for one in pulls)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"cleanup.policy": "COMPACTION"}, r"is compacted \(cleanup.policy=COMPACTION\)"),
        ({"queue.type": "BatchCQ"}, r"batches in its queues \(queue.type=BatchCQ\)"),
        ({"message.type": "NORMAL"}, ""),
    ],
)
def test_kinds_of_topics_that_cannot_be_read_are_refused_by_name(attributes, says):
    def answer(request: Header, body: bytes) -> bytes | None:
        if request.code == RequestCode.GET_TOPIC_CONFIG:
            return answer_to(request, body=json.dumps({"attributes": attributes}).encode())
        return recorded(request, body)

    recorded = Recording("5.5.0")
    with RemotingPeer(answer) as peer, Cluster(connection(peer.address)) as cluster:
        recorded.address = peer.address
        if says:
            with pytest.raises(NotSupported, match=says):
                cluster.bounds(TOPIC)
        else:
            for _ in range(3):
                assert len(cluster.bounds(TOPIC)) == 2
            asked = [one.code for one in peer.requests].count(RequestCode.GET_TOPIC_CONFIG)
            assert asked == 1


def test_a_pull_of_inner_batches_is_refused_by_name():
    """The flag of an inner batch is in each record."""

    def answer(request: Header, body: bytes) -> bytes | None:
        found = recorded(request, body)
        if request.code != RequestCode.PULL_MESSAGE or found is None:
            return found
        header, records = frame.decode(found)
        batch = bytearray(records)
        batch[39] |= 0x80
        return frame.encode(header, batch)

    recorded = Recording("5.5.0")
    with RemotingPeer(answer) as peer, PullConsumer(connection(peer.address), group=GROUP) as consumer:
        recorded.address = peer.address
        with pytest.raises(NotSupported, match="BatchCQ"):
            consumer.pull(QUEUE, 0)
        with pytest.raises(NotSupported, match="BatchCQ"):
            list(consumer.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)]))


def test_a_pull_without_a_group_names_one_that_every_broker_has():
    """A broker with autoCreateSubscriptionGroup=false refuses groups that it does not know."""

    def answer(request: Header, body: bytes) -> bytes | None:
        if request.code == RequestCode.PULL_MESSAGE:
            if request.fields["consumerGroup"] != "TOOLS_CONSUMER":
                return answer_to(request, 26, "subscription group [{consumerGroup}] does not exist")
            request.fields["consumerGroup"] = GROUP
        return recorded(request, body)

    recorded = Recording("5.5.0")
    ranges = [QueueRange(TOPIC, 0, 0, 40)]
    with RemotingPeer(answer) as peer, Cluster(connection(peer.address)) as cluster:
        recorded.address = peer.address
        assert offsets(cluster.pull_range("interop", ranges)) == list(range(40))
        with pytest.raises(GroupNotExist, match=r"makes no groups by itself.*updateSubGroup -g mine"):
            list(cluster.pull_range("interop", ranges, group="mine"))


def test_operators_see_topics_groups_and_messages():
    with replaying("5.5.0") as peer, Admin(connection(peer.address)) as admin:
        assert [member.broker_name for member in admin.cluster_list()] == ["interop"]
        assert [(one.queue.queue_id, one.max_offset) for one in admin.topic_status(TOPIC)] == [(0, 40), (1, 0)]
        assert [one.diff for one in admin.consumer_progress(GROUP) if one.queue == QUEUE] == [0]
        assert [one.body for one in admin.query_msg_by_key(TOPIC, "k7")] == [b"body 7"]
        with pytest.raises(NotSupported, match="haStatus"):
            admin.ha_status()


class Settings:
    """A name server and broker whose topic and group have settings, in the JSON of 5.5.0."""

    def __init__(self) -> None:
        self.peer = RemotingPeer(self._answer)
        self.changes: list[tuple[Header, bytes]] = []

    def _answer(self, request: Header, body: bytes) -> bytes:
        topic = {
            **{"topicName": "t", "readQueueNums": 4, "writeQueueNums": 2, "perm": 6, "order": True},
            "attributes": {"message.type": "FIFO", "old": "1"},
        }
        retries = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
        group = {"groupName": "g", "consumeEnable": False, "retryMaxTimes": 3, "groupRetryPolicy": retries}
        bodies: dict[int, Any] = {
            RequestCode.GET_BROKER_CLUSTER_INFO: {
                "brokerAddrTable": {"a": {"brokerAddrs": {"0": self.peer.address}, "brokerName": "a", "cluster": "c"}}
            },
            RequestCode.GET_ALL_TOPIC_CONFIG: {"topicConfigTable": {"t": topic}},
            RequestCode.GET_TOPIC_CONFIG: topic,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {"subscriptionGroupTable": {"g": group}},
        }
        if request.code not in bodies:
            self.changes.append((request, body))
        return answer_to(request, body=json.dumps(bodies.get(request.code, {})).encode())


def test_settings_of_topics_and_groups_are_read_and_changed():
    settings = Settings()
    with settings.peer as peer, Admin(connection(peer.address)) as admin:
        (topic,) = admin.topic_configs(peer.address)
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.order) == (4, 2, True)
        assert topic.attributes == {"message.type": "FIFO", "old": "1"}
        admin.update_topic("t", attributes={"message.type": "FIFO", "new": "2"})
        (group,) = admin.sub_groups(peer.address)
        assert (group.group_name, group.consume_enable, group.retry_max_times) == ("g", False, 3)
        admin.update_sub_group(replace(group, retry_max_times=5))
        with pytest.raises(InvalidParameter, match="group_retry_policy is not JSON"):
            admin.update_sub_group(replace(group, group_retry_policy="often"))
    (_, _), (_, body) = settings.changes
    assert settings.changes[0][0].fields["attributes"] == "+new=2,-old"
    sent = json.loads(body)
    assert (sent["consumeEnable"], sent["retryMaxTimes"]) == (False, 5)
    assert sent["groupRetryPolicy"]["customizedRetryPolicy"] == {"next": [1000]}


def test_damaged_records_of_a_query_are_refused(monkeypatch: pytest.MonkeyPatch):
    call = Connections.call

    def cut(self: Connections, address: str, request: Request, *more: Any) -> Reply:
        reply = call(self, address, request, *more)
        return replace(reply, body=reply.body[:-1]) if request.code == RequestCode.QUERY_MESSAGE else reply

    monkeypatch.setattr(Connections, "call", cut)
    with replaying("5.5.0") as peer, Admin(connection(peer.address)) as admin:
        with pytest.raises(BadAnswer, match="damaged records"):
            admin.query_msg_by_key(TOPIC, "k7")


def refusing(code: int, remark: str, *, only: int) -> RemotingPeer:
    """The recorded server, which refuses one kind of request."""
    recorded = Recording("5.5.0")

    def answer(request: Header, body: bytes) -> bytes | None:
        groups = {"subscriptionGroupTable": {GROUP: {}, "other": {}}}
        if request.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            return answer_to(request, body=json.dumps(groups).encode())
        if request.code == RequestCode.QUERY_MESSAGE:
            return answer_to(request, ResponseCode.QUERY_NOT_FOUND)
        if request.code == only and request.fields.get("consumerGroup", "other") == "other":
            return answer_to(request, code, remark)
        return recorded(request, body)

    peer = RemotingPeer(answer)
    recorded.address = peer.address
    return peer


@pytest.mark.parametrize(
    ("code", "remark", "error"),
    [
        pytest.param(1, "can not find message by the offset, 12345", NotFound, id="RocketMQ"),
        pytest.param(ResponseCode.QUERY_NOT_FOUND, "no message there", NotFound, id="RocketSim"),
        pytest.param(ResponseCode.SYSTEM_BUSY, "[PCBUSY_CLEAN_QUEUE]broker busy", SystemBusy, id="busy"),
        pytest.param(1, "java.lang.NullPointerException", BrokerRefused, id="a fault of the broker"),
        pytest.param(16, "check signature failed", AccessDenied, id="access control"),
    ],
)
def test_only_an_answer_that_a_message_is_not_there_is_not_found(code, remark, error):
    offset_id = offset_message_id(bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big"), 12345)
    with refusing(code, remark, only=RequestCode.VIEW_MESSAGE_BY_ID) as peer, Admin(connection(peer.address)) as admin:
        with pytest.raises(error) as raised:
            admin.query_msg_by_id(TOPIC, offset_id)
    assert type(raised.value) is error


def test_a_group_is_left_out_of_the_progress_only_if_it_is_not_there():
    stats = RequestCode.GET_CONSUME_STATS
    absent = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    with refusing(absent, "gone", only=stats) as peer, Admin(connection(peer.address)) as admin:
        assert {one.group for one in admin.consumer_progress()} == {GROUP}
        with pytest.raises(GroupNotExist, match="consumerProgress of other"):
            admin.consumer_progress("other")
    with refusing(ResponseCode.SYSTEM_BUSY, "busy", only=stats) as peer, Admin(connection(peer.address)) as admin:
        with pytest.raises(SystemBusy, match="consumerProgress of other"):
            admin.consumer_progress()


def test_a_retry_topic_is_made_only_if_the_broker_says_that_it_is_not_there(caplog):
    """A busy broker may have the topic, and creating it again would replace its settings."""
    busy, ask = ResponseCode.SYSTEM_BUSY, RequestCode.GET_TOPIC_STATS_INFO
    with refusing(busy, "busy", only=ask) as peer, Cluster(connection(peer.address)) as cluster:
        cluster.commit(GROUP, {QUEUE: 40})
    assert RequestCode.UPDATE_AND_CREATE_TOPIC not in {request.code for request in peer.requests}
    assert "will not list it" in caplog.text and "busy" in caplog.text


def test_a_topic_that_is_not_there_is_no_route():
    with replaying("5.5.0") as peer, Cluster(connection(peer.address)) as cluster, pytest.raises(NoRoute):
        cluster.queues("no_such_topic")


def test_auto_looks_which_protocol_a_server_speaks():
    with replaying("5.5.0") as peer:
        auto = connection(peer.address, protocol="auto")
        assert with_detected_protocol(auto).protocol == "remoting"
        with Cluster(auto) as cluster:
            assert cluster.queues(TOPIC)[0] == QUEUE
    with RemotingPeer(lambda *_: None, greeting=bytes.fromhex("000012040000000000")) as grpc:
        assert with_detected_protocol(connection(grpc.address, protocol="auto")).protocol == "grpc"
    assert protocol_at(peer.address, None) is ServerProtocol.NONE


@pytest.mark.parametrize(
    ("first", "speaks"),
    [
        (b"", ServerProtocol.NONE),
        (b"HTTP/1.1", ServerProtocol.HTTP),
        (b"\x15\x03\x01\x00\x02\x02\x16", ServerProtocol.TLS),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00", ServerProtocol.GRPC),
        (b"\x00\x00\x00\x64\x00\x00\x00\x50", ServerProtocol.REMOTING),
        (b"SSH-2.0-", ServerProtocol.UNKNOWN),
    ],
)
def test_the_first_bytes_say_what_a_server_is(first, speaks):
    assert protocol_of(first) is speaks


BOTH = pytest.mark.parametrize("protocol", ["auto", "remoting"])


@BOTH
@pytest.mark.parametrize(
    ("greeting", "error", "says"),
    [
        (b"HTTP/1.1 400 Bad Request", NameServerUnavailable, "it is a web server: give .*9876"),
        (b"SSH-2.0-OpenSSH", NameServerUnavailable, "it is no server of RocketSim or RocketMQ: give .*9876"),
        (b"\x15\x03\x03\x00\x02\x02\x28", TlsFailed, "server speaks TLS.* set the option tls"),
    ],
    ids=["web server", "SSH", "TLS"],
)
def test_a_wrong_port_gets_a_sentence_with_what_to_write_instead(greeting, error, says, protocol):
    with RemotingPeer(lambda *_: None, greeting=greeting) as peer:
        with Cluster(connection(peer.address, protocol=protocol)) as cluster:
            with pytest.raises(error, match=says):
                cluster.queues(TOPIC)
    assert readers() == []


def test_a_server_that_answers_with_a_tls_alert_and_closes_speaks_tls():
    """An alert has seven bytes, which is less than the beginning of a frame."""

    def refuse(*_: object) -> None:
        peer.send(b"\x15\x03\x03\x00\x02\x02\x28")
        peer.drop()

    with RemotingPeer(refuse) as peer, Cluster(connection(peer.address)) as cluster:
        with pytest.raises(TlsFailed, match=r"server speaks TLS.* set the option tls"):
            cluster.queues(TOPIC)
    assert readers() == []


def test_a_port_that_speaks_grpc_gets_a_sentence_with_what_to_write_instead():
    """With `protocol=auto` such a port is no wrong one."""
    with RemotingPeer(lambda *_: None, greeting=bytes.fromhex("0000120400000000")) as peer:
        with Cluster(connection(peer.address)) as cluster:
            with pytest.raises(NameServerUnavailable, match=r"speaks gRPC.*leave out protocol=remoting.*9876"):
                cluster.queues(TOPIC)
    assert readers() == []


@BOTH
def test_the_port_of_a_broker_is_called_so(protocol):
    """The error says that the address is a broker's port, where calls of a name server are unknown."""
    with RemotingPeer(lambda request, _: answer_to(request, 3, " request type 105 not supported")) as broker:
        with Cluster(connection(broker.address, protocol=protocol)) as cluster:
            with pytest.raises(NotSupported, match=f"{broker.address} is a broker's port.*name server.*9876"):
                cluster.queues(TOPIC)
            with pytest.raises(NotSupported, match=r"a broker or a proxy.*9876"):
                cluster.topics()


@BOTH
@pytest.mark.parametrize("answer", [b"\xff" * 64, frame.HEAD.pack(2**31, 10), frame.HEAD.pack(100, 97)])
def test_garbage_in_place_of_an_answer_is_an_error_at_once(answer, protocol):
    with RemotingPeer(lambda *_: answer) as peer:
        with Cluster(connection(peer.address, timeout_s=60.0, protocol=protocol)) as cluster:
            with pytest.raises(NameServerUnavailable, match=r"no server of RocketSim or RocketMQ: give .*9876"):
                cluster.queues(TOPIC)
    assert readers() == []


def test_silence_is_an_error_at_the_deadline():
    with RemotingPeer(lambda *_: None) as peer, Cluster(connection(peer.address, timeout_s=0.2)) as cluster:
        with pytest.raises(NameServerUnavailable, match=r"no answer within 0\.2 s"):
            cluster.queues(TOPIC)


def test_a_request_of_the_servers_is_not_taken_for_an_answer():
    """The server's request has the same number as the call that waits for an answer."""

    def answer(request: Header, _: bytes) -> bytes:
        own = frame.encode(Header(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, request.opaque, frame.IS_ONE_WAY))
        return own + answer_to(request, body=b'{"topicList":["a"],"brokerAddrTable":{}}')

    with RemotingPeer(answer) as peer, Cluster(connection(peer.address)) as cluster:
        assert cluster.topics() == ["a"]


def test_an_answer_of_many_megabytes_is_received():
    names = '","'.join(f"topic-{number:08d}" for number in range(200_000))
    body = f'{{"topicList":["{names}"],"brokerAddrTable":{{}}}}'.encode()
    with RemotingPeer(lambda request, _: answer_to(request, body=body)) as peer:
        with Cluster(connection(peer.address, timeout_s=60.0)) as cluster:
            assert len(cluster.topics()) == 200_000


def test_a_connection_that_the_server_ends_is_opened_again():
    with replaying("5.5.0") as peer, Cluster(connection(peer.address)) as cluster:
        assert cluster.queues(TOPIC)
        peer.drop()
        wait_until(lambda: readers() == [], "the reader has seen the end")
        assert cluster.queues(TOPIC, fresh=True)


def test_a_connection_that_was_not_used_for_a_minute_is_opened_again(monkeypatch: pytest.MonkeyPatch):
    """RocketMQ's servers end such a connection after two minutes, perhaps while the client writes a request."""
    clock = StandingClock()
    for module in (remoting_connection, remoting_connections):
        monkeypatch.setattr(module, "time", clock)
    with replaying("5.5.0") as peer, Cluster(connection(peer.address, timeout_s=60.0)) as cluster:
        transport: Any = cluster.transport

        def opened() -> remoting_connection.Connection:
            found: remoting_connection.Connection = transport.connections.to(peer.address, 60.0)
            return found

        cluster.queues(TOPIC)
        first = opened()
        for _ in range(3):
            clock.now_s += remoting_connections.IDLE_S - 1
            assert cluster.queues(TOPIC, fresh=True)
            assert opened() is first
        waiting = remoting_connection.Inbox()
        first.numbers(waiting, 1)
        clock.now_s += remoting_connections.IDLE_S
        assert opened() is first  # as long as a call waits for its answer
        first.forget(waiting)
        assert cluster.queues(TOPIC, fresh=True)
        assert opened() is not first and not first.is_open
        wait_until(lambda: len(readers()) == 1, "the end of the thread that has read from the first connection")


def test_a_broker_that_vanishes_under_a_pull_is_an_error_of_its_own():
    with replaying("5.5.0") as peer, Cluster(connection(peer.address)) as cluster:
        cluster.queues(TOPIC)
        peer._answer = lambda *_: peer.drop()  # type: ignore[func-returns-value]
        with pytest.raises((BrokerUnavailable, CallTimeout)):
            list(cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], group=GROUP, max_failures=2))
    wait_until(lambda: readers() == [], "the end of the threads that read from the broker")


def test_requests_are_signed_where_there_are_keys():
    with replaying("5.5.0") as peer:
        keys = {"access_key": "ak", "secret_key": "sk", "security_token": "st"}
        with Cluster(connection(peer.address, **keys)) as cluster:
            list(cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], group=GROUP))
        for one in peer.requests:
            assert (one.fields["AccessKey"], one.fields["SecurityToken"]) == ("ak", "st")
            assert one.fields["Signature"] == acl.signature("sk", one.fields)


@BOTH
def test_a_certificate_that_is_not_valid_is_the_error_whatever_the_protocol(protocol):
    """The probe for the protocol does not check the certificate: `auto` took the server for one that speaks gRPC, and
    said so in the error.
    """
    with replaying("5.5.0", tls=DATA) as peer:
        trusting = connection(peer.address, protocol=protocol, tls=True, tls_ca=CA)
        with Cluster(trusting) as cluster:
            assert cluster.queues(TOPIC)
        with Cluster(replace(trusting, tls=Tls.of(True, OTHER_CA, None, None))) as cluster:
            with pytest.raises(TlsFailed, match=r"certificate is not valid.*tlsCa="):
                cluster.queues(TOPIC)


@BOTH
def test_a_server_that_wants_a_certificate_is_the_error_whatever_the_protocol(protocol):
    with replaying("5.5.0", tls=DATA, client_ca=CA) as peer:
        own, strange = (
            {"tls_cert": DATA / f"{name}.pem", "tls_key": DATA / f"{name}.key"} for name in ("client", "stranger")
        )
        with Cluster(connection(peer.address, protocol=protocol, tls=True, tls_ca=CA, **own)) as cluster:
            assert cluster.queues(TOPIC)
        for given, says in (({}, "set tlsCert and tlsKey"), (strange, "tlsCert=.* is not one")):
            with Cluster(connection(peer.address, protocol=protocol, tls=True, tls_ca=CA, **given)) as cluster:
                with pytest.raises(TlsFailed, match=says):
                    cluster.queues(TOPIC)


class WireWithRefusal:
    """A TLS connection whose write fails before the reading thread has got the server's alert."""

    def __init__(self) -> None:
        self._has_ended = threading.Event()

    def receive_into(self, _: memoryview) -> int:
        assert self._has_ended.wait(60)
        error = ssl.SSLError()
        error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
        raise error

    def send(self, *_: object) -> None:
        raise ssl.SSLEOFError("EOF occurred in violation of protocol")

    def shut(self) -> None:
        self._has_ended.set()

    def close(self) -> None:
        pass


def test_a_server_that_wants_a_certificate_is_the_error_also_if_the_request_cannot_be_written():
    one = remoting_connection.Connection("a:1", cast(Any, WireWithRefusal()), Tls(str(CA)))
    with pytest.raises(TlsFailed, match="set tlsCert and tlsKey"):
        one.send([b"a request"], time.monotonic() + 60)
    one.join()


@pytest.mark.parametrize(
    ("code", "remark"), [(16, "check signature failed."), (1, "org.apache.rocketmq.acl.common.AclException: no")]
)
def test_a_refusal_by_access_control_is_that_in_both_versions(code, remark):
    with RemotingPeer(lambda request, _: answer_to(request, code, remark)) as peer:
        with Cluster(connection(peer.address)) as cluster, pytest.raises(AccessDenied):
            cluster.topics()


@pytest.mark.parametrize(("version", "found"), [(409, 77), (441, 77), (493, 77), (513, None)])
def test_offsets_of_a_slave_count_where_it_gets_them_from_its_master(version, found):
    """Real slaves of 4.9.8, 5.1.4 and 5.4.0 had the offset of their master after a while, that of 5.5.0 never."""

    def slave(request: Header, _: bytes) -> bytes:
        return frame.encode(Header(0, request.opaque, frame.IS_ANSWER, "", {"offset": "77"}, "JAVA", version))

    def name_server(request: Header, _: bytes) -> bytes:
        route = ONE_QUEUE.replace('"0":"ADDRESS"', f'"1":"{broker.address}"')
        return answer_to(request, body=route.encode())

    with (
        RemotingPeer(slave) as broker,
        RemotingPeer(name_server) as names,
        Cluster(connection(names.address)) as cluster,
    ):
        queue = MessageQueue("t", "interop", 0)
        assert cluster.committed("g", [queue]).get(queue) == found


def test_a_slave_that_refuses_reads_is_left_for_the_master():
    master_pulls = []
    with replaying("5.5.0") as master:

        def slave(request: Header, _: bytes) -> bytes:
            return answer_to(request, 2, "[REJECTREQUEST]system busy, start flow control for a while")

        with RemotingPeer(slave) as refusing, Cluster(connection(master.address)) as cluster:
            known = cluster.route(TOPIC).brokers["interop"].addresses
            known[1] = refusing.address  # type: ignore[index]
            transport: Any = cluster.transport
            transport.routes._members.learn([cluster.route(TOPIC).brokers["interop"]])
            frames = cluster.pull_range("interop", [QueueRange(TOPIC, 0, 0, 40)], broker_id_hint=1, group=GROUP)
            assert offsets(frames) == list(range(40))
            assert len(refusing.requests) >= 1
            with pytest.raises(ServiceNotAvailable):
                cluster.transport.reads.commit_offsets(refusing.address, GROUP, {QUEUE: 40}, 5.0)
        master_pulls = [one for one in master.requests if one.code == RequestCode.PULL_MESSAGE]
    assert master_pulls


def test_a_busy_broker_gets_only_the_batch_again_that_it_refused():
    refused = []

    def answer(request: Header, body: bytes) -> bytes:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return answer_to(request, body=ONE_QUEUE.replace("ADDRESS", peer.address).encode())
        if not refused:
            refused.append(body)
            return answer_to(request, 2, "[TIMEOUT_CLEAN_QUEUE]broker busy")
        stored.append(body)
        return answer_to(request, queueId=request.fields["e"], queueOffset=1000 * (len(stored) - 1), msgId="x")

    stored: list[bytes] = []
    with RemotingPeer(answer) as peer, Producer(connection(peer.address), "pg") as producer:
        results = producer.send_columns("t", pa.array([b"%d" % number for number in range(2500)]))
    assert [one.queue_offset for one in results] == list(range(2500))
    assert len(stored) == 3 and stored[0] == refused[0]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_what_a_broker_has_stored_less_safely_is_not_sent_again(code: int, status: SendStatus):
    def answer(request: Header, _: bytes) -> bytes:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return answer_to(request, body=ONE_QUEUE.replace("ADDRESS", peer.address).encode())
        return answer_to(request, code, "stored", queueId=request.fields["e"], queueOffset=7, msgId="x")

    with RemotingPeer(answer) as peer, Producer(connection(peer.address), "pg") as producer:
        one = producer.send(Message("t", b"alone"))
        batch = producer.send_columns("t", pa.array([b"first", b"second"]))
    assert (one.send_status, one.queue_offset) == (status, 7)
    assert [(row.send_status, row.queue_offset) for row in batch] == [(status, 7), (status, 8)]
    sends = [asked.code for asked in peer.requests if asked.code != RequestCode.GET_ROUTEINFO_BY_TOPIC]
    assert sends == [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]


@pytest.mark.parametrize(("version", "is_refused"), [(409, True), (513, False)], ids=["4.9.8", "5.5.0"])
def test_a_time_of_delivery_is_refused_by_brokers_of_4_only(version, is_refused):
    """A broker of version 4 does not know the property, and would deliver the message at once."""

    def answer(request: Header, body: bytes) -> bytes:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return answer_to(request, body=ONE_QUEUE.replace("ADDRESS", peer.address).encode())
        fields = {"queueId": "0", "queueOffset": "0", "offset": "0", "msgId": "x"}
        return frame.encode(Header(0, request.opaque, frame.IS_ANSWER, "", fields, "JAVA", version))

    with RemotingPeer(answer) as peer, Producer(connection(peer.address), "pg") as producer:
        producer.send(Message("t", b"by level", delay_level=3))
        if is_refused:
            with pytest.raises(NotSupported, match=r"RocketMQ 4.*deliver_at.*delay_level"):
                producer.send(Message("t", b"by time"), deliver_at=time.time() + 60)
        else:
            producer.send(Message("t", b"by time"), deliver_at=time.time() + 60)
    sends = [one for one in peer.requests if one.code == RequestCode.SEND_MESSAGE_V2]
    assert len(sends) == (1 if is_refused else 2)


def test_an_empty_body_is_refused_before_it_is_sent():
    with (
        replaying("5.5.0") as peer,
        Producer(connection(peer.address), "pg", retry_times_when_send_failed=0) as producer,
    ):
        with pytest.raises(Exception, match="empty"):
            producer.send_columns(TOPIC, pa.array([b""]))


def test_batches_keep_the_order_of_each_queue_and_its_limits():
    import numpy as np

    queues = np.array([number % 2 for number in range(5000)])
    flags = np.array([int(number in (10, 11)) for number in range(5000)])
    alone = np.array([number == 100 for number in range(5000)])
    found = batches(queues, np.full(5000, 100), flags, alone)
    assert all(len(one.rows) <= 1000 for one in found)
    for queue in (0, 1):
        rows = [row for one in found if one.queue_id == queue for row in one.rows]
        assert rows == list(range(queue, 5000, 2))
    assert [one.rows for one in found if 100 in one.rows] == [[100]]
    assert all(len({one.queue_id for one in together}) == len(together) for together in rounds(found))


def test_pops_and_transactions_are_refused_by_name():
    with replaying("5.5.0") as peer, Cluster(connection(peer.address)) as cluster:
        transport: Any = cluster.transport
        with pytest.raises(NotSupported, match="pop"):
            transport.consumption.pop()
        with pytest.raises(NotSupported, match="transactions"):
            transport.transactions.prepare()


def test_an_address_map_leads_to_where_brokers_are_reached():
    table = AddressMap.parse("172.17.0.3:10911=host:20911, 10.0.*=outside")
    assert table.of("172.17.0.3:10911") == "host:20911"
    assert table.of("10.0.7.7:10911") == "outside:10911"
    assert table.of("10.1.7.7:10911") == "10.1.7.7:10911"
    for wrong in ("x", "a=b:c:d", "=h", "a:1=b"):
        with pytest.raises(InvalidParameter, match="address_map"):
            AddressMap.parse(wrong)


def test_a_pace_is_kept():
    """At 1,000 pulls a second, ten pulls take a hundredth of a second."""
    from rocketsim_client.transport.remoting.pace import Pace

    pace = Pace(1000)
    begun = time.monotonic()
    for _ in range(3):
        pace.wait(10)
    assert time.monotonic() - begun >= 0.02


def test_a_forked_child_opens_connections_of_its_own():
    with replaying("5.5.0") as peer, Cluster(connection(peer.address)) as cluster:
        cluster.queues(TOPIC)
        transport: Any = cluster.transport
        assert len(readers()) == 1
        transport.connections.forget_parent()
        assert cluster.queues(TOPIC, fresh=True)
        assert len(readers()) == 2
        peer.drop()
        wait_until(lambda: readers() == [], "both connections have ended")


@BOTH
def test_a_port_where_nobody_listens_names_the_address(protocol):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    with Cluster(connection(address, protocol=protocol)) as cluster:
        with pytest.raises(NameServerUnavailable, match=f"{address}: not reachable"):
            cluster.queues(TOPIC)
