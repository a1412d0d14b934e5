"""A pair is set up, secured and promoted with the files and commands of the documents."""

import io
import re
import shlex
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from broker_service.config.loading import load_broker_config
from testbed.polling import wait_until
from testbed.processes import ROOT, Processes
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.cluster


def blocks(document: str, title: str, language: str = "") -> list[str]:
    """Returns the code blocks of a language below a heading, up to the next heading."""
    text = (ROOT / "docs" / document).read_text()
    (section,) = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    found = [dedent(one) for one in re.findall(rf"^ *```{language}\n(.*?)^ *```$", section, re.M | re.S)]
    assert found, (document, title)
    return found


def keys_of(text: str) -> dict[str, object]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.M))


def unless_refused(line: CommandLine, text: str, *refusals: str) -> str:
    """Returns what the commands print, or "" if one of them is refused with one of these texts."""
    try:
        return line.run(text)
    except AssertionError as error:
        if not any(refusal in str(error) for refusal in refusals):
            raise
        return ""


def test_the_follower_of_the_document_has_a_valid_configuration(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text(*blocks("rocketmq.md", "Following a RocketMQ master", "properties"))
    assert load_broker_config(file, {}).ha_master_address == "rocketmq-host:10911"


def test_a_pair_is_set_up_secured_and_promoted_by_the_documents(
    processes: Processes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (openssl,) = blocks("secure.md", "Make certificates")
    made = subprocess.run(
        ["sh", "-e"], input=openssl.replace("10.0.0.1", "127.0.0.1"), cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    (tls,) = blocks("secure.md", "Switch TLS on")
    access, commands = blocks("secure.md", "In a new cluster")
    everywhere = keys_of(tls.replace("/etc/rocketsim", str(tmp_path)) + access.partition("# broker.properties")[0])
    of_brokers = keys_of(access) | everywhere
    namesrv, master, slave = map(keys_of, blocks("run.md", "Set up a pair", "properties"))

    here = {"listenPort": 0, "bindAddress": "127.0.0.1"}
    name_server = processes.namesrv(**(namesrv | everywhere | here)).start()
    here |= {"namesrvAddr": name_server.address, "metricsPort": 0, "registerNameServerPeriod": 1000}
    started = [
        processes.broker(
            str(keys["brokerName"]), number, **(keys | of_brokers | here | {"storePathRootDir": tmp_path / str(number)})
        ).launch()
        for number, keys in enumerate((master, slave))
    ]
    first, second = (broker.wait_until_ready() for broker in started)

    for name in ("NAMESRV_ADDR", "ROCKETSIM_ACCESS_KEY", "ROCKETSIM_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCKETSIM_TLS", "true")
    monkeypatch.setenv("ROCKETSIM_TLS_CA", str(tmp_path / "ca.pem"))
    monkeypatch.setattr("sys.stdin", io.StringIO("a-password\n"))
    line = CommandLine(
        capsys,
        monkeypatch,
        **{
            "10.0.0.1:9876": name_server.address,
            "127.0.0.1:9876": name_server.address,
            "ROCKETSIM_SECRET_KEY=...": "ROCKETSIM_SECRET_KEY=choose-one",
            "NAME_SERVER": name_server.address,
            "SLAVE_ADDRESS": second.address,
            "SLAVE": second.address,
        },
    )
    line.run(commands.partition("\n")[0])  # the keys of the first user
    _, look = blocks("run.md", "Set up a pair", "sh")
    status = "rocketsim admin haStatus --json"
    # The first user is made after the start, and then reaches the slave.
    wait_until(lambda: '"inSync":true' in unless_refused(line, status, "User:", "no broker"), "the slave is in sync")
    said = line.run(look)
    assert first.address in said and second.address in said and "SEND_OK" in said
    said = line.run(commands)
    assert "User:orders" in said and "disable" in said
    for block in blocks("clients.md", "What is there"):
        line.run(block)

    first.kill()
    (promote,) = blocks("when-it-breaks.md", "A master is gone for good", "sh")
    (again,) = blocks("replication.md", "Promoting a slave")
    assert shlex.split(promote)[:3] == shlex.split(again)[:3]
    wait_until(lambda: unless_refused(line, promote, "stop it first"), "the master's death is noticed")
    wait_until(lambda: "SYNC_MASTER writable" in line.run("rocketsim admin haStatus"), "the slave is the master")
