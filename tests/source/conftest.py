"""One Spark session, and one broker pair per module; each test has topics and groups of its own."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.processes import Processes
from tests.source.bench import Bench


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Made before any gRPC channel of this process: starting the JVM forks."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("rocketsim-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture(scope="module")
def pair(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A master and its slave, with the steps of `Bench`."""
    with Processes(tmp_path_factory.mktemp("pair")) as processes:
        name_server = processes.start_namesrv()
        master, slave = processes.start_pair("broker-a", name_server, autoCreateTopicEnable=True)
        with Bench(spark, processes, name_server, master, slave) as bench:
            yield bench


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
