"""The comparison in check.py detects every kind of difference.  The tests of this comparison need no RocketMQ."""

from copy import deepcopy
from typing import Any

import pytest

from tests.interop.check import Outcome, compare, compare_keys, keys, requests
from tests.support.golden import golden_dump

OFFSET = {"kind": "offset", "group": "golden_group", "topic": "golden_plain", "queueId": 0, "offset": 10}


def ours() -> list[dict[str, Any]]:
    lines = golden_dump()
    wanted = [line for line in lines if line.get("topic") == "golden_plain" and line["queueId"] == 0]
    return [*wanted, OFFSET]


def theirs() -> list[dict[str, Any]]:
    """Returns what RocketMQ's client would return for the messages of `ours`."""
    lines = deepcopy(ours())
    for line in lines:
        for key in ("magic", "propertiesLength", "bodyLength", "cqType", "unitSize", "entries", "entriesSha1"):
            line.pop(key, None)
    return lines


def differences(answer: list[dict[str, Any]]) -> list[str]:
    outcome = Outcome("golden")
    compare(ours(), answer, outcome)
    return outcome.differences


def test_equal_answers_have_no_differences_and_are_counted() -> None:
    outcome = Outcome("golden")
    compare(ours(), theirs(), outcome)
    assert (outcome.queues, outcome.messages, outcome.offsets, outcome.differences) == (1, 110, 1, [])


@pytest.mark.parametrize("key", [key for key in theirs()[0] if key not in ("kind", "topic", "queueId", "queueOffset")])
def test_another_value_of_any_field_is_a_difference(key: str) -> None:
    answer = theirs()
    answer[5][key] = "something else"
    assert len(differences(answer)) == 1
    del answer[5][key]
    assert len(differences(answer)) == 1


def test_a_message_too_few_or_too_many_is_a_difference() -> None:
    assert len(differences(theirs()[1:])) == 1
    answer = theirs()
    assert len(differences([*answer, {**answer[0], "queueOffset": 110}])) == 1


def test_another_bound_or_offset_is_a_difference() -> None:
    for row, key in ((-2, "minOffset"), (-2, "maxOffset"), (-1, "offset")):
        answer = theirs()
        answer[row][key] += 1
        assert len(differences(answer)) == 1
    assert len(differences(theirs()[:-1])) == 1


def test_a_key_that_is_not_found_everywhere_is_a_difference() -> None:
    asked = keys(ours())
    answers = [{"kind": "key", "topic": topic, "key": key, "offsets": at[::-1]} for (topic, key), at in asked.items()]
    outcome = Outcome("golden")
    compare_keys(asked, answers, outcome)
    assert len(asked) > 20 and outcome.keys == len(asked) and not outcome.differences
    compare_keys(asked, [{**answers[0], "offsets": []}, *answers[1:]], outcome)
    compare_keys(asked, answers[1:], outcome)
    assert len(outcome.differences) == 2


def test_system_topics_are_not_asked_for() -> None:
    asked = {words[1] for words in requests(golden_dump())}
    assert "golden_plain" in asked and "%RETRY%golden_group" in asked
    assert not any(topic.startswith(("RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_")) for topic in asked)
