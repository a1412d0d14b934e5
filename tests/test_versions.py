"""A store, master, slave, name server, broker or client of a newer version is refused with a reason."""

from pathlib import Path

import pytest
from rocketsim_proto import namesrv_pb2
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub
from rocketsim_proto.versions import REPLICATION, WIRE

from broker_service.errors import StoreCorrupt, StoreTooNew
from broker_service.replication.follower import Follower
from broker_service.replication.refusals import Mismatch
from broker_service.replication.transfer import Transfer, TransferSettings
from broker_service.store.format_version import VERSION, check_version
from broker_service.store.json_file import JsonFile
from broker_service.store.offline.survey import check_is_store
from rocketsim_client import Admin
from rocketsim_client.errors import TooNew
from testbed.polling import until
from tests.support.brokers import name_server, running, stub_of
from tests.support.fake_broker import FakeCluster
from tests.support.memory_log import MemoryLog
from tests.support.pair import Node
from tests.support.stores import open_store, put


def format_file(root: Path) -> JsonFile:
    return JsonFile(root / "rocketsim" / "format.json")


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_store_is_of_this_version_once_it_was_open_and_one_without_a_version_is_older(tmp_path):
    open_store(tmp_path).close()
    assert format_file(tmp_path).load() == {"version": VERSION}
    format_file(tmp_path).remove()  # 9157579 and RocketMQ leave a store without this file
    open_store(tmp_path).close()
    assert format_file(tmp_path).load() == {"version": VERSION}


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path):
    store = open_store(tmp_path)
    put(store, "T", 0, [b"x"])
    store.close()
    format_file(tmp_path).save({"version": VERSION + 1, "more": []})
    before = contents(tmp_path)
    for look in (open_store, check_is_store):
        with pytest.raises(StoreTooNew, match=f"has format {VERSION + 1}, .* knows formats up to {VERSION}"):
            look(tmp_path)
    assert contents(tmp_path) == before
    format_file(tmp_path).save({"version": VERSION})
    open_store(tmp_path).close()


@pytest.mark.parametrize("content", [{}, {"version": "2"}, {"version": 0}])
def test_a_version_that_is_none_is_damage(tmp_path, content):
    (tmp_path / "rocketsim").mkdir()
    format_file(tmp_path).save(content)
    with pytest.raises(StoreCorrupt, match="names no version"):
        check_version(tmp_path)


def greeting(tmp_path: Path) -> tuple[Transfer, Follower]:
    master, slave = Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)
    log, epochs, identity, acks = master.log, master.epochs, master.identity, master.acks
    transfer = Transfer(log, epochs, identity, acks, TransferSettings(), sync_master=True, sync_flush=False, now=0.0)
    return transfer, Follower(slave.log, slave.epochs, slave.identity, tmp_path / "diverged")


@pytest.mark.parametrize(("spoken", "welcome"), [(0, True), (REPLICATION, True), (REPLICATION + 1, False)])
def test_master_and_slave_refuse_a_newer_version_of_replication(tmp_path, spoken, welcome):
    transfer, follower = greeting(tmp_path)
    handshake = follower.handshake()
    assert handshake.version == REPLICATION
    handshake.version = spoken
    if not welcome:
        with pytest.raises(Mismatch, match=f"slave-1 speaks version {spoken} of replication.* upgrade this side first"):
            transfer.greet(handshake, takes_writes=True)
        handshake.version = REPLICATION
    transfer.greet(handshake, takes_writes=True)
    frame = transfer.next_message(0.0)
    assert frame is not None
    reply = frame.message.handshake
    assert reply.version == REPLICATION
    reply.version = spoken
    if welcome:
        follower.welcome(reply)
    else:
        with pytest.raises(Mismatch, match=f"the master speaks version {spoken} of replication"):
            follower.welcome(reply)


async def test_a_name_server_refuses_a_broker_with_a_newer_wire_and_says_its_own(tmp_path):
    async with name_server() as server, stub_of(server, NameServerStub) as names:
        stream = names.RegisterBroker()
        told = namesrv_pb2.BrokerRegistration(broker_name="broker-a", address="h:1", epoch=1, wire_version=WIRE + 1)
        await stream.write(told)
        answer = await stream.read()
        assert f"broker-a at h:1 speaks version {WIRE + 1} of the wire" in answer.refused
        assert (answer.wire_version, list(answer.members)) == (WIRE, [])
        told.wire_version = WIRE
        await stream.write(told)
        assert (await stream.read()).refused == ""
        (data,) = (await names.ClusterList(namesrv_pb2.ClusterListRequest())).brokers
        assert data.wire_version == WIRE
        stream.cancel()


async def test_a_broker_does_not_take_the_word_of_a_name_server_with_a_newer_wire(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("broker_service.namesrv.servicer.WIRE", WIRE + 1)
    async with name_server() as server:
        async with running(tmp_path, writable=False, namesrv_addr=server.address) as node:
            lost = f"name server {server.address} is lost: it speaks version {WIRE + 1} of the wire"
            await until(lambda: lost in caplog.text, "the broker says why")
            assert not node.broker.takes_clients_writes


@pytest.mark.parametrize("which", ["name server", "broker"])
def test_a_client_refuses_name_servers_and_brokers_with_a_newer_wire(which):
    with FakeCluster("T") as cluster, Admin(cluster.address) as admin:
        cluster.start("broker-a")
        assert admin.topic_route("T").brokers.keys() == {"broker-a"}
        cluster.wire_versions[which] = WIRE + 1
        for ask in (lambda: admin.topic_route("T"), admin.cluster_list):
            with pytest.raises(TooNew, match=f"{which} .* speaks version {WIRE + 1} of the wire"):
                ask()
