"""Deliveries without an ack come again or become dead letters, and receipt handles are checked."""

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.retry_policy import DEFAULT, retry_times_ms
from broker_service.pop import outcome, receipt_handle
from broker_service.pop.outcome import Outcome
from broker_service.pop.receipt_handle import ReceiptHandle
from broker_service.state import moves
from broker_service.state.state import Due, UnderWay
from broker_service.state.transitions import DeliveryId, Move, Place

PLACE = Place("g", "my_t", 3)
RETRIED = Place("g", "%RETRY%g+my_t", 0)
DELIVERY = UnderWay(0xABC, 1, 5_000, 10_000, 0, True, "client")
MESSAGE = Record("my_t", b"body", properties={"UNIQ_KEY": "id", "TAGS": "a"}, reconsume_times=0, born_timestamp=7)


@pytest.mark.parametrize(
    ("attempt", "counted", "renewed_until_ms", "is_connected", "expected"),
    [
        (1, True, 0, False, Outcome.RETRY),
        (2, True, 0, False, Outcome.RETRY),
        (3, True, 0, False, Outcome.DEAD_LETTER),  # retryMaxTimes 2: three deliveries
        (3, False, 0, False, Outcome.RETRY),
        (3, True, 10_001, True, Outcome.RENEW),
        (1, True, 10_001, False, Outcome.RETRY),
        (1, True, 10_000, True, Outcome.RETRY),  # the delivery was renewed for long enough
        (1, True, 0, True, Outcome.RETRY),
    ],
)
def test_outcome(attempt: int, counted: bool, renewed_until_ms: int, is_connected: bool, expected: Outcome) -> None:
    delivery = DELIVERY._replace(attempt=attempt, counted=counted, renewed_until_ms=renewed_until_ms)
    assert outcome.outcome_of(delivery, 10_000, 3, is_connected=is_connected) is expected


@pytest.mark.parametrize(
    ("popped_ms", "deadline_ms", "expected"),
    [
        (5_000, 65_000, Outcome.RETRY),  # popped from an earlier master: the client may have no answer
        (5_000, 65_001, Outcome.RENEW),  # it was renewed
        (5_001, 65_001, Outcome.RENEW),  # by this master
    ],
)
def test_what_another_master_delivered_is_renewed_if_it_had_been(
    popped_ms: int, deadline_ms: int, expected: Outcome
) -> None:
    delivery = DELIVERY._replace(
        attempt=3, popped_ms=popped_ms, deadline_ms=deadline_ms, renewed_until_ms=3_600_000, counted=True
    )
    found = outcome.outcome_of(delivery, 65_001, 3, is_connected=True, took_over_after_ms=5_000)
    assert found is expected, "and it is no dead letter"


@pytest.mark.parametrize(
    ("size", "left_out"), [(30_000, set()), (32_700, {"RETRY_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"}), (32_750, {"BIG"})]
)
def test_a_dead_letter_leaves_out_what_does_not_fit_the_brokers_own_first(size: int, left_out: set[str]) -> None:
    message = replace(MESSAGE, properties={"BIG": "x" * size, "A": "a"})
    copy = moves.dead_letter(message, Due(PLACE, 5, DELIVERY))
    record.encode(copy)
    assert left_out.isdisjoint(copy.properties)
    assert ("BIG" in copy.properties) is ("BIG" not in left_out)
    assert ("RETRY_TOPIC" in copy.properties) is (not left_out)
    assert copy.properties["A"] == "a"
    assert moves.move_of(copy) == Move(PLACE, DeliveryId(0xABC, 5), True)


def test_no_retries_are_one_delivery() -> None:
    assert [SubscriptionGroup(retry_max_times=times).max_attempts for times in (-1, 0, 1, 16)] == [1, 1, 2, 17]


