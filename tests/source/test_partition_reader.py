"""An executor's worker keeps the brokers' suggestions between tasks."""

import pytest

from rocketsim_client.model import MessageQueue
from rocketsim_source.options.source_options import SourceOptions, source_options
from rocketsim_source.reading import partition_reader
from rocketsim_source.reading.partition_reader import worker_hints

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_reader, "hints_of_process", {})


def options(**given: str) -> SourceOptions:
    return source_options({"nameServer": "h:1", "topic": "T"} | given, streaming=True)


def test_suggestions_are_kept_for_the_next_task_of_the_group() -> None:
    """Brokers suggest by group: another group's readers may have been sent elsewhere."""
    worker_hints(options(group="g"), {})[Q0] = 1
    assert worker_hints(options(group="g", topic="T"), {Q1: 1}) == {Q0: 1, Q1: 1}
    assert worker_hints(options(group="other"), {}) == {}
    assert worker_hints(options(), {}) == {}
    assert worker_hints(options(group="g", nameServer="h:2"), {}) == {}


@pytest.mark.parametrize("scope", ["task", "driver", "task+driver"])
def test_without_the_worker_in_its_scope_nothing_is_kept(scope: str) -> None:
    worker_hints(options(suggestScope=scope), {Q1: 1})[Q0] = 1
    assert worker_hints(options(suggestScope=scope), {Q1: 2}) == {Q1: 2}
    assert worker_hints(options(), {}) == {}
