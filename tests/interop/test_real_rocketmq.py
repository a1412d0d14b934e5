"""Runs `python -m tests.interop.check` as a test: a real Apache RocketMQ serves the stores that this project writes."""

from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest

from broker_service.store import json_file
from broker_service.store.offline.dump import dump
from broker_service.store.offline.verification import verify
from testbed.real_rocketmq import copy_store, running
from tests.interop import pending_work
from tests.interop.check import Outcome, check, compare, place, requests
from tests.interop.marks import NEEDS_MAVEN
from tests.interop.programs import read
from tests.interop.stores import make_stores

pytestmark = NEEDS_MAVEN


def test_rocketmq_reads_every_field_of_every_message_as_our_dump_says(tmp_path: Path) -> None:
    outcomes = [check(name, store, tmp_path / name) for name, store in make_stores(tmp_path / "stores").items()]
    assert {outcome.name: outcome.differences for outcome in outcomes} == {one.name: [] for one in outcomes}
    assert sum(outcome.messages for outcome in outcomes) > 5_000
    assert {outcome.name for outcome in outcomes} == {"master", "slave", "trimmed", "golden"}


def order_info(store: Path) -> Any:
    """Returns the table of `consumerOrderInfo.json` without empty values."""
    table = json_file.loads((store / "config/consumerOrderInfo.json").read_text())["table"]
    return {
        owner: {
            number: {name: it for name, it in one.items() if it not in (None, {})} for number, one in queues.items()
        }
        for owner, queues in table.items()
    }


# RocketMQ checks open transactions as often as it can and gives none up, and no client answers these checks.
SETTINGS = {"timerWheelEnable": "true", "transactionCheckInterval": 1000, "transactionCheckMax": 1000}


@pytest.mark.parametrize("whole", [True, False], ids=["with our own files", "without them"])
async def test_rocketmq_goes_on_with_pending_work_and_our_broker_after_it(tmp_path: Path, whole: bool) -> None:
    await pending_work.make(tmp_path / "made")
    store = copy_store(tmp_path / "made", tmp_path / "store", whole=whole)
    ours, outcome = list(dump(store)), Outcome("pending work")
    assert list(verify(store)) == []
    in_order = order_info(store)
    assert in_order["steps@line"]["0"]["o"] == [1, 1, 2], "a batch of three, the others by their distance"

    with running(tmp_path / "rocketmq", store=store, settings=SETTINGS) as rocketmq:
        theirs = read(rocketmq, [("await", "times", "3"), *requests(ours)])

    compare(ours, theirs, outcome)
    assert outcome.differences == []
    assert outcome.offsets == 5 and outcome.messages == 22
    messages = [line for line in theirs if line["kind"] == "message"]
    named = {sha1(name.encode()).hexdigest(): name for name in pending_work.NAMES}
    offsets = {(one["group"], *place(one)[:2]): one["offset"] for one in theirs if one["kind"] == "offset"}

    def bodies(topic: str, group: str = "") -> list[str]:
        """Returns the messages that consumers of the group would get, or all messages of the topic."""
        begins = {queue_id: at for (owner, name, queue_id), at in offsets.items() if (owner, name) == (group, topic)}
        of_topic = [line for line in messages if line["topic"] == topic]
        assert not group or begins.keys() >= {line["queueId"] for line in of_topic}
        return [named[line["bodySha1"]] for line in of_topic if line["queueOffset"] >= begins.get(line["queueId"], 0)]

    assert bodies("%DLQ%crew") == ["work-7"]
    retried = bodies(pending_work.RETRY, "crew")
    assert retried == ["work-6", "work-5"], "work-9 is acknowledged"
    # An offset says nothing about later acks, nor about retries that replace a message, so 4 and 5 come again.
    begun = bodies("work", "crew")
    assert sorted(begun) == sorted(f"work-{number}" for number in (2, 3, 4, 5, 10, 11))
    assert {*begun, *retried} == pending_work.WORK_LEFT | {"work-4"}
    assert bodies("steps", "line") == pending_work.STEPS_LEFT
    assert {*bodies("times")} == {"times-past", "times-soon", "level-soon"}
    assert bodies("trades") == ["committed"]

    assert order_info(store) == in_order, "RocketMQ wrote at its end what it had understood at its start"
    assert list(verify(store)) == []
    log = [[line for line in lines if line["kind"] in ("message", "blank")] for lines in (ours, dump(store))]
    assert log[1][: len(log[0])] == log[0], "the log that RocketMQ closed begins with the one it was given"
    asked = {line["properties"].get("TRANSACTION_CHECK_TIMES") for line in log[1][len(log[0]) :]}
    assert "1" in asked, "RocketMQ knows the open transactions"

    received = await pending_work.complete(store)
    assert received["steps"] == pending_work.STEPS_LEFT
    assert sorted(received["work"]) == sorted(pending_work.WORK_LEFT)
    assert sorted(received["times"]) == sorted(pending_work.TIMES)
    assert sorted(received["trades"]) == sorted(pending_work.TRADES)
    assert list(verify(store)) == []
