"""Sends are remembered for a minute, up to a limit."""

from broker_service.wire.v2 import recent_sends
from broker_service.wire.v2.recent_sends import REMEMBERED_S, RecentSends, SendId, Stored


def sent(message_id: str, body_crc: int = 7) -> SendId:
    return SendId(message_id, body_crc)


def test_a_send_is_remembered_for_a_minute() -> None:
    recent = RecentSends()
    recent.put("T", sent("a"), Stored(1, 100), 10.0)
    assert recent.get("T", sent("a"), 10.0 + REMEMBERED_S) == Stored(1, 100)
    assert recent.get("T", sent("a"), 10.1 + REMEMBERED_S) is None
    assert recent.get("M", sent("a"), 10.0) is None
    assert recent.get("T", sent("a", 8), 10.0) is None
    recent.put("T", sent("b"), Stored(2, 200), 10.1 + REMEMBERED_S)
    assert len(recent) == 1


def test_the_oldest_send_is_forgotten_when_there_are_too_many(monkeypatch) -> None:
    monkeypatch.setattr(recent_sends, "MOST", 2)
    recent = RecentSends()
    for number, message_id in enumerate("abc"):
        recent.put("T", sent(message_id), Stored(number, number), 0.0)
    assert [recent.get("T", sent(message_id), 0.0) for message_id in "abc"] == [None, Stored(1, 1), Stored(2, 2)]
