import pytest

from broker_service.broker.core import master_loop


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the broker's own task, which appends pending changes, sleep for an hour unless something wakes it.  A
    deadline that is more than a second away does not wake it.
    """
    monkeypatch.setattr(master_loop, "LONGEST_SLEEP_S", 3600.0)
