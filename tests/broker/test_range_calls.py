from broker_service.broker.reads import range_calls
from broker_service.broker.reads.range_calls import RangeCalls


def test_pulls_are_counted_by_group_and_topic() -> None:
    calls = RangeCalls()
    calls.note("g", ["t", "u"], is_stream=True)
    calls.note("g", ["t"], is_stream=False)
    assert (calls.of("g", "t"), calls.of("g", "u"), calls.of("h", "t")) == ((1, 1), (1, 0), (0, 0))


def test_only_the_latest_callers_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(range_calls, "MOST", 2)
    calls = RangeCalls()
    for group in ("a", "b", "a", "c"):
        calls.note(group, ["t"], is_stream=True)
    assert [calls.of(group, "t").over_streams for group in "abc"] == [2, 0, 1]
