"""A slave of a RocketMQ master, which tests/support/rocketmq_master.py plays."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.metadata_pb2 import ConsumerOffset
from rocketsim_proto.remoting import acl
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Header

from broker_service.errors import ConfigError, DiskFull, InvalidParameter
from broker_service.modes import BrokerRole, HaMasterProtocol
from broker_service.node.node import BrokerNode
from broker_service.replication import rocketmq_slave
from broker_service.replication.ha_stream import HEAD, MAX_DATA_BYTES, HaFrame, HaFrames, joined
from broker_service.replication.refusals import Mismatch, ProtocolViolation
from broker_service.replication.rocketmq_follower import LogBounds, Start, start_of
from broker_service.replication.rocketmq_master import Floor, RocketMQLost, check_config, open_master
from broker_service.replication.rocketmq_slave import raise_generations
from broker_service.replication.slave import SlaveSettings
from rocketsim_client import Connection, PullConsumer
from testbed.polling import until
from tests.support.access import INNER, KEYS
from tests.support.brokers import name_server, put, running, small_config
from tests.support.remoting_peer import RemotingPeer, answer_to
from tests.support.rocketmq_master import (
    ASKED,
    RECORDED_BODIES,
    RECORDED_GROUP,
    RECORDED_OFFSET,
    RECORDED_TOPIC,
    HaPort,
    recorded_master,
    scripted_master,
)

# The answers with all tables that a slave asks for; tests fill in what replaces each %s.
METADATA = b'{"topicConfigTable":%s,"subscriptionGroupTable":%s,"offsetTable":%s,"table":%s}'
SLAVE: dict[str, Any] = {
    "broker_role": BrokerRole.SLAVE,
    "broker_id": 1,
    "ha_master_protocol": HaMasterProtocol.rocketmq,
    "sync_metadata_interval": 50,
}


async def log_of(root: Path, *bodies: bytes, records: int = 1) -> bytes:
    """Returns the log of a broker that got each of these messages `records` times."""
    async with running(root) as node:
        for body in bodies:
            await put(node, "t", *[body] * records)
        return bytes(whole(node))


def whole(node: BrokerNode) -> bytes:
    found, at = bytearray(), node.store.min_offset
    while at < node.store.end_offset:
        data = node.store.read_log(at, 1 << 20)
        found += data
        at += len(data)
    return bytes(found)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = partial(SlaveSettings, retry_first_s=0.02, retry_last_s=0.02)
    monkeypatch.setattr("broker_service.node.replication.SlaveSettings", quick)


@asynccontextmanager
async def slave(root: Path, address: str, **keys: Any) -> AsyncIterator[BrokerNode]:
    async with running(root, **SLAVE | {"ha_master_address": address} | keys) as node:
        yield node


async def has(node: BrokerNode, ha: HaPort) -> None:
    await until(lambda: node.store.end_offset == ha.end_offset and ha.reports[-1:] == [ha.end_offset], "all is copied")
    assert whole(node) == bytes(ha.log)


def read(where: Connection, topic: str) -> list[bytes]:
    """Returns the bodies that our client reads."""
    with PullConsumer(where, group="elsewhere") as consumer:
        bodies: list[bytes] = consumer.read(topic).read_all()["body"].to_pylist()
    return bodies


async def has_offset(node: BrokerNode, offset: int) -> None:
    await until(lambda: node.broker.offsets.get("readers", "t", 0).offset == offset, f"the offset {offset} arrives")


# --- the codec --------------------------------------------------------------------------------------------------------


def test_frames_are_cut_out_of_any_pieces() -> None:
    stream = HEAD.pack(1, 3) + b"abc" + HEAD.pack(4, 0) + HEAD.pack(4, 2) + b"de"
    for size in range(1, len(stream) + 1):
        frames = HaFrames()
        found = [one for at in range(0, len(stream), size) for one in frames.feed(stream[at : at + size])]
        assert found == [HaFrame(1, b"abc"), HaFrame(4, b""), HaFrame(4, b"de")]
    assert joined([HaFrame(1, b"abc"), HaFrame(4, b"de"), HaFrame(9, b"f")]) == [HaFrame(1, b"abcde"), HaFrame(9, b"f")]


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, -1), (0, MAX_DATA_BYTES + 1)])
def test_lies_in_a_head_are_refused_before_anything_is_collected(offset: int, size: int) -> None:
    with pytest.raises(ProtocolViolation, match=rf"{size} bytes from log offset {offset}.*enableControllerMode"):
        HaFrames().feed(struct.pack(">qi", offset, size))


# --- where a stream begins --------------------------------------------------------------------------------------------


def test_where_a_stream_begins() -> None:
    assert start_of(LogBounds(0, 0), LogBounds(0, 5000)) == Start(1, 0)
    assert start_of(LogBounds(0, 0), LogBounds(1024, 5000)) == Start(1024, 1024)
    assert start_of(LogBounds(0, 200), LogBounds(0, 5000)) == Start(1, None)
    assert start_of(LogBounds(0, 200), LogBounds(128, 5000)) == Start(128, None)
    with pytest.raises(Mismatch, match="ends at 100, before the end 200"):
        start_of(LogBounds(0, 200), LogBounds(0, 100))
    with pytest.raises(Mismatch, match="begins at 300, and this slave's ends at 200"):
        start_of(LogBounds(0, 200), LogBounds(300, 400))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"enableControllerMode": "true"}, "enableControllerMode=true"),
        ({"brokerRole": "SLAVE"}, "address of a RocketMQ slave"),
        ({"mappedFileSizeCommitLog": "7"}, "mappedFileSizeCommitLog=7, and this slave 1024"),
        ({"haListenPort": ""}, "haListenPort"),
    ],
)
def test_a_master_that_cannot_be_followed_is_refused(changed: dict[str, str], said: str) -> None:
    config = {"brokerRole": "ASYNC_MASTER", "mappedFileSizeCommitLog": "1024", "haListenPort": "1"}
    check_config(config, 1024)
    with pytest.raises(Mismatch, match=said):
        check_config(config | changed, 1024)


def test_an_offset_that_the_master_moves_back_gets_a_new_generation() -> None:
    seen: dict[tuple[str, str, int], int] = {}
    found = []
    for offset in (5, 9, 2):
        one = ConsumerOffset(group="g", topic="t", queue_id=0, offset=offset)
        raise_generations([one], seen, lambda *_: 7)
        found.append((one.generation, one.offset))
    assert found == [(7, 5), (7, 9), (8, 2)]


# --- following --------------------------------------------------------------------------------------------------------


async def test_it_copies_the_whole_log_and_resumes_and_takes_metadata(tmp_path: Path) -> None:
    log = await log_of(tmp_path / "m", b"x" * 1000, records=2500)  # three log files
    assert len(log) > 2 << 20
    async with scripted_master(log[:-5000]) as (ha, state, address):
        async with slave(tmp_path / "s", address, ha_master_protocol=HaMasterProtocol.rocketmq) as node:
            # The last record is not complete, so only what is before it is stored and reported.
            await until(lambda: node.store.end_offset + node.store.partial_size == ha.end_offset, "all has arrived")
            assert node.store.end_offset < ha.end_offset and ha.reports[0] == 1
            ha.append(log[-5000:])
            await has(node, ha)
            broker = node.broker
            await until(lambda: broker.offsets.get("readers", "t", 0).offset == 1, "the offsets arrive")
            assert broker.topics.entries["t"].read_queue_nums == 4
            assert broker.groups.entries["readers"].retry_max_times == 3
            assert broker.groups.entries["readers"].consume_timeout_minute == 15
            assert node.store.queues.bounds("t", 0) == (0, 2500)
            state.offsets = '{"t@readers":{0:0}}'
            await until(lambda: broker.offsets.get("readers", "t", 0).offset == 0, "the reset arrives")
        reports = len(ha.reports)
        async with slave(tmp_path / "s", address) as node:
            await until(lambda: len(ha.reports) > reports + 1, "it follows again")
            assert 0 < ha.end_offset - ha.reports[reports] <= 1 << 20  # the slave asks only for the end of the log
            await has(node, ha)
            assert all(one <= ha.end_offset for one in ha.reports)


@pytest.mark.parametrize("version", ["4.9.8", "5.1.4", "5.5.0"])
async def test_a_recorded_master_of_each_version_is_followed(tmp_path: Path, version: str) -> None:
    async with recorded_master(version) as (ha, address), slave(tmp_path / "s", address) as node:
        await until(lambda: node.store.end_offset == ha.end_offset, "the recorded frames are copied")
        ha.raw = None
        await has(node, ha)
        offsets = node.broker.offsets
        await until(lambda: offsets.get(RECORDED_GROUP, RECORDED_TOPIC, 0).offset == RECORDED_OFFSET, "the offset")
        assert node.broker.topics.entries[RECORDED_TOPIC].read_queue_nums == 2
        assert RECORDED_GROUP in node.broker.groups.entries
        assert [node.store.queues.bounds(RECORDED_TOPIC, queue) for queue in (0, 1)] == [(0, 20), (0, 0)]
        found = await asyncio.to_thread(read, Connection.of(brokers={"broker-a": {1: node.address}}), RECORDED_TOPIC)
        assert found == RECORDED_BODIES


async def test_a_name_server_of_ours_leads_clients_to_it(tmp_path: Path) -> None:
    log = await log_of(tmp_path / "m", b"x", records=10)
    async with scripted_master(log) as (ha, _, address), name_server() as names:
        async with slave(tmp_path / "s", address, namesrv_addr=names.address) as node:
            await has(node, ha)
            await until(lambda: "t" in names.table.topics(), "the name server to know the topic")
            where = Connection.of(names.address, protocol="grpc", timeout_s=60.0)
            assert await asyncio.to_thread(read, where, "t") == [b"x"] * 10
            assert not names.table.live()["broker-a"].is_writable


async def test_without_the_address_of_the_master_it_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="haMasterProtocol=rocketmq: set haMasterAddress, too"):
        small_config(tmp_path, **SLAVE)


async def test_a_log_whose_first_files_have_expired_is_copied_from_its_first_byte(tmp_path: Path) -> None:
    log = await log_of(tmp_path / "m", b"x" * 1000, records=1500)
    async with scripted_master(log[1 << 20 :], min_offset=1 << 20) as (ha, _, address):
        async with slave(tmp_path / "s", address) as node:
            await has(node, ha)
            assert ha.reports[0] == node.store.min_offset == 1 << 20
            first, end = node.store.queues.bounds("t", 0)
            assert 0 < first < end == 1500
            assert node.store.queues.bounds("t", 3) == (9, 9)  # all messages of this queue have expired


class Bounds:
    """A master with many topics, whose messages have all expired.  It ends all connections when it is asked about the
    topics in `dies_at` for the first time.
    """

    def __init__(self, count: int) -> None:
        self.topics = [f"t{number}" for number in range(count)]
        self.dies_at: set[str] = set()
        self.refused: dict[str, int] = {}
        self.asked: list[str] = []
        self.peer: RemotingPeer | None = None

    def answer(self, request: Header, _body: bytes) -> bytes | None:
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            table: dict[str, Any] = {name: {} for name in self.topics}
            return answer_to(request, body=json.dumps({"topicConfigTable": table}).encode())
        assert request.code == RequestCode.GET_TOPIC_STATS_INFO
        topic = request.fields["topic"]
        self.asked.append(topic)
        if topic in self.dies_at:
            self.dies_at.remove(topic)
            assert self.peer is not None
            self.peer.drop()
            return None
        if topic in self.refused:
            return answer_to(request, self.refused[topic], "refused")
        queue = json.dumps({"brokerName": "a", "queueId": 1, "topic": topic})
        return answer_to(request, body=f'{{"offsetTable":{{{queue}:{{"maxOffset":9,"minOffset":9}}}}}}'.encode())


async def floors_of(bounds: Bounds, known: dict[str, list[Floor]]) -> list[Floor]:
    assert bounds.peer is not None
    master = await open_master(bounds.peer.address, None)
    try:
        return await master.floors(known)
    finally:
        master.close()


async def test_the_floors_that_a_round_has_found_before_it_failed_are_not_asked_again() -> None:
    bounds, known = Bounds(3000), dict[str, list[Floor]]()
    bounds.dies_at = {"t2000"}
    with RemotingPeer(bounds.answer) as bounds.peer:
        with pytest.raises(RocketMQLost, match="does not answer request GET_TOPIC_STATS_INFO"):
            await floors_of(bounds, known)
        first = {*known}
        assert 1000 < len(first) < 3000
        bounds.asked.clear()
        assert await floors_of(bounds, known) == [(name, 1, 9) for name in bounds.topics]
        assert {*bounds.asked} == {*bounds.topics} - first


async def test_only_a_topic_that_the_master_does_not_know_has_no_floor() -> None:
    bounds, known = Bounds(100), dict[str, list[Floor]]()
    bounds.refused = {"t7": ResponseCode.TOPIC_NOT_EXIST, "t50": ResponseCode.SYSTEM_BUSY}
    with RemotingPeer(bounds.answer) as bounds.peer:
        with pytest.raises(RocketMQLost, match="for topic t50 with code 2"):
            await floors_of(bounds, known)
        del bounds.refused["t50"]
        assert await floors_of(bounds, known) == [(name, 1, 9) for name in bounds.topics if name != "t7"]


async def test_a_slave_begins_no_log_before_it_knows_where_each_queue_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = await log_of(tmp_path / "m", b"x" * 1000, records=1500)
    async with scripted_master(log[1 << 20 :], min_offset=1 << 20) as (ha, state, address):
        state.refused[RequestCode.GET_TOPIC_STATS_INFO] = ResponseCode.SYSTEM_BUSY
        async with slave(tmp_path / "s", address) as node:
            await until(lambda: "refuses request GET_TOPIC_STATS_INFO" in caplog.text, "the refusal is logged")
            assert ha.connections == 0 and node.store.min_offset == node.store.end_offset == 0
            state.refused.clear()
            await has(node, ha)
            assert node.store.queues.bounds("t", 3) == (9, 9)


async def test_delay_offsets_that_nobody_has_answered_are_not_taken_for_none(tmp_path: Path) -> None:
    async with scripted_master(b"") as (_, state, _unused):

        def answer(request: Header, body: bytes) -> bytes | None:
            if request.code == RequestCode.GET_ALL_DELAY_OFFSET:
                peer.drop()
                return None
            return state.answer(request, body)

        with RemotingPeer(answer) as peer:
            master = await open_master(peer.address, None)
            with pytest.raises(RocketMQLost, match="GET_ALL_DELAY_OFFSET"):
                await master.metadata()
            master.close()


async def test_a_slave_with_keys_signs_each_request_to_its_master(tmp_path: Path) -> None:
    log = await log_of(tmp_path / "m", b"x" * 1000, records=1500)
    # Because the first file of the log has expired, the slave also asks for the queues of the topic.
    async with scripted_master(log[1 << 20 :], min_offset=1 << 20) as (ha, state, address):
        keys = KEYS["inner_client_authentication_credentials"]
        async with slave(tmp_path / "s", address, inner_client_authentication_credentials=keys) as node:
            await has(node, ha)
            expected = {*ASKED, RequestCode.GET_TOPIC_STATS_INFO}
            await until(lambda: expected <= {one.code for one in state.requests}, "each request has come")
    for one in state.requests:
        assert one.fields[acl.ACCESS_KEY] == INNER.access_key
        assert one.fields[acl.SIGNATURE] == acl.signature(INNER.secret_key, one.fields)


async def test_a_master_that_dies_within_a_frame_is_followed_again(tmp_path: Path) -> None:
    log = await log_of(tmp_path / "m", b"x" * 100, records=50)
    async with scripted_master(log) as (ha, _, address):
        ha.raw = HEAD.pack(1, 5000) + log[1:3000]
        async with slave(tmp_path / "s", address) as node:
            await until(lambda: ha.connections > 2, "it has tried again")
            assert node.store.end_offset == 0
            ha.raw = None
            await has(node, ha)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (HEAD.pack(77, 4) + b"abcd", "log bytes begin at 77 instead of 1"),
        (HEAD.pack(1, 1 << 30), "1073741824 bytes from log offset 1"),
        (HEAD.pack(1, 40) + b"\xff" * 40, "log bytes from 0"),
    ],
)
async def test_bytes_that_do_not_fit_are_refused_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, raw: bytes, said: str
) -> None:
    log = await log_of(tmp_path / "m", b"x")
    async with scripted_master(log) as (ha, _, address):
        ha.raw = raw
        async with slave(tmp_path / "s", address) as node:
            await until(lambda: said in caplog.text, "the refusal is logged")
            ha.raw = None
            await has(node, ha)


async def test_another_log_at_the_same_address_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = await log_of(tmp_path / "m", b"mine", records=20)
    other = await log_of(tmp_path / "o", b"else", records=40)
    async with scripted_master(mine) as (ha, _, address):
        async with slave(tmp_path / "s", address) as node:
            await has(node, ha)
        ha.log, reported = bytearray(other), len(ha.reports)
        async with slave(tmp_path / "s", address) as node:
            await until(lambda: "the master has another log" in caplog.text, "the refusal is logged")
            assert whole(node) == mine and not node.replication.slave.is_following()
            ha.log = bytearray(mine[:-100])
            await until(lambda: "has lost messages" in caplog.text, "the shorter log is refused")
            assert whole(node) == mine
            assert set(ha.reports[reported:]) == {1}  # nothing of the other log was acknowledged
            ha.log = bytearray(mine)
            await until(node.replication.slave.is_following, "it follows its master again")
        ha.log = bytearray(other)
        async with slave(tmp_path / "empty", address) as node:  # starts with an empty store, as the refusal advises
            await has(node, ha)


async def test_a_slave_with_another_size_of_files_gets_the_masters_and_an_empty_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = await log_of(tmp_path / "m", b"x", records=10)
    async with scripted_master(log) as (ha, _, address):
        async with slave(tmp_path / "s", address, mapped_file_size_commit_log=1 << 16) as node:
            await until(lambda: "set the same here" in caplog.text, "the refusal is logged")
            assert node.store.end_offset == 0 and ha.connections == 0
        async with slave(tmp_path / "empty", address, mapped_file_size_commit_log=1 << 20) as node:
            await has(node, ha)


async def test_a_cut_of_the_masters_log_ends_the_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = await log_of(tmp_path / "m", b"x", records=10)
    async with scripted_master(log) as (ha, state, address), slave(tmp_path / "s", address) as node:
        await has(node, ha)
        state.bounds = 0, 10
        await until(lambda: "has lost messages" in caplog.text, "the cut is logged")
        assert whole(node) == log


async def test_a_silent_master_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = await log_of(tmp_path / "m", b"x")
    async with scripted_master(log) as (ha, _, address):
        ha.silent = True
        async with slave(tmp_path / "s", address, ha_housekeeping_interval=100) as node:
            await until(lambda: "nothing heard for 0.1 s" in caplog.text, "the silence is logged")
            ha.silent = False
            await has(node, ha)


async def test_a_full_disk_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await log_of(tmp_path / "m", b"x" * 1000, records=200)
    longer = await log_of(tmp_path / "m", b"y" * 1000, records=200)  # the same log goes on
    async with scripted_master(log) as (ha, _, address):
        ha.frame_bytes = 1000
        async with slave(tmp_path / "s", address) as node:
            await has(node, ha)
            with monkeypatch.context() as patch:

                def full(*_: object) -> int:
                    raise DiskFull("no space left on the test's disk")

                patch.setattr(node.store, "append_replicated", full)
                ha.append(longer[len(log) :])
                await until(lambda: "no space left" in caplog.text, "the full disk is logged")
                assert max(ha.reports) == len(log)
            await has(node, ha)


RUBBISH = [b"", b"no json", b"[]", b"\xff", *(METADATA % ((table,) * 4) for table in (b"5", b'{"t@g":7}'))]


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_BROKER_RUNTIME_INFO,
    ],
)
async def test_rubbish_as_metadata_does_not_stop_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: RequestCode
) -> None:
    log = await log_of(tmp_path / "m", b"x", records=10)
    longer = await log_of(tmp_path / "m", b"y", records=10)
    async with scripted_master(log) as (ha, state, address), slave(tmp_path / "s", address) as node:
        await has(node, ha)
        for offset, body in enumerate(RUBBISH, 2):
            caplog.clear()
            state.instead[code] = body
            await until(lambda: "metadata of master" in caplog.text, f"{body!r} is logged")
            state.instead.clear()
            state.offsets = f'{{"t@readers":{{0:{offset}}}}}'
            await has_offset(node, offset)
        assert ha.connections == 1
        ha.append(longer[len(log) :])
        await has(node, ha)


async def test_a_promotion_must_be_forced_and_says_what_it_means(tmp_path: Path) -> None:
    log = await log_of(tmp_path / "m", b"x", records=10)
    async with scripted_master(log) as (ha, _, address):
        async with slave(tmp_path / "s", address) as node:
            await has(node, ha)
        async with running(tmp_path / "s", **SLAVE, ha_master_address="127.0.0.1:1") as node:
            with pytest.raises(InvalidParameter, match=r"ends that for good.*never gets here.*\(--force\)"):
                await node.leadership.promote("broker-a", 0, None, force=False)
            assert node.broker.is_slave and whole(node) == log
            await node.leadership.promote("broker-a", 0, None, force=True)
            await put(node, "t", b"after")
            assert node.store.queues.bounds("t", 0)[1] == 11
    async with running(tmp_path / "s", **SLAVE, ha_master_address="127.0.0.1:1", slave_wait_time_ms=0) as node:
        assert not node.broker.is_slave and node.store.queues.bounds("t", 0)[1] == 11


def test_reports_are_sent_often_enough() -> None:
    assert rocketmq_slave.REPORT_EVERY_S < 20
