"""`rocketsim spool` shows a spool that a producer has open, and one that no producer has open."""

import base64
import json
from collections import deque

from rocketsim_client import Message, Producer
from tests.cli.test_commands import rocketsim
from tests.support.fake_broker import FakeCluster, Refuse


def rows(*arguments: str) -> list[dict[str, object]]:
    done = rocketsim("spool", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_spool_shows_waiting_messages_and_exports_and_discards_dead_ones(tmp_path):
    directory = str(tmp_path / "spool")
    with FakeCluster("T", "U") as cluster:
        broker = cluster.start("broker-a")
        broker.script["Send"] = deque([Refuse(14)] * 100_000)
        with Producer(cluster.address, spool=directory, timeout_s=1) as producer:
            large = Message("T", b"x" * 5000, tags="A", properties={"p": "q"})
            refused = producer.send(large, message_group="g")
            broker.max_message_size = 5
            broker.script["Send"].clear()
            producer.drain_spool(60)
            cluster.stop("broker-a")
            for _ in range(3):
                producer.send(Message("U", b"y"))
            seen = rows(directory)
            assert [(row["topic"], row["waiting"], row["dead"]) for row in seen] == [("T", 0, 1), ("U", 3, 0)]
            assert seen[0]["oldest"] is None and isinstance(seen[1]["oldest"], int)
            text = rocketsim("spool", directory).stdout
            assert "waiting" in text and "U" in text
            held = rocketsim("spool", directory, "--discard-dead")
            assert held.returncode == 1 and "has it open" in held.stderr
        (dead,) = rows(directory, "--dead")
        assert base64.b64decode(str(dead["body"])) == b"x" * 5000
        assert (dead["msgId"], dead["topic"]) == (refused.msg_id, "T")
        assert "body too large" in str(dead["reason"])
        assert dead["properties"] == {"TAGS": "A", "UNIQ_KEY": refused.msg_id, "__SHARDINGKEY": "g", "p": "q"}
        assert refused.msg_id in rocketsim("spool", directory, "--dead").stdout
        assert "1 dead messages are deleted" in rocketsim("spool", directory, "--discard-dead").stderr
        assert rows(directory, "--dead") == []
        assert [row["topic"] for row in rows(directory)] == ["U"]


def test_a_directory_without_a_spool_is_an_error(tmp_path):
    done = rocketsim("spool", str(tmp_path))
    assert done.returncode == 1 and "there is no spool.db in it" in done.stderr
