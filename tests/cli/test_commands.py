"""The commands as processes: their output, their exit status, and one line in place of a traceback."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import typer
from rocketmq_v2 import definition_pb2, service_pb2
from rocketmq_v2.service_pb2_grpc import MessagingServiceStub
from rocketsim_proto.records import kernels
from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import Header

from rocketsim_cli.local_cluster import free_port
from rocketsim_cli.main import app, main
from rocketsim_testing.local_pair import PORTS
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import Processes, pids_by_argument
from tests.support.golden import unpack_golden
from tests.support.remoting_peer import Recording, RemotingPeer, answer_to

pytestmark = pytest.mark.cluster


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def rocketsim(*arguments: str, stdin: str = "") -> Done:
    """Runs the command in this process: a new process takes most of a second."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        patch.delenv("NAMESRV_ADDR", raising=False)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(*arguments: str, columns: int = 80) -> str:
    """Returns what a command prints on a terminal with that number of `columns`."""
    out = Terminal()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("NO_COLOR", "1")
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    assert not ended.value.code
    return re.sub("\x1b\\[[0-9;]*m", "", out.getvalue())


def answer(*arguments: str):
    """Returns the JSON lines that a successful command prints."""
    done = rocketsim(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return lines(done.stdout)


def trouble(*arguments: str) -> str:
    """Returns the error of a command that failed, and checks that it is the same for people and for scripts."""
    done = rocketsim(*arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    if arguments[0] not in SERVERS:
        scripted = rocketsim(*arguments, "--json")
        assert (scripted.returncode, scripted.stdout) == (done.returncode, "")
        (error,) = lines(scripted.stderr)
        assert error["kind"] == "error"
        if done.returncode != 2:  # typer draws a frame around its errors about the command line
            assert f"rocketsim: {error['message']}\n" == done.stderr
    return done.stderr.strip()


SERVERS = ("broker", "namesrv")  # servers write a log, so they have no --json


class Pair:
    def __init__(self, processes: Processes) -> None:
        self.namesrv = processes.start_namesrv()
        self.master, self.slave = processes.start_pair("broker-a", self.namesrv, brokerRole="SYNC_MASTER")
        self.n = ("-n", self.namesrv.address)

    def in_sync(self) -> bool:
        (status,) = self.admin("haStatus", "-b", self.master.address)
        return any(slave["inSync"] for slave in status["slaves"])

    def admin(self, command: str, *arguments: str):
        return answer("admin", command, *self.n, *arguments)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[Pair]:
    with Processes(tmp_path_factory.mktemp("pair")) as processes:
        pair = Pair(processes)
        wait_until(lambda: len(pair.admin("clusterList")) == 2, "both brokers are registered")
        wait_until(lambda: pair.in_sync(), "the slave is in sync")
        yield pair


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("rates", "shown"),
    [
        (b'"putTps":" ","getTransferredTps":""', (None, None)),  # in the first seconds
        (b'"putTps":"1.5 2.0 3.0","getTransferredTps":"7.5 0 0"', (1.5, 7.5)),
        (b'"putTps":"1.5 2.0 3.0","getTransferedTps":"7.5 0 0"', (1.5, 7.5)),  # the spelling of 4.9
    ],
)
def test_cluster_list_shows_the_rates_of_a_broker_of_rocketmq(
    rates: bytes, shown: tuple[float | None, float | None]
) -> None:
    recorded = Recording("5.5.0")

    def answer(request: Header, body: bytes) -> bytes | None:
        if request.code != RequestCode.GET_BROKER_RUNTIME_INFO:
            return recorded(request, body)
        return answer_to(request, body=b'{"table":{%s,"commitLogDiskRatio":"0.21"}}' % rates)

    with RemotingPeer(answer) as peer:
        recorded.address = peer.address
        done = rocketsim("admin", "clusterList", "-n", peer.address, "--json")
    row = json.loads(done.stdout)
    assert (row["brokerName"], row["inTPS"], row["outTPS"], row["space"]) == ("interop", *shown, 0.21)


def test_what_is_produced_can_be_consumed_once_a_group(pair):
    pair.admin("updateTopic", "-t", "Walk", "-r", "4", "-w", "4")
    sent = rocketsim("produce", *pair.n, "-t", "Walk", "one", "two", "--tag", "A", "--key", "k", "--json")
    assert sent.returncode == 0, sent.stderr
    assert [line["status"] for line in lines(sent.stdout)] == ["SEND_OK", "SEND_OK"]
    sent = rocketsim("produce", *pair.n, "-t", "Walk", stdin="three\nfour\n")
    assert sent.returncode == 0, sent.stderr

    consume = ("consume", *pair.n, "-t", "Walk", "-g", "walkers", "--json")
    first = lines(rocketsim(*consume).stdout)
    assert sorted(line["body"] for line in first) == ["four", "one", "three", "two"]
    assert {line["tags"] for line in first if line["body"] in ("one", "two")} == {"A"}
    assert lines(rocketsim(*consume).stdout) == [], "what was shown is committed"
    assert len(lines(rocketsim(*consume, "--from", "earliest").stdout)) == 4
    tagged = lines(rocketsim("consume", *pair.n, "-t", "Walk", "--tags", "A", "--json").stdout)
    assert sorted(line["body"] for line in tagged) == ["one", "two"], "without a group everything is there again"


def test_a_member_of_a_group_acknowledges_what_it_has_shown(pair, monkeypatch):
    monkeypatch.setattr("rocketsim_cli.consume.WAIT_S", 0.0)
    pair.admin("updateTopic", "-t", "Members", "-r", "2", "-w", "2")
    for tag in ("A", "B"):
        assert rocketsim("produce", *pair.n, "-t", "Members", *f"{tag}1 {tag}2".split(), "--tag", tag).returncode == 0
    consume = ("consume", *pair.n, "-t", "Members", "--json", "-g")
    first = lines(rocketsim(*consume, "members", "--pop", "--max-messages", "3").stdout)
    second = lines(rocketsim(*consume, "members", "--pop").stdout)
    assert (len(first), len(second)) == (3, 1)
    assert sorted(line["body"] for line in first + second) == ["A1", "A2", "B1", "B2"]
    assert {line["deliveryAttempt"] for line in first + second} == {1}
    assert lines(rocketsim(*consume, "members", "--pop").stdout) == []
    assert {row["diff"] for row in pair.admin("consumerProgress", "-g", "members")} == {0}
    clients = pair.admin("consumerConnection", "-g", "members")
    assert len(clients) == 3 and {row["way"] for row in clients} == {"pop"}

    tagged = lines(rocketsim(*consume, "tagged", "--pop", "--tags", "B").stdout)
    assert sorted(line["body"] for line in tagged) == ["B1", "B2"]
    selected = ("selected", "--sql", "TAGS = 'A'")
    assert "enablePropertyFilter" in trouble(*consume[:-2], "-g", *selected, "--pop")
    pair.admin("updateBrokerConfig", "-b", pair.master.address, "-k", "enablePropertyFilter", "-v", "true")
    assert sorted(line["body"] for line in lines(rocketsim(*consume, *selected, "--pop").stdout)) == ["A1", "A2"]
    pulled = lines(rocketsim(*consume, "pulling", "--sql", "TAGS = 'A'", "--max-messages", "1").stdout)
    pulled += lines(rocketsim(*consume, "pulling", "--sql", "TAGS = 'A'").stdout)
    assert sorted(line["body"] for line in pulled) == ["A1", "A2"], "so many were committed, and no more"


@pytest.mark.parametrize(("topic", "how"), [("Follow", []), ("FollowAsMember", ["--pop"])])
def test_follow_shows_what_arrives_and_commits_at_ctrl_c(pair, topic, how):
    pair.admin("updateTopic", "-t", topic, "-r", "1", "-w", "1")
    following = subprocess.Popen(
        [
            *(sys.executable, "-m", "rocketsim_cli.main", "consume", *pair.n),
            *("-t", topic, "-g", f"{topic}ers", "--follow", "--json", *how),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with following:
        rocketsim("produce", *pair.n, "-t", topic, "late")
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["body"] == "late"
        following.send_signal(signal.SIGINT)
        _, errors = following.communicate(timeout=PROCESS_PATIENCE_S)
        assert following.returncode == 0, errors
    (progress,) = pair.admin("consumerProgress", "-g", f"{topic}ers")
    assert (progress["brokerOffset"], progress["consumerOffset"], progress["diff"]) == (1, 1, 0)


def test_produce_keeps_its_rate(pair):
    started = time.monotonic()
    sent = rocketsim("produce", *pair.n, "-t", "Walk2", "x", "--count", "30", "--rate", "30", "--json")
    assert len(lines(sent.stdout)) == 30
    assert time.monotonic() - started > 0.9


def test_topics_are_made_changed_listed_and_deleted(pair):
    made = pair.admin("updateTopic", "-t", "Made", "-r", "3", "-w", "2", "-b", pair.master.address)
    assert [(one["readQueueNums"], one["writeQueueNums"], one["perm"]) for one in made] == [(3, 2, 6)]
    changed = pair.admin("updateTopic", "-t", "Made", "-p", "4", "-c", "DefaultCluster")
    assert [(one["readQueueNums"], one["writeQueueNums"], one["perm"]) for one in changed] == [(3, 2, 4)]
    typed = pair.admin("updateTopic", "-t", "Made", "-a", "+message.type=FIFO", "-b", pair.master.address)
    assert typed[0]["attributes"] == {"message.type": "FIFO"}
    assert "message.type=SWIFT" in trouble("admin", "updateTopic", *pair.n, "-t", "Made", "-a", "+message.type=SWIFT")
    for wrong in ("message.type=FIFO", "+message.type", "-message.type=FIFO", "+=x"):
        assert "+name=value" in trouble("admin", "updateTopic", *pair.n, "-t", "Made", "-a", wrong)
    untyped = pair.admin("updatetopic", "-t", "Made", "-a", "-message.type", "-b", pair.master.address)  # in any case
    assert untyped[0]["attributes"] == {}
    wait_until(lambda: {"topic": "Made"} in pair.admin("topicList"), "the name server knows the topic")
    queues = [{"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 2, "perm": 4}]
    wait_until(lambda: pair.admin("topicRoute", "-t", "Made")[0]["queueDatas"] == queues, "and its change")
    (route,) = pair.admin("topicRoute", "-t", "Made")
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": pair.master.address, "1": pair.slave.address}
    assert [row["queueId"] for row in pair.admin("topicStatus", "-t", "Made")] == [0, 1, 2]
    deleted = {"topic": "Made", "deletedAt": pair.master.address, "status": "COMMIT_OK"}
    assert pair.admin("deleteTopic", "-t", "Made") == [deleted]
    wait_until(lambda: {"topic": "Made"} not in pair.admin("topicList"), "the topic is gone")
    assert "Made" in trouble("admin", "topicRoute", *pair.n, "-t", "Made")


def test_groups_are_made_changed_reset_and_deleted(pair):
    pair.admin("updateTopic", "-t", "Groups", "-r", "1", "-w", "1")
    rocketsim("produce", *pair.n, "-t", "Groups", "1", "2", "3")
    (made,) = pair.admin("updateSubGroup", "-g", "settled", "-i", "1", "-w", "1", "-c", "DefaultCluster")
    assert (made["brokerId"], made["whichBrokerWhenConsumeSlowly"], made["consumeEnable"]) == (1, 1, True)
    (changed,) = pair.admin("updateSubGroup", "-g", "settled", "-s", "false", "-o", "true", "-b", pair.master.address)
    assert (changed["brokerId"], changed["consumeEnable"], changed["consumeMessageOrderly"]) == (1, False, True)
    pair.admin("updateSubGroup", "-g", "settled", "-s", "true", "-i", "0")
    policy = '{"type": "EXPONENTIAL"}'
    pair.admin("updateSubGroup", "-g", "settled", "-r", "3", "-p", policy)
    (shown,) = pair.admin("getConsumerConfig", "-g", "settled")
    assert (shown["brokerAddr"], shown["retryMaxTimes"], shown["groupRetryPolicy"]) == (pair.master.address, 3, policy)
    assert "updateSubGroup" in trouble("admin", "getConsumerConfig", *pair.n, "-g", "nobody")
    assert "LINEAR" in trouble("admin", "updateSubGroup", *pair.n, "-g", "settled", "-p", '{"type": "LINEAR"}')
    rocketsim("consume", *pair.n, "-t", "Groups", "-g", "settled")
    (reset,) = pair.admin("resetOffsetByTime", "-g", "settled", "-t", "Groups", "-s", "0")
    assert (reset["previous"], reset["offset"]) == (3, 0)
    assert [row["diff"] for row in pair.admin("consumerProgress", "-g", "settled")] == [3]
    assert {"group": "settled", "queues": 1, "diff": 3} in pair.admin("consumerProgress")
    pair.admin("resetOffsetByTime", "-g", "settled", "-t", "Groups", "-s", "now")
    assert [row["diff"] for row in pair.admin("consumerProgress", "-g", "settled")] == [0]
    pair.admin("deleteSubGroup", "-g", "settled", "-r", "true")
    assert "settled" in trouble("admin", "consumerProgress", *pair.n, "-g", "settled")


def test_brokers_tell_their_state_and_take_runtime_keys(pair):
    rows = pair.admin("clusterList")
    assert [(row["brokerName"], row["brokerId"]) for row in rows] == [("broker-a", 0), ("broker-a", 1)]
    assert [row["role"] for row in rows] == ["SYNC_MASTER", "SLAVE"]
    assert all(isinstance(row[rate], float) for row in rows for rate in ("inTPS", "outTPS", "space"))
    master, slave = pair.admin("haStatus")
    assert (master["isMaster"], slave["isMaster"]) == (True, False)
    assert [one["inSync"] for one in master["slaves"]] == [True]
    assert (master["cuts"], slave["cuts"]) == ([], [])
    kept = Path(str(pair.slave.keys["storePathRootDir"])) / "rocketsim/diverged/00000000000000000040"
    kept.parent.mkdir()
    kept.write_bytes(bytes(60))
    (slave,) = pair.admin("haStatus", "-b", pair.slave.address)
    assert [(cut["offset"], cut["size"]) for cut in slave["cuts"]] == [(40, 60)]
    assert "60 bytes from offset 40 on" in on_terminal("admin", "haStatus", "-b", pair.slave.address)
    (status,) = pair.admin("brokerStatus", "-b", pair.master.address)
    assert int(status["commitLogMaxOffset"]) >= 0
    pair.admin("updateBrokerConfig", "-b", pair.master.address, "-k", "slaveReadEnable", "-v", "true")
    (config,) = pair.admin("getBrokerConfig", "-b", pair.master.address)
    assert config["slaveReadEnable"] == "true"
    assert "storePathRootDir" in trouble(
        "admin", "updateBrokerConfig", "-b", pair.master.address, "-k", "storePathRootDir", "-v", "/elsewhere"
    )


@pytest.mark.parametrize(
    ("command", "whole"),
    [
        (("clusterList",), ("DefaultCluster", "broker-a", "{master}", "{slave}", "SYNC_MASTER")),
        (("topicList",), ("A-topic-with-a-long-name-of-forty-letters",)),
        (("topicRoute", "-t", "{topic}"), ("DefaultCluster", "broker-a", "{master}", "{slave}")),
        (("topicStatus", "-t", "{topic}"), ("broker-a",)),
        (("updateTopic", "-t", "{topic}", "-c", "DefaultCluster"), ("{master}", "{topic}")),
        (("updateSubGroup", "-g", "{group}", "-c", "DefaultCluster"), ("{master}", "{group}")),
        (("getConsumerConfig", "-g", "{group}"), ("{master}", "{group}", "whichBrokerWhenConsumeSlowly: 1")),
        (("consumerProgress",), ("{group}",)),
        (("consumerProgress", "-g", "{group}"), ("{topic}", "broker-a")),
        (("resetOffsetByTime", "-g", "{group}", "-t", "{topic}", "-s", "now"), ("broker-a", "COMMIT_OK")),
        (("haStatus",), ("{master}", "{slave}")),
    ],
    ids=lambda value: value[0],
)
def test_tables_fit_a_terminal_and_break_no_name(pair, command, whole):
    names = {
        "topic": "A-topic-with-a-long-name-of-forty-letters",
        "group": "a-group-with-a-name-of-some-thirty-letters",
        "master": pair.master.address,
        "slave": pair.slave.address,
    }
    pair.admin("updateTopic", "-t", names["topic"], "-r", "2", "-w", "2")
    rocketsim("produce", *pair.n, "-t", names["topic"], "one", "two")
    rocketsim("consume", *pair.n, "-t", names["topic"], "-g", names["group"])
    wait_until(lambda: {"topic": names["topic"]} in pair.admin("topicList"), "the name server knows the topic")
    word, *options = (part.format(**names) for part in command)
    shown = on_terminal("admin", word, *pair.n, *options)
    assert max(map(len, shown.splitlines())) <= 80
    for name in whole:
        assert name.format(**names) in shown


def test_clusterlist_fails_when_every_broker_refuses(tmp_path):
    with Processes(tmp_path) as processes:
        namesrv = processes.start_namesrv()
        broker = processes.start_broker("broker-a", 0, namesrv)
        wait_until(lambda: answer("admin", "clusterList", "-n", namesrv.address), "the broker is registered")
        # A stopped process keeps its connections: it stays registered, and answers no call.
        broker.signal(signal.SIGSTOP)
        try:
            done = rocketsim("admin", "clusterList", "-n", namesrv.address)
        finally:
            broker.signal(signal.SIGCONT)
        assert done.returncode == 1
        assert broker.address in done.stdout and "no broker reports its state" in done.stderr


def test_produce_says_that_it_makes_a_topic(pair):
    said = [rocketsim("produce", *pair.n, "-t", "MadeBySending", "x").stderr for _ in range(2)]
    assert said == ["rocketsim: no broker has topic 'MadeBySending': the first message makes it\n", ""]


@pytest.mark.parametrize(
    "arguments",
    [
        ("admin", "topicList", "-n", "localhost"),
        ("admin", "haStatus"),
        ("admin", "resetOffsetByTime", "-n", "127.0.0.1:1", "-g", "g", "-t", "T", "-s", "yesterday"),
        ("admin", "updateTopic", "-n", "127.0.0.1:1", "-t", "T", "-a", "message.type=FIFO"),
        ("admin", "topicRoute", "-n", "127.0.0.1:1"),
        ("consume", "-n", "127.0.0.1:1", "-t", "T", "--pop"),
        ("consume", "-n", "127.0.0.1:1", "-t", "T", "--sql", "a ="),
        ("produce", "-n", "127.0.0.1:1", "-t", "T", "--count", "2"),
        ("--tls-ca", __file__, "admin", "topicList", "-n", "127.0.0.1:1"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_has_status_2(arguments):
    assert rocketsim(*arguments).returncode == 2
    assert rocketsim(*arguments, "--json").returncode == 2


def test_write_permission_can_be_taken_and_given_back(pair):
    pair.admin("updateTopic", "-t", "Perm", "-r", "1", "-w", "1")
    (wiped,) = pair.admin("wipeWritePerm", "-b", "broker-a")
    assert wiped["topics"] > 0
    assert pair.admin("topicRoute", "-t", "Perm")[0]["queueDatas"][0]["perm"] == 4
    pair.admin("addWritePerm", "-b", "broker-a")
    assert pair.admin("topicRoute", "-t", "Perm")[0]["queueDatas"][0]["perm"] == 6
    assert "broker 'broker-q' is not known; known are: broker-a" in trouble(
        "admin", "wipeWritePerm", *pair.n, "-b", "broker-q"
    )


def test_messages_are_found_by_id_key_and_place(pair):
    pair.admin("updateTopic", "-t", "Find", "-r", "1", "-w", "1")
    sent = lines(rocketsim("produce", *pair.n, "-t", "Find", "x", "needle", "--key", "K7", "--json").stdout)[1]
    (by_id,) = pair.admin("queryMsgById", "-t", "Find", "-i", sent["msgId"])
    place = ("-b", "broker-a", "-i", "0", "-o", str(sent["queueOffset"]))
    (by_place,) = pair.admin("queryMsgByOffset", "-t", "Find", *place)
    (by_offset_id,) = pair.admin("queryMsgById", "-t", "Find", "-i", by_place["offsetMsgId"])
    query = ("admin", "queryMsgByKey", *pair.n, "-t", "Find", "-k", "K7")
    wait_until(lambda: rocketsim(*query).returncode == 0, "the key is indexed")
    by_key = answer(*query)
    assert [by_id["body"], by_place["body"], by_offset_id["body"]] == ["needle"] * 3
    assert by_id in by_key and len(by_key) == 2
    assert "nothing-like-it" in trouble("admin", "queryMsgByKey", *pair.n, "-t", "Find", "-k", "nothing-like-it")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("admin", "topicList", "-n", "127.0.0.1:1"), "rocketsim up", id="no name server there"),
        pytest.param(("admin", "topicList", "-n", "nonsense"), "host:port", id="no address"),
        pytest.param(("admin", "haStatus"), "-n host:port", id="neither -n nor -b"),
        pytest.param(("produce", "-n", "127.0.0.1:1", "-t", "T", "x"), "127.0.0.1:1", id="produce to nowhere"),
        pytest.param(("consume", "-n", "127.0.0.1:1", "-t", "T", "--from", "committed"), "-g", id="no group"),
        pytest.param(("consume", "-n", "127.0.0.1:1", "-t", "T", "--pop"), "-g", id="no group to be a member of"),
        pytest.param(
            ("consume", "-n", "127.0.0.1:1", "-t", "T", "-g", "g", "--pop", "--from", "latest"),
            "resetOffsetByTime",
            id="a start of what the broker keeps",
        ),
        pytest.param(
            ("consume", "-n", "127.0.0.1:1", "-t", "T", "--tags", "A", "--sql", "a = 1"), "TAGS", id="two filters"
        ),
        pytest.param(("consume", "-n", "127.0.0.1:1", "-t", "T", "--sql", "a ="), "a =", id="no condition"),
        pytest.param(("broker", "-c", "no-such-file.properties"), "no-such-file.properties", id="no such file"),
        pytest.param(("admin", "topicRoute", "-n", "127.0.0.1:1"), "--topic", id="an option is missing"),
        pytest.param(("consume", "-n", "127.0.0.1:1", "-t", "T", "--from", "noon"), "earliest", id="a wrong value"),
    ],
)
def test_expected_trouble_is_a_line_that_says_what_to_do(arguments, said):
    assert said in trouble(*arguments)


def test_a_message_that_is_stored_less_safely_than_asked_for_has_a_status_of_its_own(tmp_path):
    with Processes(tmp_path) as processes:
        namesrv = processes.start_namesrv()
        processes.start_broker("broker-a", 0, namesrv, brokerRole="SYNC_MASTER", slaveWaitTimeMs=0)
        produce = ("produce", "-n", namesrv.address, "-t", "T", "one", "two")
        wait_until(lambda: rocketsim(*produce).returncode != 1, "the master takes writes")
        sent = rocketsim(*produce)
        assert sent.returncode == 3
        assert "2 messages" in sent.stderr and "SLAVE_NOT_AVAILABLE 2" in sent.stderr
        scripted = rocketsim(*produce, "--json")
        assert scripted.returncode == 3
        assert [line["status"] for line in lines(scripted.stdout)] == ["SLAVE_NOT_AVAILABLE"] * 2
        (summary,) = lines(scripted.stderr)
        assert (summary["kind"], summary["statuses"]) == ("summary", {"SLAVE_NOT_AVAILABLE": 2})


def commands_below(command, name="rocketsim") -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, one in getattr(command, "commands", {}).items():
        yield from commands_below(one, f"{name} {word}")


COMMANDS = dict(commands_below(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_flag_has_help_and_every_answer_json(name):
    command = COMMANDS[name]
    assert command.help
    assert [parameter.name for parameter in command.params if not parameter.help] == []
    if not getattr(command, "commands", {}) and name.split()[1] not in (*SERVERS, "up", "console"):
        assert any("--json" in parameter.opts for parameter in command.params)


def test_the_version_is_that_of_the_package():
    assert rocketsim("--version").stdout == (
        f"rocketsim {metadata.version('rocketsim')} (recordKernels={kernels.in_use()})\n"
    )


def test_a_bad_configuration_is_refused_with_file_line_and_key(tmp_path):
    file = tmp_path / "broker.properties"
    file.write_text("brokerName=broker-a\nbrokerrole=SLAVE\n")
    command = [sys.executable, "-m", "rocketsim_cli.main", "broker", "-c", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stderr
    assert done.returncode == 1 and "Traceback" not in said
    assert str(file) in said and "2" in said and "brokerRole" in said


def test_a_store_is_dumped_and_verified_offline(tmp_path):
    with Processes(tmp_path) as processes:
        namesrv = processes.start_namesrv()
        broker = processes.start_broker("broker-a", 0, namesrv)
        wait_until(
            lambda: rocketsim("produce", "-n", namesrv.address, "-t", "T", "one", "two").returncode == 0, "a send"
        )
        consume = ("consume", "-n", namesrv.address, "-t", "T", "-g", "g")
        wait_until(lambda: rocketsim(*consume).returncode == 0, "the name server knows the topic")
        assert broker.stop() == 0
    dumped = lines(rocketsim("store", "dump", str(broker.store)).stdout)
    assert [line["kind"] for line in dumped].count("message") == 2
    assert {"queue", "log", "offset"} <= {line["kind"] for line in dumped}
    verified = rocketsim("store", "verify", str(broker.store))
    assert verified.returncode == 0, verified.stdout
    assert "nothing wrong in 1 log file with 2 records in" in verified.stdout
    (survey,) = answer("store", "verify", str(broker.store))
    size = sum(line["storeSize"] for line in dumped if line["kind"] == "message")
    queues = [line["kind"] for line in dumped].count("queue")
    assert survey == {"kind": "survey", "logFiles": 1, "logBytes": size, "records": 2, "queues": queues, "findings": 0}
    (log,) = (broker.store / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(88)  # the first body
        file.write(b"\xff\xff\xff")
    verified = rocketsim("store", "verify", str(broker.store))
    assert verified.returncode == 1
    assert log.name in verified.stdout
    scripted = rocketsim("store", "verify", str(broker.store), "--json")
    assert scripted.returncode == 1
    assert [line["kind"] for line in lines(scripted.stdout)][-1] == "survey"


@pytest.mark.parametrize("word", ["verify", "dump"])
def test_a_directory_without_a_log_is_no_store(tmp_path, word):
    assert f"{tmp_path} is no store directory" in trouble("store", word, str(tmp_path))
    (tmp_path / "broker-a" / "commitlog").mkdir(parents=True)
    assert f"{tmp_path / 'broker-a'} is one" in trouble("store", word, str(tmp_path))
    assert f"{tmp_path / 'broker-a'} is one" in trouble("store", word, str(tmp_path / "broker-a" / "commitlog"))


def test_a_long_look_says_how_far_it_has_got(tmp_path, monkeypatch):
    unpack_golden(tmp_path)
    monkeypatch.setattr("rocketsim_cli.store.NOTE_EVERY_S", 0.0)
    notes = [line["message"] for line in lines(rocketsim("store", "verify", str(tmp_path), "--json").stderr)]
    assert len(notes) > 1
    assert "of the log" in notes[0]
    assert "of the log" in rocketsim("store", "dump", str(tmp_path)).stderr


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, rocketsim_cli.main as m\n"
        "heavy = {'grpc', 'pyspark', 'pyarrow', 'numpy', 'rich', 'rocketsim_client', 'broker_service',"
        " 'importlib.metadata'}\n"
        "sys.exit(','.join(sorted(heavy & sys.modules.keys())))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip() == ""


def test_up_starts_a_cluster_reports_a_dead_child_and_ends_with_ctrl_c(tmp_path: Path):
    port = free_port(random.choice(PORTS))
    up = subprocess.Popen(
        [
            *(sys.executable, "-m", "rocketsim_cli.main", "up"),
            *("--dir", str(tmp_path), "--topic", "Ready", "--port", str(port)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    with up, ending(up):
        assert up.stdout is not None
        said = ""
        while "awaitTermination" not in said:
            line = up.stdout.readline()
            assert line, said
            said += line
        name_server = (tmp_path / "namesrv.address").read_text().strip()
        assert name_server == f"127.0.0.1:{port}" and f"export NAMESRV_ADDR={name_server} " in said
        assert f'.option("nameServer", "{name_server}")' in said
        members = answer("admin", "clusterList", "-n", name_server)
        assert len(members) == 2
        assert f"--port {port}: another process listens there" in rocketsim("up", "--port", str(port)).stderr
        assert len(answer("admin", "topicStatus", "-n", name_server, "-t", "Ready")) == 4
        (advised,) = re.findall(r"^  rocketsim (admin updateTopic .*)$", said, re.M)
        answer(*advised.split())
        (endpoints,) = re.findall(r"RocketMQ 5's clients: endpoints (\S+) ", said)
        expected = [[definition_pb2.NORMAL], [definition_pb2.FIFO]]
        wait_until(lambda: types_of_topics(endpoints, "Ready", "Orders") == expected, "the route has both")
        pids = pids_of(tmp_path)
        os.kill(pids["broker-a-s"], signal.SIGKILL)
        while "broker-a-s has ended" not in said:
            line = up.stdout.readline()
            assert line, said
            said += line
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=PROCESS_PATIENCE_S)
        assert up.returncode == 0
    for name in ("namesrv", "broker-a"):
        with pytest.raises(ProcessLookupError):
            os.kill(pids[name], 0)
    assert not (tmp_path / "store" / "broker-a" / "abort").exists()


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kills the process at the end, so that a failed test does not wait for it."""
    try:
        yield
    finally:
        process.kill()


def types_of_topics(endpoints: str, *topics: str) -> list[list[int]]:
    """Returns the message types of each topic, as a client of RocketMQ 5 gets them; [] for a topic that is not in the
    route.
    """
    with grpc.insecure_channel(endpoints) as channel:
        query_route: Any = MessagingServiceStub(channel).QueryRoute
        headers = (("x-mq-client-id", "client-1"),)
        routes = [
            query_route(
                service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic)),
                metadata=headers,
                wait_for_ready=True,
                timeout=PROCESS_PATIENCE_S,
            )
            for topic in topics
        ]
        return [[kind for queue in route.message_queues[:1] for kind in queue.accept_message_types] for route in routes]


def test_the_servers_of_up_do_not_outlive_it_when_it_is_killed(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-m", "rocketsim_cli.main", "up", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as up:
        assert up.stdout is not None
        assert any("awaitTermination" in line for line in up.stdout)
        pids = pids_of(tmp_path)
        assert pids.keys() == {"namesrv", "broker-a", "broker-a-s"}
        up.kill()
    try:
        wait_until(lambda: not pids_of(tmp_path), "the servers to end")
    finally:
        for pid in pids_of(tmp_path).values():
            os.kill(pid, signal.SIGKILL)


def pids_of(folder: Path) -> dict[str, int]:
    """Returns the processes of servers whose configuration file is in this folder."""
    found = pids_by_argument(lambda argument: argument.startswith(str(folder)) and argument.endswith(".properties"))
    return {Path(argument).stem: pid for argument, pid in found.items()}


def test_a_promotion_says_what_stands_against_it_and_what_it_cuts_and_a_slave_that_is_gone_is_forgotten(pair):
    """The last test of this file: it ends the master."""
    master, slave = pair.master, pair.slave
    assert "slave 1 follows this master now: stop the slave" in trouble(
        "admin", "removeSlave", "-b", master.address, "-i", "1"
    )
    assert f"slave 9 is not known here; known are: 1 at {slave.address}" in trouble(
        "admin", "removeSlave", "-b", master.address, "-i", "9"
    )
    promote = ("admin", "promoteSlave", *pair.n, "-b", slave.address)
    refusal = trouble(*promote)
    assert f"the master at {master.address} answers" in refusal and "--force" in refusal
    master.kill()
    done = wait_until(lambda: (tried := rocketsim(*promote)).returncode == 0 and tried, "the promotion")
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{slave.address} is SYNC_MASTER with ASYNC_FLUSH now: epoch ")
    assert [row["role"] for row in pair.admin("clusterList")] == ["SYNC_MASTER"]
    change = ("updateBrokerConfig", "-k", "brokerRole", "-v")
    (changed,) = pair.admin(*change, "ASYNC_MASTER")
    assert (changed["brokerAddr"], changed["value"]) == (slave.address, "ASYNC_MASTER")
    assert [row["role"] for row in pair.admin("clusterList")] == ["ASYNC_MASTER"]
    pair.admin(*change, "SYNC_MASTER")
    assert second.startswith(f"broker 0 at {master.address}: it does not answer: an unknown number of bytes")
    master.start(brokerId=2, brokerRole="SLAVE")
    wait_until(lambda: "2 at " in pair.admin("brokerStatus", "-b", slave.address)[0]["knownSlaves"], "it follows")
    master.kill()
    removed = wait_until(
        lambda: (
            (tried := rocketsim("admin", "removeSlave", "-b", slave.address, "-i", "2", "--json")).returncode == 0
            and tried
        ),
        "it is forgotten",
    )
    assert removed.stdout == ""
    assert pair.admin("brokerStatus", "-b", slave.address)[0]["knownSlaves"] == "none"
