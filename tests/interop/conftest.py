"""Starts one Spark session for the tests with Spark."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.spark_session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with spark_session() as session:
        yield session
