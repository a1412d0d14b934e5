"""Fixtures for pytest, which finds them by the package's entry point.  The servers start with the first test that uses
a fixture.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # at run time, gRPC is imported only by the first test that needs it
    from rocketsim_testing import Pair


@pytest.fixture(scope="session")
def rocketsim_session_pair() -> "Iterator[Pair]":
    """A broker pair for the whole session.  The pair stays as each test leaves it, so a killed broker is not started
    again.
    """
    from rocketsim_testing import pair

    with pair() as started:
        yield started


@pytest.fixture
def rocketsim_pair(rocketsim_session_pair: "Pair") -> "Iterator[Pair]":
    """The broker pair of the session.  Brokers that the test has killed are started again after the test."""
    yield rocketsim_session_pair
    rocketsim_session_pair.restart()


@pytest.fixture
def rocketsim_topic(rocketsim_pair: "Pair") -> str:
    """The name of a new topic for this test, with four queues."""
    return rocketsim_pair.make_topic()
