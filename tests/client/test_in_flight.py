"""A consumer knows which messages it holds, and which of them it may hand out."""

from math import inf

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from rocketsim_client.consuming.in_flight import InFlight
from rocketsim_client.received_message import ReceivedMessage

SIZE = 200  # bytes of each record


def message(handle: str, message_group: str = "") -> ReceivedMessage:
    properties = {record.PROPERTY_SHARDING_KEY: message_group} if message_group else {}
    data = record.encode(Record(topic="T", body=b"", properties=properties))
    data = record.encode(Record(topic="T", body=b"x" * (SIZE - len(data)), properties=properties))
    return ReceivedMessage(data, 0, 0, 1, 0, "broker-a", "T", handle, 1)


def filled(
    *handles: str, most: int = 10, most_bytes: int = 10**6, in_order: bool = False, left_s: float = 60
) -> InFlight:
    """Returns an InFlight with these messages; the first letter of a handle is its message group."""
    made = InFlight(most, most_bytes, invisible_s=60, renew_for_s=1000)
    for handle in handles:
        made.add(message(handle, handle[0]), left_s, 0, in_order=in_order)
    return made


def names(messages: list[ReceivedMessage]) -> list[str]:
    return [one.receipt_handle for one in messages]


def test_messages_are_handed_out_once_and_count_until_they_are_settled() -> None:
    held = filled("a1", "a2", "b1", most=4)
    assert held.room == 1
    assert names(held.hand_out(2, 0)) == ["a1", "a2"]
    assert names(held.hand_out(9, 0)) == ["b1"]
    assert held.hand_out(9, 0) == [] and held.room == 1
    held.settle("a2")
    held.settle("a2")
    assert held.room == 2


def test_in_order_one_of_a_message_group_is_handed_out_at_a_time() -> None:
    held = filled("a1", "a2", "b1", "b2", in_order=True)
    assert names(held.hand_out(9, 0)) == ["a1", "b1"]
    assert held.hand_out(9, 0) == [] and held.has_waiting
    held.settle("b1")
    assert names(held.hand_out(9, 0)) == ["b2"]
    held.settle("a1")
    assert names(held.hand_out(9, 0)) == ["a2"]


def test_what_waits_behind_a_message_of_its_group_can_be_taken_out() -> None:
    held = filled("a1", "a2", "b1", "a3", in_order=True)
    held.hand_out(1, 0)
    assert names(held.behind("a1")) == ["a2", "a3"] and len(held) == 4
    held.settle_with_those_behind("a1")
    assert names(held.hand_out(9, 0)) == ["b1"] and len(held) == 1
    unordered = filled("a1", "a2")
    unordered.hand_out(1, 0)
    assert unordered.behind("a1") == []
    unordered.settle_with_those_behind("a1")
    assert len(unordered) == 1


def test_what_is_past_its_deadline_is_neither_handed_out_nor_counted() -> None:
    held = filled("a1", "a2", in_order=True, left_s=10)
    assert names(held.hand_out(1, 0)) == ["a1"]
    held.moved("a2", 0, 30)
    held.expire(10)
    assert len(held) == 1
    assert held.hand_out(9, 30) == [] and len(held) == 0
    again = filled("a1", "a2", in_order=True, left_s=10)
    again.hand_out(1, 0)
    again.moved("a2", 0, 30)
    again.expire(10)
    assert names(again.hand_out(9, 10)) == ["a2"]


def test_in_order_a_message_that_nobody_settles_does_not_hold_up_its_next_delivery() -> None:
    held = filled("a1", "a2", "b1", in_order=True, left_s=10)
    assert names(held.hand_out(9, 0)) == ["a1", "b1"]
    held.moved("a2", 0, 30)  # a2 waits for a1, and must not become visible before it
    assert held.hand_out(9, 10) == []
    for handle in ("a3", "a4"):  # the broker delivers both messages again
        held.add(message(handle, "a"), 60, 11, in_order=True)
    assert names(held.hand_out(9, 11)) == ["a3"]
    held.settle("a1")  # an ack that comes too late
    assert held.hand_out(9, 11) == []
    held.settle("a3")
    assert names(held.hand_out(9, 11)) == ["a4"]


def test_what_has_less_than_half_of_its_time_left_is_renewed_as_long_as_that_is_wanted() -> None:
    held = filled("a1", "a2", left_s=60)
    held.moved("a2", 0, 90)
    assert held.to_renew(30) == [] and held.next_renewal(30) == 30
    assert names(held.to_renew(31)) == ["a1"]
    held.moved("a1", 31, 4)
    assert held.next_renewal(31) == 33
    assert names(held.to_renew(34)) == ["a1"]
    assert names(held.to_renew(999)) == ["a1", "a2"] and held.next_renewal(999) == 33
    assert held.to_renew(1000) == [] and held.next_renewal(1000) == inf
    assert filled().next_renewal(0) == inf


def test_at_the_end_those_that_were_handed_out_are_told_from_the_others() -> None:
    held = filled("a1", "a2", "b1", in_order=True)
    held.hand_out(1, 0)
    handed_out, waiting = held.take_all()
    assert (names(handed_out), names(waiting), len(held)) == (["a1"], ["a2", "b1"], 0)
    assert held.hand_out(9, 0) == []


def test_there_is_room_until_one_of_the_two_limits_is_reached() -> None:
    held = filled("a1", "a2", most_bytes=2 * SIZE + 1)
    assert (held.room, held.size_bytes) == (8, 2 * SIZE)
    held.add(message("a3"), 60, 0, in_order=False)
    assert (held.room, held.size_bytes) == (0, 3 * SIZE)
    held.settle("a1")
    held.settle("a1")
    assert (held.room, held.size_bytes) == (8, 2 * SIZE)
    assert filled(most_bytes=1).room == 10
    assert filled("a1", "a2", most=2, most_bytes=2 * SIZE).room == 0


def test_bytes_are_free_again_however_a_message_ends() -> None:
    held = filled("a1", "a2", "a3", "b1", "b2", in_order=True, left_s=10)
    held.add(message("a1", "a"), 10, 0, in_order=True)  # the same delivery is added a second time
    assert held.size_bytes == 5 * SIZE
    assert names(held.hand_out(1, 0)) == ["a1"]
    held.settle_with_those_behind("a1")
    assert held.size_bytes == 2 * SIZE
    held.moved("b1", 0, 20)
    held.expire(10)
    assert held.size_bytes == SIZE
    assert held.hand_out(9, 20) == [] and held.size_bytes == 0
    held.add(message("c1", "c"), 10, 20, in_order=True)
    held.take_all()
    assert held.size_bytes == 0
