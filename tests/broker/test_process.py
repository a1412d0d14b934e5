"""A broker process: start, address, stop."""

import asyncio
import importlib.util
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from rocketsim_proto.records import kernels

from broker_service import __main__ as process
from broker_service.config.store_settings import physical_memory
from broker_service.errors import ConfigError, StoreCorrupt, StoreLocked
from broker_service.modes import BrokerRole
from broker_service.node.app import broker, ip_of, run_broker
from broker_service.node.node import BrokerNode
from broker_service.runtime.server import check_protobuf
from broker_service.store.json_file import JsonFile
from testbed.polling import until
from testbed.processes import ROOT
from tests.support.brokers import put, running, small_config


def config_file(folder: Path, **keys: object) -> Path:
    path = folder / "broker.properties"
    values = {
        "brokerName": "broker-a",
        "listenPort": 0,
        "storePathRootDir": folder / "store",
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
    } | keys
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


async def test_its_address_is_in_a_file_and_it_stops_cleanly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = small_config(tmp_path)
    shutdown = asyncio.Event()
    with caplog.at_level(logging.INFO):
        running_broker = asyncio.create_task(run_broker(config, shutdown))
        await until((tmp_path / "rocketsim/address").exists, "the address")
        address = (tmp_path / "rocketsim/address").read_text().strip()
        assert re.fullmatch(r"127\.0\.0\.1:[0-9]+", address)
        assert f"listening on {address}" in caplog.text
        assert (tmp_path / "abort").exists()
        shutdown.set()
        await running_broker
    assert not (tmp_path / "abort").exists()


@pytest.mark.usefixtures("record_kernels")
async def test_its_log_names_the_record_codec_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    codec = "python" if kernels.compiled is None else "compiled"
    with caplog.at_level(logging.INFO):
        async with running(tmp_path) as node:
            assert f"broker broker-a id 0 listening on {node.address}, recordKernels={codec}" in caplog.text


