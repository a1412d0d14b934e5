"""Fixtures for pytest, which finds them by the package's entry point.  Servers start with the first test that asks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # gRPC is imported by the first test that needs it
    from rocketsim_testing import Pair


@pytest.fixture(scope="session")
def rocketsim_session_pair() -> "Iterator[Pair]":
    """One pair for the whole session.  It stays as each test leaves it, so a killed broker stays killed."""
    from rocketsim_testing import pair

    with pair() as started:
        yield started


@pytest.fixture
def rocketsim_pair(rocketsim_session_pair: "Pair") -> "Iterator[Pair]":
    """The pair of the session.  Brokers that the test has killed run again afterwards."""
    yield rocketsim_session_pair
    rocketsim_session_pair.restart()


@pytest.fixture
def rocketsim_topic(rocketsim_pair: "Pair") -> str:
    """A new topic for this test, with four queues."""
    return rocketsim_pair.make_topic()