def test_back_off_is_rocketmqs_schedule() -> None:
    assert [SubscriptionGroup().backoff_ms(attempt) for attempt in (0, 1, 2, 18, 19, 60_000)] == [
        *(1000, 1000, 5000, 7_200_000, 7_200_000, 7_200_000)
    ]
    exponential = SubscriptionGroup("g", group_retry_policy={"type": "EXPONENTIAL"})
    assert [exponential.backoff_ms(attempt) for attempt in (1, 2, 3, 11, 12, 60_000)] == [
        *(5000, 10_000, 20_000, 5_120_000, 7_200_000, 7_200_000)
    ]


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        ({}, DEFAULT),
        ({"type": None, "customizedRetryPolicy": None}, DEFAULT),
        ({"type": "CUSTOMIZED", "exponentialRetryPolicy": {"initial": 1}}, DEFAULT),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [0, 700]}}, (0, 700)),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 9, "max": 100, "multiplier": 3}},
            (9, 27, 81, 100),
        ),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 9, "multiplier": 1}}, (9,)),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 9, "max": 4}}, (4,)),
    ],
)
def test_a_retry_policy_is_rocketmqs_json(policy: dict[str, Any], times: tuple[int, ...]) -> None:
    assert retry_times_ms(policy) == times


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "LINEAR"},
        {"customizedRetryPolicy": {"next": []}},
        {"customizedRetryPolicy": {"next": [1] * 65}},
        {"customizedRetryPolicy": {"next": [-1]}},
        {"customizedRetryPolicy": {"next": [43_200_001]}},
        {"customizedRetryPolicy": {"next": [1.5]}},
        {"customizedRetryPolicy": [1]},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 0}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 0}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": True}},
    ],
    ids=str,
)
def test_what_is_no_retry_policy_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r" must (be|have) "):
        retry_times_ms(policy)
    with pytest.raises(ValueError, match="group g: groupRetryPolicy"):
        SubscriptionGroup("g", group_retry_policy=policy)


def test_a_retried_message_says_which_delivery_it_settles_and_counts_the_attempt() -> None:
    copy = moves.retry_copy(MESSAGE, Due(PLACE, 42, DELIVERY))
    assert (copy.topic, copy.queue_id, copy.reconsume_times) == ("%RETRY%g+my_t", 0, 1)
    assert (copy.body, copy.born_timestamp, copy.properties["UNIQ_KEY"], copy.properties["TAGS"]) == (
        *(b"body", 7, "id", "a"),
    )
    assert (copy.properties["ORIGIN_GROUP"], copy.properties["1ST_POP_TIME"]) == ("g", "5000")
    assert moves.move_of(copy) == Move(PLACE, DeliveryId(0xABC, 42), is_dead_letter=False)
    again = moves.retry_copy(copy, Due(RETRIED, 7, DELIVERY._replace(attempt=2, popped_ms=9_000)))
    assert (again.topic, again.reconsume_times, again.properties["1ST_POP_TIME"]) == ("%RETRY%g+my_t", 2, "5000")
    assert moves.move_of(again) == Move(RETRIED, DeliveryId(0xABC, 7), is_dead_letter=False)


def test_what_is_given_back_counts_no_attempt() -> None:
    due = Due(RETRIED, 7, DELIVERY._replace(attempt=2, counted=False))
    assert moves.retry_copy(MESSAGE, due).reconsume_times == 1


def test_a_dead_letter_names_where_it_comes_from() -> None:
    copy = moves.dead_letter(replace(MESSAGE, reconsume_times=2), Due(RETRIED, 7, DELIVERY._replace(attempt=3)))
    assert (copy.topic, copy.queue_id, copy.reconsume_times) == ("%DLQ%g", 0, 3)
    assert copy.properties["RETRY_TOPIC"] == "%RETRY%g+my_t"
    assert (copy.properties["DLQ_ORIGIN_TOPIC"], copy.properties["DLQ_ORIGIN_MESSAGE_ID"]) == ("my_t", "id")
    assert moves.move_of(copy) == Move(RETRIED, DeliveryId(0xABC, 7), is_dead_letter=True)


@pytest.mark.parametrize("source", [None, "", "1 2 3", "x 1 2 g t", "1 2 3 g t u"])
def test_other_records_of_such_topics_settle_nothing(source: str | None) -> None:
    properties = {} if source is None else {"__SOURCE": source}
    assert moves.move_of(Record("%RETRY%g+t", b"", properties=properties)) is None


numbers = st.integers(0, 2**64 - 1)


@given(st.booleans(), st.integers(0, 2**32 - 1), numbers, numbers)
def test_a_handle_is_read_as_it_was_given(is_retry: bool, queue_id: int, pop: int, queue_offset: int) -> None:
    handle = ReceiptHandle(is_retry, queue_id, DeliveryId(pop, queue_offset))
    text = receipt_handle.encode(handle)
    assert receipt_handle.decode(text) == handle
    assert receipt_handle.decode(text[:-4]) is None


@given(st.text())
def test_what_is_no_handle_is_none(text: str) -> None:
    assert receipt_handle.decode(text) is None


@pytest.mark.parametrize("data", [b"\2" + bytes(21), b"\1\2" + bytes(20), bytes(22)])
def test_handles_of_other_versions_are_none(data: bytes) -> None:
    assert receipt_handle.decode(base64.urlsafe_b64encode(data).decode()) is None
