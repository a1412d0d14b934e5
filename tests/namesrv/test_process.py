"""The name server as a process, and `testbed.processes`, which starts it."""

import socket
import subprocess
import sys

import grpc
import pytest
from rocketsim_proto import namesrv_pb2 as pb
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub

from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import ROOT, Processes


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


def brokers(server):
    with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        return NameServerStub(channel).ClusterList(pb.ClusterListRequest(), timeout=60).brokers


def test_sigterm_ends_it_cleanly_and_its_log_says_what_it_did(processes):
    server = processes.start_namesrv()
    assert list(brokers(server)) == []
    assert server.stop() == 0
    assert f"listening on {server.address}" in server.log()
    assert "stopped" in server.log()


def test_killed_and_started_again_it_answers_at_the_same_address(processes):
    server = processes.start_namesrv()
    address = server.address
    server.kill()
    with pytest.raises(grpc.RpcError):
        brokers(server)
    server.start()
    assert server.address == address
    assert list(brokers(server)) == []


def test_a_second_one_on_its_port_is_refused_and_says_why(processes):
    first = processes.start_namesrv()
    second = processes.namesrv("second", listenPort=first.port).launch()
    assert second.wait() != 0
    assert f"listenPort={first.port}: cannot listen on" in second.log()
    assert "Traceback" not in second.log()


def test_a_name_server_listens_where_its_configuration_says_and_writes_its_address(tmp_path, processes):
    server = processes.start_namesrv(bindAddress="127.0.0.2", addressFile=tmp_path / "where")
    assert server.address == (tmp_path / "where").read_text().strip()
    assert server.address.startswith("127.0.0.2:")
    assert list(brokers(server)) == []


def test_a_process_that_is_started_again_gets_its_port_when_that_is_free(processes):
    """`wait_until_ready` starts the process again while another process has its port, so that no test fails because of
    that.
    """
    server = processes.start_namesrv()
    port = server.port
    assert server.stop() == 0
    with socket.create_server(("127.0.0.1", port)):
        assert server.launch().wait() != 0
    assert server.wait_until_ready().port == port


def test_a_bad_configuration_ends_it_with_the_file_and_line(processes):
    server = processes.namesrv(listenPort="many").launch()
    assert server.wait() != 0
    assert f"{server.config_path}:2: listenPort=many: expected a whole number" in server.log()
    assert "Traceback" not in server.log()


def test_a_name_server_imports_nothing_that_only_a_broker_needs():
    heavy = ["numpy", "pyarrow", "prometheus_client", "broker_service.node.node", "broker_service.store.message_store"]
    modules = "sys, broker_service.__main__, broker_service.namesrv.server"
    program = f"import {modules}; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_name_server_collects_garbage_when_it_has_imported_its_parts():
    code = "import gc; from broker_service.__main__ import main; main(['namesrv', '-c', '/nowhere']); "
    subprocess.run(
        [sys.executable, "-c", code + "assert gc.isenabled() and gc.get_freeze_count()"], cwd=ROOT, check=True
    )


def test_what_a_test_run_starts_does_not_outlive_it(tmp_path):
    """Servers end with their test run, even if that is killed and cannot clean up."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from testbed.processes import Processes\n"
        "server = Processes(Path(sys.argv[1])).start_namesrv()\n"
        "print(server.address, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=PROCESS_PATIENCE_S
    )
    host, _, port = run.stdout.strip().rpartition(":")
    assert host == "127.0.0.1", run.stderr

    def is_closed():
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    wait_until(is_closed, "the orphaned name server to end")
