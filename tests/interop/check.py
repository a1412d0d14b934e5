"""Opens stores of ours with a real Apache RocketMQ, and compares what RocketMQ's client reads with our dump.

The comparison covers every field of every message in every user queue, every queue's bounds, committed offsets, and
messages found by key.  After RocketMQ has closed a store, the store must be undamaged and have the same content.

    python -m tests.interop.check            a master's store, a slave's, a trimmed one, and one that RocketMQ began
    python -m tests.interop.check DIR ...    copies of these store directories

Prints a table.  The exit status is 0 only if everything is equal.  Needs Java 17, Maven, and the installed project.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker_service.store.offline.dump import dump
from broker_service.store.offline.verification import verify
from testbed.real_rocketmq import NEWEST, RocketMQError, copy_store, running
from tests.interop.programs import read
from tests.interop.stores import make_stores

Line = dict[str, Any]
NOT_ASKED = {"magic", "propertiesLength", "bodyLength"}  # fields that RocketMQ's client does not return
NO_PLACE_IN_A_QUEUE = {4, 12}  # the bits for prepared and rolled back in the system flag
SHOWN = 10
KEYS_ASKED = 40
KEYS_FOUND = 64  # the most messages that RocketMQ returns for one key


@dataclass
class Outcome:
    name: str
    queues: int = 0
    messages: int = 0
    fields: int = 0
    offsets: int = 0
    keys: int = 0
    added: int = 0  # messages that RocketMQ has added while it ran: due delayed messages
    differences: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rocketsim-interop-") as directory:
        work = Path(directory)
        stores = {str(store): store for store in arguments.stores} or make_stores(work / "stores")
        outcomes = [check(name, store, work / f"{number}") for number, (name, store) in enumerate(stores.items())]
    print_table(outcomes)
    return 1 if any(outcome.differences for outcome in outcomes) else 0


def check(name: str, store: Path, work: Path) -> Outcome:
    print(f"{name}: served by RocketMQ {NEWEST} …", file=sys.stderr)
    outcome = Outcome(name)
    copy = copy_store(store, work / "store")
    ours = list(dump(copy))
    outcome.differences += [f"before RocketMQ opened it: {finding}" for finding in verify(copy)]
    # After an unclean stop RocketMQ deletes its newest index file, and may not make all of it again.
    asked = {} if (copy / "abort").exists() else keys(ours)
    try:
        with running(work / "rocketmq", store=copy) as rocketmq:
            theirs = read(rocketmq, [*requests(ours), *(("key", topic, key) for topic, key in asked)])
    except RocketMQError as error:
        outcome.differences.append(str(error))
        return outcome
    compare(ours, [line for line in theirs if line["kind"] != "key"], outcome)
    compare_keys(asked, [line for line in theirs if line["kind"] == "key"], outcome)
    outcome.differences += [f"after RocketMQ closed it: {finding}" for finding in verify(copy)]
    after = [line for line in dump(copy) if line["kind"] in ("message", "blank")]
    before = [line for line in ours if line["kind"] in ("message", "blank")]
    if after[: len(before)] != before:
        outcome.differences.append("the log that RocketMQ closed does not begin with the one it was given")
    outcome.added = len(after) - len(before)
    return outcome


def requests(ours: list[Line]) -> Iterator[tuple[str, ...]]:
    for line in ours:
        if line["kind"] == "queue" and is_user_topic(line["topic"]):
            yield "queue", line["topic"], str(line["queueId"])
        elif line["kind"] == "offset" and is_user_topic(line["topic"]):
            yield "offset", line["group"], line["topic"], str(line["queueId"])


def keys(ours: list[Line]) -> dict[tuple[str, str], list[int]]:
    """Returns some keys of user topics, and the log offsets of the messages with each key."""
    found: dict[tuple[str, str], list[int]] = {}
    for line in ours:
        if line["kind"] == "message" and line["keys"] and is_user_topic(line["topic"]):
            for key in set(line["keys"].split()):
                found.setdefault((line["topic"], key), []).append(line["commitLogOffset"])
    few = [item for item in found.items() if len(item[1]) <= KEYS_FOUND]
    return dict(few[:: len(few) // KEYS_ASKED + 1])


def is_user_topic(topic: str) -> bool:
    return not topic.lower().startswith(("rmq_sys_", "schedule_topic_", "%sys%"))


def compare(ours: list[Line], theirs: list[Line], outcome: Outcome) -> None:
    """Counts the equal lines, and notes the lines that differ."""
    delayed = any(line["kind"] == "queue" and line["topic"].startswith("SCHEDULE_TOPIC_") for line in ours)
    bounds = {(line["topic"], line["queueId"]): line for line in ours if line["kind"] == "queue"}
    messages = {
        place(line): line
        for line in ours
        if line["kind"] == "message"
        and is_user_topic(line["topic"])
        and line["sysFlag"] & 12 not in NO_PLACE_IN_A_QUEUE
    }
    offsets = {(line["group"], *place(line)[:2]): line for line in ours if line["kind"] == "offset"}
    expected_offsets = {key for key in offsets if is_user_topic(key[1])}
    for line in theirs:
        if line["kind"] == "queue":
            outcome.queues += 1
            own = bounds[line["topic"], line["queueId"]]
            grown = delayed and line["maxOffset"] > own["maxOffset"]
            differ(own, {**line, "maxOffset": own["maxOffset"]} if grown else line, outcome)
        elif line["kind"] == "offset":
            outcome.offsets += 1
            key = (line["group"], line["topic"], line["queueId"])
            expected_offsets.discard(key)
            differ(offsets[key], line, outcome)
        elif (own_message := messages.pop(place(line), None)) is not None:
            outcome.messages += 1
            outcome.fields += len(line)
            differ(own_message, line, outcome)
            if missing := own_message.keys() - line.keys() - NOT_ASKED:
                outcome.differences.append(f"{place(line)}: nothing said of {sorted(missing)}")
        elif not (delayed and line["queueOffset"] >= bounds[line["topic"], line["queueId"]]["maxOffset"]):
            outcome.differences.append(f"{place(line)}: RocketMQ has a message that we do not have")
    outcome.differences += [f"{where}: RocketMQ does not have this message" for where in messages]
    outcome.differences += [f"{key}: RocketMQ does not have this offset" for key in expected_offsets]


def compare_keys(asked: dict[tuple[str, str], list[int]], theirs: list[Line], outcome: Outcome) -> None:
    for line in theirs:
        outcome.keys += 1
        own = asked[line["topic"], line["key"]]
        if sorted(line["offsets"]) != own:
            what = f"{line['topic']} key {line['key']!r}: at {own}, RocketMQ finds {sorted(line['offsets'])}"
            outcome.differences.append(what)
    if len(theirs) != len(asked):
        outcome.differences.append(f"{len(asked)} keys were asked for, {len(theirs)} were answered")


def place(line: Line) -> tuple[str, int, int]:
    return line["topic"], line["queueId"], line.get("queueOffset", -1)


def differ(own: Line, line: Line, outcome: Outcome) -> None:
    for key, value in line.items():
        if own[key] != value:
            outcome.differences.append(f"{place(line)} {key}: {own[key]!r}, RocketMQ has {value!r}")


def print_table(outcomes: list[Outcome]) -> None:
    columns = ("store", "queues", "messages", "fields", "offsets", "keys", "added", "differences")
    rows = [(o.name, o.queues, o.messages, o.fields, o.offsets, o.keys, o.added, len(o.differences)) for o in outcomes]
    widths = [max(len(str(row[i])) for row in (columns, *rows)) for i in range(len(columns))]
    for row in (columns, *rows):
        cells = [str(row[0]).ljust(widths[0]), *(str(v).rjust(w) for v, w in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells))
    for outcome in outcomes:
        for difference in outcome.differences[:SHOWN]:
            print(f"{outcome.name}: {difference}")
        if len(outcome.differences) > SHOWN:
            print(f"{outcome.name}: and {len(outcome.differences) - SHOWN} more")


if __name__ == "__main__":
    sys.exit(main())
