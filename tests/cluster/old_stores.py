"""The stores in tests/data/upgrade, which a pair of version 9157579 has written: how they are made, and what they
contain.

    python -m tests.cluster.old_stores      # makes them again, with the code in 9157579.tar.xz

The stores contain all that a broker leaves on its disk: several log files, keys, a deleted topic, a group that was
reset, a delayed message that is due by now, a crash, a promotion, a former master that follows.  The stores in `clean`
were stopped; those in `crashed` were killed, with commits that only the journal has.
"""

import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketsim_client import Admin
from rocketsim_client.connection import Connection
from rocketsim_client.errors import InvalidParameter
from rocketsim_client.transport.own.transport import GrpcTransport
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import ROOT, Processes, ServerProcess
from tests.cluster.one_broker import OneBroker
from tests.support.archives import unpack

UPGRADE = ROOT / "tests/data/upgrade"
CODE = UPGRADE / "9157579.tar.xz"
KEYS = {
    "brokerRole": "SYNC_MASTER",
    "mappedFileSizeCommitLog": 32 << 10,
    "mappedFileSizeConsumeQueue": 20 * 40,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
    "fileReservedTime": 24 * 365 * 100,
    "messageDelayLevel": "1s 1m",
    "flushConsumerOffsetInterval": 600_000,
    "slaveWaitTimeMs": 5_000,
}
QUEUES = 3
GROUPS = ("reader", "moved-back", "late")
TOPICS = ("Many", "Few")


def facts(broker: OneBroker) -> dict[str, Any]:
    """Returns what one broker serves, in the form of the JSON file."""
    return {
        "messages": {
            topic: {f"{queue}/{offset}": _short(one.body) for (queue, offset), one in broker.messages(topic).items()}
            for topic in TOPICS
        },
        "offsets": {
            group: {str(queue): broker.committed(group, "Many", queue) for queue in range(QUEUES)} for group in GROUPS
        },
        "deleted": broker.bounds("Gone") == {},  # it had two messages
    }


def _short(body: bytes) -> str:
    return f"{body.decode().rstrip('x')}, {len(body)} bytes"


def promote(name_server: ServerProcess, slave: ServerProcess, role: str = "SYNC_MASTER") -> None:
    """Promotes the slave as soon as the name server notices the master's death."""

    def promoted() -> bool:
        try:
            admin.promote_slave(slave.address, broker_role=role)
        except InvalidParameter as refusal:
            assert "stop it first" in str(refusal)
            return False
        return True

    with Admin(name_server=name_server.address, timeout_s=PROCESS_PATIENCE_S) as admin:
        wait_until(promoted, f"{slave.name} is promoted")


def _live(processes: Processes, alone: Callable[[ServerProcess], OneBroker], old: Path) -> None:
    name_server = processes.namesrv()
    name_server.root = old
    name_server.start()
    first = processes.broker("broker-a", 0, name_server, **KEYS)
    second = processes.broker("broker-a", 1, name_server, **KEYS | {"brokerRole": "SLAVE"})
    for broker in (first, second):
        broker.root = old
        broker.launch()
    for broker in (first, second):
        broker.wait_until_ready()
    alone(first).wait_for_slaves()

    def send(master: ServerProcess, word: str, count: int) -> None:
        for number in range(count):
            body = f"{word} {number} ".ljust(50 + number * 7 % 400, "x").encode()
            key, tag = f"{word} {number}".replace(" ", "-"), "AB"[number % 2]
            alone(master).put("Many", body, queue_id=number % QUEUES, KEYS=key, TAGS=tag)
        alone(master).put("Few", f"few of {word}".encode())
        alone(master).wait_for_slaves()

    def follows(slave: ServerProcess, master: ServerProcess) -> None:
        alone(master).wait_for_slaves()
        wait_until(lambda: facts(alone(slave)) == facts(alone(master)), f"{slave.name} has what {master.name} has")

    alone(first).update_topic("Many", QUEUES)
    for topic in ("Few", "Late", "Gone"):
        alone(first).update_topic(topic, 1)
    alone(first).put("Gone", b"gone", b"with it")
    send(first, "first", 150)
    alone(first).commit("reader", "Many", {0: 10, 1: 11})
    alone(first).commit("moved-back", "Many", dict.fromkeys(range(QUEUES), 40))
    alone(first).put("Late", b"later", DELAY="2")
    with Admin(name_server=name_server.address, timeout_s=PROCESS_PATIENCE_S) as admin:
        wait_until(lambda: {*TOPICS, "Late", "Gone"} <= set(admin.topic_list()), "the name server knows the topics")
        admin.delete_topic("Gone")
        admin.reset_offset_by_time("moved-back", "Many", 0, force=True)
    follows(second, first)

    first.kill()
    first.start()
    alone(first).update_topic("Many", QUEUES)
    alone(first).wait_for_slaves()
    send(first, "after a crash", 60)
    follows(second, first)

    first.kill()
    promote(name_server, second)
    first.start(brokerId=1, brokerRole="SLAVE")
    alone(second).wait_for_slaves()
    send(second, "after a promotion", 60)
    alone(second).commit("reader", "Many", {0: 50, 2: 52})
    follows(first, second)
    stop_and_keep = [("clean", lambda broker: broker.stop()), ("crashed", lambda broker: broker.kill())]
    for name, end in stop_and_keep:
        known = facts(alone(second))
        for broker in (first, second):
            end(broker)
        _keep(name, known, processes.folder)
        if name == "clean":
            for broker in (first, second):
                broker.launch()
            for broker in (first, second):
                broker.wait_until_ready()
            alone(second).update_topic("Many", QUEUES)
            alone(second).wait_for_slaves()
            send(second, "after a clean stop", 30)
            alone(second).commit("reader", "Many", {0: 60, 1: 61})
            alone(second).commit("late", "Many", {2: 3})
            follows(first, second)


def _keep(name: str, known: dict[str, Any], folder: Path) -> None:
    (UPGRADE / f"{name}.json").write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    with tarfile.open(UPGRADE / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for broker in ("broker-a", "broker-a-s"):
            for path in sorted((folder / broker / "store").rglob("*")):
                if path.is_file() and path.name not in ("lock", "address"):
                    archive.add(path, path.relative_to(folder), filter=_nobodys)


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as started:
        transport = GrpcTransport(Connection.of("127.0.0.1:1"))
        _live(started, lambda process: OneBroker(process, transport), unpack(CODE, Path(folder) / "9157579"))
        transport.close()
