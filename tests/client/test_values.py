"""The client's small functions: addresses, expressions, validation, routes, suggestions, range progress."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketsim_client.addresses import parse_name_servers
from rocketsim_client.admin_model import Promotion
from rocketsim_client.errors import (
    BadAnswer,
    CallTimeout,
    CommitFailed,
    ExpressionInvalid,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    refusal,
)
from rocketsim_client.expression import TagExpression
from rocketsim_client.model import (
    CommitResult,
    GetMessageStatus,
    Message,
    MessageQueue,
    OffsetRange,
    PullFrame,
    QueueRange,
    Segment,
)
from rocketsim_client.range_pull import RangeProgress
from rocketsim_client.retry import PULLS, Budget, is_worth_sending_again
from rocketsim_client.route import BrokerData, QueueData, TopicRoute
from rocketsim_client.routing.route_cache import RouteCache
from rocketsim_client.routing.suggestions import Suggestions
from rocketsim_client.validation import check, check_topic_for_sending


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h:1", ["h:1"]),
        ("h:1;h2:2", ["h:1", "h2:2"]),
        (" h:1 , 10.0.0.1:9876;", ["h:1", "10.0.0.1:9876"]),
        ("[::1]:9876", ["[::1]:9876"]),
        (["a:1", "b:2"], ["a:1", "b:2"]),
    ],
)
def test_name_servers_are_read(text, expected):
    assert parse_name_servers(text) == expected


@pytest.mark.parametrize("text", ["", " ; ", "h", "h:", ":1", "h:0", "h:65536", "h:x", "h 1:2", "h:\uff11", "a:1;b"])
def test_bad_name_servers_are_refused(text):
    with pytest.raises(InvalidParameter, match="host:port"):
        parse_name_servers(text)


@pytest.mark.parametrize(
    ("text", "tags"),
    [("*", set()), ("", set()), (None, set()), (" * ", set()), ("A", {"A"}), (" A||B ", {"A", "B"}), ("A || A", {"A"})],
)
def test_tag_expressions_are_read(text, tags):
    assert TagExpression.parse(text).tags == tags


@pytest.mark.parametrize("text", ["A ||", "|| A", "A | B", "A B", "A || || B"])
def test_bad_tag_expressions_are_refused(text):
    with pytest.raises(ExpressionInvalid, match="TagA"):
        TagExpression.parse(text)


ILLEGAL = [
    pytest.param(Message("T", b""), "body is empty", id="empty body"),
    pytest.param(Message("T", b"x" * 101), "101 bytes; 100 at most", id="body too large"),
    pytest.param(Message("T", "text"), "not str", id="text body"),
    pytest.param(Message("T", b"x", tags="a\x01"), r"TAGS.*\\x01", id="separator in tags"),
    pytest.param(Message("T", b"x", keys=["a", "b\x02"]), r"KEYS.*\\x01", id="separator in keys"),
    pytest.param(Message("T", b"x", properties={"a": "\x02"}), "separate", id="separator in a value"),
    pytest.param(Message("T", b"x", properties={"a\x01": "b"}), "separate", id="separator in a name"),
    pytest.param(Message("T", b"x", properties={"a": "\0"}), "NUL", id="NUL in a value"),
    pytest.param(Message("T", b"x", properties={"": "x"}), "property name", id="empty name"),
    pytest.param(Message("T", b"x", properties={"a": 1}), "a string expected", id="number as value"),  # type: ignore[dict-item]
    pytest.param(Message("T", b"x", properties={"UNIQ_KEY": "x"}), "reserved by RocketMQ", id="reserved name"),
    pytest.param(Message("T", b"x", properties={"DELAY": "3"}), "reserved by RocketMQ", id="delay as property"),
    pytest.param(Message("T", b"x", properties={"a": "é" * 17_000}), "properties of 3", id="properties too large"),
]


@pytest.mark.parametrize(("message", "reason"), ILLEGAL)
def test_illegal_messages_are_refused_with_the_reason(message, reason):
    with pytest.raises(MessageIllegal, match=reason) as refused:
        check(message, 100)
    assert refused.value.code == 13


def test_the_largest_body_is_legal():
    check(Message("T", b"x" * 100, "t", "k", {"a": "é" * 16_000}), 100)


@pytest.mark.parametrize("topic", ["", "a b", "töpic", "x" * 128, "a/b", "a+b", "SCHEDULE_TOPIC_XXXX", "TBW102", "T\n"])
def test_illegal_topics_are_refused(topic):
    with pytest.raises(MessageIllegal):
        check_topic_for_sending(topic)


def test_legal_topics_are_not():
    for topic in ("T", "%RETRY%group", "%RETRY%group+topic", "a-b_C9|", "x" * 127):
        check_topic_for_sending(topic)


def route(**addresses) -> TopicRoute:
    queues = tuple(QueueData(name, 3, 2, 6) for name in addresses)
    return TopicRoute("T", queues, {name: BrokerData("c", name, members) for name, members in addresses.items()})


def test_only_queues_with_a_live_master_and_permission_can_be_written():
    known = route(a={0: "m"}, b={1: "s"})
    assert known.writable_queues() == [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]
    assert len(known.readable_queues()) == 6
    read_only = TopicRoute("T", (QueueData("a", 3, 2, 4),), known.brokers)
    assert read_only.writable_queues() == []


def test_neighbouring_writable_queues_are_of_different_brokers():
    names = [queue.broker_name for queue in route(a={0: "m"}, b={0: "n"}).writable_queues()]
    assert names == ["a", "b", "a", "b"]


def test_a_new_topic_gets_no_more_queues_than_the_default_topic_has():
    new = route(a={0: "m"}).for_new_topic("New", 8)
    assert [queue.topic for queue in new.writable_queues()] == ["New", "New"]
    assert len(route(a={0: "m"}).for_new_topic("New", 1).writable_queues()) == 1


def test_a_route_is_asked_for_every_poll_and_after_failures_but_not_in_a_storm():
    table = RouteCache(poll_interval_s=30, retry_interval_s=1)
    assert table.is_due("T", 0.0)
    table.learned("T", route(a={0: "m"}), 0.0)
    assert not table.is_due("T", 29.9)
    assert table.is_due("T", 30.0)
    assert table.may_refresh("T", 0.1)
    assert not table.may_refresh("T", 1.0)
    assert table.may_refresh("T", 1.1)
    table.ask_failed("T", 30.0)
    assert table.get("T") and not table.is_due("T", 59.0)


def test_a_budget_ends_with_its_attempts_or_its_time():
    budget = Budget(10.0, retries=2)
    for _ in range(3):
        assert budget.may_try(9.9)
        budget.started()
    assert not budget.may_try(0.0)
    assert not Budget(10.0, retries=2).may_try(10.0)


@pytest.mark.parametrize(("code", "again"), [(1, True), (2, True), (14, True), (16, True), (17, True), (13, False)])
def test_which_refusals_are_worth_another_broker(code, again):
    assert is_worth_sending_again(refusal(code, "no", "h:1")) is again


def test_silence_is_worth_another_broker():
    assert is_worth_sending_again(CallTimeout("silence"))


QUEUE = MessageQueue("T", "a", 0)


def test_a_suggestion_is_kept_per_queue():
    known = Suggestions()
    known.answered(QUEUE, 1, progress=True)
    assert known.broker_id(QUEUE) == 1
    assert known.broker_id(QUEUE._replace(queue_id=1)) == 0


def test_an_answer_that_leads_nowhere_sends_the_next_pull_to_the_master_after_a_growing_pause():
    known = Suggestions()
    pauses = []
    for _ in range(9):
        known.answered(QUEUE, 1, progress=False)
        assert known.broker_id(QUEUE) == 0
        pauses.append(known.pause_s(QUEUE))
    assert pauses == sorted(pauses) and pauses[0] < pauses[1] and pauses[-1] == PULLS.longest_s
    known.answered(QUEUE, 1, progress=True)
    assert (known.broker_id(QUEUE), known.pause_s(QUEUE)) == (1, 0.0)


def piece(index: int, count: int, next_offset: int, status=GetMessageStatus.FOUND) -> PullFrame:
    return PullFrame(b"", b"", [Segment(index, count, next_offset, 0, 99, status)], 0, 0)


def test_a_pull_of_ranges_goes_on_where_it_was_and_keeps_the_callers_numbers():
    progress = RangeProgress([QueueRange("T", 0, 0, 10), QueueRange("T", 1, 5, 5), QueueRange("T", 2, 0, 10)])
    assert [r.queue_id for r in progress.open_ranges()] == [0, 2]
    assert progress.advance(piece(0, 10, 10)).segments[0].range_index == 0
    assert progress.advance(piece(1, 4, 4)).segments[0].range_index == 2
    assert progress.open_ranges() == [QueueRange("T", 2, 4, 10)]
    assert progress.advance(piece(0, 6, 10)).segments[0].range_index == 2
    assert progress.open_ranges() == []


def test_a_range_that_a_broker_ends_early_is_not_asked_for_again():
    progress = RangeProgress([QueueRange("T", 0, 0, 10)])
    progress.open_ranges()
    progress.advance(piece(0, 0, 0, GetMessageStatus.OFFSET_TOO_SMALL))
    assert progress.open_ranges() == []


def test_a_broker_that_goes_back_in_a_range_is_not_believed():
    progress = RangeProgress([QueueRange("T", 0, 5, 10)])
    progress.open_ranges()
    with pytest.raises(BadAnswer, match="went back from offset 5 to 4"):
        progress.advance(piece(0, 1, 4))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.integers(0, 3))
def test_whatever_the_breaks_every_offset_of_a_range_comes_once(steps, break_every):
    progress = RangeProgress([QueueRange("T", 0, 0, sum(steps))])
    at, seen = 0, []
    asked = progress.open_ranges()
    for number, step in enumerate(steps):
        if break_every and number % break_every == 0:
            asked = progress.open_ranges()
            at = asked[0].from_offset
        seen += range(at, at + step)
        at += step
        progress.advance(piece(0, step, at))
    assert seen == list(range(sum(steps)))
    assert progress.open_ranges() == []


def test_a_queue_is_small_ordered_and_hashable_and_says_where_it_is() -> None:
    queue = MessageQueue("T", "broker-a", 3)
    assert pickle.loads(pickle.dumps(queue)) == queue and len(pickle.dumps(queue)) < 100
    assert sorted([MessageQueue("T", "b", 10), MessageQueue("T", "b", 9), queue])[-1] == queue
    assert {queue: 1}[MessageQueue("T", "broker-a", 3)] == 1
    assert str(queue) == "T@broker-a:3"


def test_a_range_of_a_queue_is_read_as_one_of_the_broker_that_the_call_names() -> None:
    planned = OffsetRange(MessageQueue("T", "broker-a", 3), 5, 9)
    assert pickle.loads(pickle.dumps(planned)) == planned
    assert (planned.topic, planned.queue_id) == ("T", 3)
    progress = RangeProgress([planned])
    assert progress.open_ranges() == [planned]
    progress.advance(PullFrame(b"", b"", [Segment(0, 2, 7, 0, 9, GetMessageStatus.FOUND)], 0, 0))
    assert progress.open_ranges() == [planned._replace(from_offset=7)]


def test_a_failed_commit_travels_with_its_result() -> None:
    result = CommitResult(broker_ids={"broker-a": 0}, failures={"broker-b": NoPermission("no")})
    found = pickle.loads(pickle.dumps(CommitFailed("not to broker-b", result)))
    assert isinstance(found, CommitFailed) and found.result.broker_ids == {"broker-a": 0}


@pytest.mark.parametrize(
    ("former", "now", "weaker"),
    [
        ("SYNC_MASTER", "ASYNC_MASTER", True),
        ("SYNC_MASTER", "SYNC_MASTER", False),
        ("ASYNC_MASTER", "ASYNC_MASTER", False),
        ("", "ASYNC_MASTER", False),
    ],
)
def test_a_promotion_is_weaker_if_an_ok_was_on_two_brokers(former, now, weaker):
    assert Promotion("a:1", 1, 0, broker_role=now, former_role=former).is_weaker is weaker