async def test_a_part_that_fails_takes_the_process_down_visibly(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with running(tmp_path) as node:
            node.tasks.own("broken", broken())
            await node.tasks.run_until(asyncio.Event())
    assert not (tmp_path / "abort").exists()  # the failing broker still closed its store


async def broken() -> None:
    raise ZeroDivisionError


async def test_a_second_broker_on_the_directory_is_kept_out(tmp_path: Path) -> None:
    async with running(tmp_path):
        with pytest.raises(StoreLocked, match="storePathRootDir"):
            BrokerNode.open(small_config(tmp_path))


async def test_a_port_that_is_taken_is_named_and_the_store_let_go(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as node:
        port = int(node.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"listenPort={port}"):
            async with broker(small_config(tmp_path / "b", listen_port=port)):
                pass
    async with running(tmp_path / "b"):
        pass


async def test_a_damaged_role_file_is_named(tmp_path: Path) -> None:
    JsonFile(tmp_path / "rocketsim/role.json").save({"brokerRole": "KING"})
    with pytest.raises(StoreCorrupt, match=r"role\.json"):
        BrokerNode.open(small_config(tmp_path))
    JsonFile(tmp_path / "rocketsim/role.json").remove()
    async with running(tmp_path):
        pass


async def test_the_role_of_a_promotion_overrides_the_file_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    JsonFile(tmp_path / "rocketsim/role.json").save({"brokerRole": "SYNC_MASTER", "brokerId": 0, "epoch": 101})
    async with running(tmp_path, broker_role=BrokerRole.SLAVE, broker_id=3) as node:
        assert (node.broker.config.broker_role, node.broker.broker_id) == (BrokerRole.SYNC_MASTER, 0)
    assert "since a promotion" in caplog.text


async def test_metrics_are_served_where_the_configuration_says(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a", b"b")
        node.metrics.take_snapshot()
        port = node.metrics.serve("127.0.0.1", 0)
        page = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
        values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        assert values["rocketsim_messages_in_total"] == "2.0"
        assert values["rocketsim_writable"] == "1.0"
        assert float(values["rocketsim_log_end_offset"]) == node.store.end_offset


def test_its_addresses_ip_is_what_records_keep() -> None:
    assert ip_of("127.0.0.1") == "127.0.0.1"
    assert ip_of("::1") == "::1"
    assert ip_of("localhost") in ("127.0.0.1", "::1")
    with pytest.raises(ConfigError, match="brokerIP1"):
        ip_of("no such host")


def test_memory_is_at_most_the_machines() -> None:
    assert 0 < physical_memory() < 1 << 50


def test_a_slow_protobuf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_protobuf()
    monkeypatch.setattr("broker_service.runtime.server.api_implementation.Type", lambda: "python")
    with pytest.raises(ConfigError, match="upb"):
        check_protobuf()


def test_a_configuration_error_is_one_line_and_an_exit_status(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert process.main(["broker", "-c", str(tmp_path / "none.properties")]) == 1
    assert "no such file" in caplog.text


@pytest.mark.cluster
def test_sigterm_ends_it_cleanly_and_a_second_one_at_once(tmp_path: Path) -> None:
    # A process that waits for a stuck name server handles the first SIGTERM late, so the test calls the handler itself.
    path = config_file(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-m", "broker_service", "broker", "-c", str(path)], stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    try:
        for line in child.stderr:
            if "takes writes" in line:
                break
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
        assert not (tmp_path / "store/abort").exists()
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


async def test_the_second_signal_exits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr("broker_service.__main__.os._exit", exits.append)

    async def stubborn(config: None, shutdown: asyncio.Event) -> None:
        signal.raise_signal(signal.SIGTERM)
        await shutdown.wait()
        assert exits == []
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: exits, "the exit")

    await process.until_signal(None, stubborn)
    assert exits == [130]


def test_a_process_allows_itself_many_files() -> None:
    code = (
        "import resource; from broker_service.__main__ import allow_many_files as allow\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); allow()\n"
        "soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]; assert soft == 65536 or soft == hard > 256, soft"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_start_imports_nothing_that_a_broker_needs_later_or_never() -> None:
    later = ["prometheus_client", "pyarrow.compute", "rocketsim_proto.records.sql_filter"]
    never = ["broker_service.namesrv", "psutil", "pyarrow.dataset", "pyspark", "rich", "rocketsim_client", "typer"]
    code = f"import sys, broker_service.__main__, broker_service.node.app; print(sys.modules.keys() & {later + never})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_a_server_process_works_with_arrow_and_does_not_import_pandas() -> None:
    code = (
        "import sys; from broker_service.__main__ import main; main(['broker', '-c', '/nowhere'])\n"
        "import pyarrow as pa\n"
        "assert pa.array(['a']).cast(pa.binary()).to_pylist() == [b'a']\n"
        "assert 'pandas' not in sys.modules"
    )
    assert importlib.util.find_spec("pandas") is not None, "nothing is shown where it is not installed"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_log_record_is_a_line_whatever_is_in_it():
    formatter = process.LineFormatter("%(levelname)s %(message)s")
    record = logging.LogRecord("x", logging.INFO, "", 0, "of %s", ("a\nERROR forged\x1b[2J",), None)
    assert formatter.format(record) == r"INFO of a\nERROR forged\x1b[2J"
    try:
        raise ValueError("b\nERROR forged\x1b[2J")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    first, *others = formatter.format(record).split("\n")
    assert first == "ERROR failed" and "  Traceback (most recent call last):" in others
    assert all(line.startswith("  ") for line in others) and others[-1] == r"  ERROR forged\x1b[2J"


def test_each_error_of_a_configuration_is_a_line_of_the_log(tmp_path):
    file = tmp_path / "broker.properties"
    file.write_text("listenPort=many\nbrokerId=x\nbrokerName=a\x1bb\n")
    run = subprocess.run(
        [sys.executable, "-m", "broker_service", "broker", "-c", str(file)], capture_output=True, text=True, cwd=ROOT
    )
    lines = [line for line in run.stderr.splitlines() if "CRITICAL" in line]
    assert run.returncode == 1 and len(lines) >= 2, run.stderr
    assert "listenPort=many" in lines[0] and "brokerId=x" in lines[1]
