"""Starts one Spark session, and one broker pair for each module.  Each test has topics and groups of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.processes import Processes
from tests.source.bench import Bench
from tests.support.spark_session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module")
def pair(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yields a master and its slave as a Bench."""
    with Processes(tmp_path_factory.mktemp("pair")) as processes:
        name_server = processes.start_namesrv()
        master, slave = processes.start_pair("broker-a", name_server, autoCreateTopicEnable=True)
        with Bench(spark, processes, name_server, master, slave) as bench:
            yield bench


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
