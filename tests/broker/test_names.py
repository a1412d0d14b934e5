"""Valid names of topics and groups: RocketMQ's rules."""

import re

import pytest

from broker_service.errors import InvalidParameter, MessageIllegal, NoPermission
from broker_service.names import (
    check_group_name,
    check_topic_name,
    is_system_topic,
    refuse_system_topic,
)


@pytest.mark.parametrize("name", ["t", "Topic-1_x", "%RETRY%g", "%RETRY%g+t", "a|b", "x" * 127])
def test_rocketmqs_names_are_good(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "x" * 128,
        "../x",
        "a/b",
        ".",
        "a.b",
        "a+b",
        "%DLQ%a+b",
        "a\n",
        "a\0",
        "täg",
        "\uff41",
        "1\uff12",
        "x" * 10_000_000,
    ],
    ids=repr,
)
def test_anything_else_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(MessageIllegal) as refused:
        check_topic_name(name)
    assert len(str(refused.value)) < 250


def test_a_group_has_no_plus() -> None:
    with pytest.raises(InvalidParameter, match="only letters"):
        check_group_name("%RETRY%a+b")


def test_a_group_is_at_most_120_characters_long() -> None:
    check_group_name("g" * 120)
    with pytest.raises(InvalidParameter, match="120"):
        check_group_name("g" * 121)


@pytest.mark.parametrize(
    "topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "%DLQ%g", "%RETRY%g", "%RETRY%g+t", "SELF_TEST_TOPIC"]
)
def test_system_topics_are_not_for_clients(topic: str) -> None:
    assert is_system_topic(topic)
    with pytest.raises(NoPermission, match=re.escape(topic)):
        refuse_system_topic(topic)


def test_clients_write_rocketmqs_topic_for_traces_although_it_is_a_system_topic() -> None:
    assert is_system_topic("RMQ_SYS_TRACE_TOPIC")
    refuse_system_topic("RMQ_SYS_TRACE_TOPIC")


def test_a_users_topic_is_no_system_topic() -> None:
    refuse_system_topic("SCHEDULE")
