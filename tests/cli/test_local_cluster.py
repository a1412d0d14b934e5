"""Local clusters: the properties of a pair, and how its processes end."""

import socket
import sys
from contextlib import ExitStack

import pytest

from rocketsim_cli import servers
from rocketsim_cli.broker_actions import actions_of
from rocketsim_cli.demo.command import broker_files
from rocketsim_cli.local_cluster import (
    LocalCluster,
    ServerProcess,
    free_port,
    pair_properties,
    remoting_port,
    starting_alone,
)
from rocketsim_cli.trouble import Trouble
from rocketsim_client import Admin
from rocketsim_client.errors import InvalidParameter, RocketSimError
from testbed.real_rocketmq import free_port as free_vip_pair


def test_a_pair_shares_its_name_and_differs_in_id_and_role():
    master, slave = pair_properties(1, sync=True)
    assert master["brokerName"] == slave["brokerName"] == "broker-b"
    assert (master["brokerId"], master["brokerRole"]) == ("0", "SYNC_MASTER")
    assert (slave["brokerId"], slave["brokerRole"]) == ("1", "SLAVE")


def test_ports_for_remoting_are_opened_where_they_are_asked_for(tmp_path):
    assert all("remotingPort" not in one for one in pair_properties(0, sync=True))
    pair = pair_properties(0, sync=True, remoting_ports=(10991, 0))
    assert [(one["remotingPort"], one["remotingVipChannel"]) for one in pair] == [("10991", "true"), ("0", "true")]
    assert "remotingPort" not in LocalCluster(tmp_path, []).namesrv.keys
    assert LocalCluster(tmp_path, [], remoting_port=9876).namesrv.keys["remotingPort"] == "9876"


def test_ports_are_the_wanted_ones_and_others_where_another_process_was_faster(tmp_path):
    assert [one["listenPort"] for one in pair_properties(0, sync=True, ports=(10911, 10912))] == ["10911", "10912"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with LocalCluster(tmp_path, [], port=taken) as cluster:
            cluster.start()
            assert not cluster.name_server.endswith(f":{taken}")
            cluster.namesrv.stop()
            assert cluster.namesrv.start().address == cluster.name_server  # it keeps its port


def test_a_server_whose_port_was_taken_meanwhile_is_started_again_on_another_one(tmp_path):
    with LocalCluster(tmp_path, []) as cluster, socket.socket() as other:
        cluster.start()
        host, _, port = cluster.name_server.rpartition(":")
        cluster.kill(cluster.namesrv)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()
        assert cluster.start_again(cluster.namesrv)
        assert cluster.name_server != f"{host}:{port}"


def test_a_remoting_port_needs_the_port_of_its_vip_channel_too():
    wanted = free_vip_pair()
    assert remoting_port(wanted) == wanted
    for taken in (wanted, wanted - 2):
        with socket.socket() as other:
            other.bind(("127.0.0.1", taken))
            other.listen()
            assert remoting_port(wanted) == 0


def test_two_clusters_choose_their_ports_one_after_the_other():
    waits = 0

    def sleep(seconds: float) -> None:
        nonlocal waits
        waits += 1
        first.close()

    with ExitStack() as first:
        first.enter_context(starting_alone())
        with starting_alone(sleep):
            assert waits == 1


def test_a_broker_is_killed_and_started_by_the_actions_of_its_console(tmp_path):
    with LocalCluster(tmp_path, pair_properties(0, sync=False)[:1]) as cluster:
        cluster.start()
        (broker,) = cluster.brokers
        actions = {action.name: action for action in actions_of(cluster)}
        with Admin(cluster.name_server) as admin:
            for _ in range(2):
                assert actions["kill-broker"].run(admin, {"broker": broker.address}) == "broker-a is killed."
                assert not broker.is_running()
                said = actions["kill-broker"].run(admin, {"broker": broker.address})
                assert said == "broker-a was not running."
                assert actions["start-broker"].run(admin, {"broker": broker.address}) == "broker-a is back."
                assert broker.is_running()
            said = actions["start-broker"].run(admin, {"broker": broker.address})
            assert said == "broker-a was running already."
            with pytest.raises(
                InvalidParameter, match=r"'127\.0\.0\.1:1' is not a broker that this process has started"
            ):
                actions["kill-broker"].run(admin, {"broker": "127.0.0.1:1"})
            address = broker.address
            cluster.stop()
            with pytest.raises(RocketSimError, match="the cluster is being stopped"):
                actions["start-broker"].run(admin, {"broker": address})


def test_the_demo_runs_beside_other_brokers():
    assert {broker["listenPort"] for broker in broker_files()} == {"0"}


def test_a_server_that_ends_at_its_start_is_reported_with_its_last_words(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'listenPort: no such port'\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    server = ServerProcess("broker-a", "broker", {"brokerName": "broker-a"}, tmp_path)
    with pytest.raises(Trouble, match=r"broker-a ended while it started: listenPort: no such port"):
        server.start()
    assert server.exit_status() == 3


def test_servers_are_gone_when_the_block_ends_with_an_error(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(KeyboardInterrupt), LocalCluster(tmp_path, []) as cluster:
        cluster.namesrv.launch()
        assert cluster.namesrv.is_running()
        raise KeyboardInterrupt
    assert not cluster.namesrv.is_running()


def test_the_port_that_a_user_chose_for_grpc_is_not_given_to_remoting(monkeypatch):
    usual = free_port(0)
    monkeypatch.setattr(servers, "NAMESRV_PORT", usual)
    assert servers.name_server_remoting_port(usual) != usual
