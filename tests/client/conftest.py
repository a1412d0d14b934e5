"""A cluster in this process for every test that asks for one: two pairs with topic T."""

from collections.abc import Iterator

import pytest

from tests.support.fake_broker import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("T") as fake:
        for name in ("broker-a", "broker-b"):
            for broker_id in (0, 1):
                fake.start(name, broker_id)
        yield fake
