"""Tests a Spark job with pytest: the job continues after a master has died, and counts each message once.

    python -m pytest examples/test_spark_job.py

The fixtures `rocketsim_pair` and `rocketsim_topic` belong to the extra `testing`, and pytest finds them by itself.
"""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketsim_client import Message, Producer
from rocketsim_testing import Pair


def counts(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    """The job: counts the messages of each tag."""
    options = {"nameServer": name_server, "subscribe": topic, "group": "counts", "startingOffsets": "earliest"}
    return spark.readStream.format("rocketsim").options(**options).load().groupBy("tags").count()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 1).getOrCreate()
    yield session
    session.stop()


# `spark` is the first argument, because Spark has to start before the pair: starting Spark's JVM forks this process.
def test_the_job_goes_on_after_a_failover(spark: SparkSession, rocketsim_pair: Pair, rocketsim_topic: str) -> None:
    with Producer(rocketsim_pair.name_server, timeout_s=60) as producer:
        producer.send_batch([Message(rocketsim_topic, b"x", tags="red") for _ in range(100)])
        job = counts(spark, rocketsim_pair.name_server, rocketsim_topic)
        query = job.writeStream.outputMode("complete").format("memory").queryName("found").start()
        query.processAllAvailable()
        rocketsim_pair.kill_master()
        rocketsim_pair.promote()
        producer.send(Message(rocketsim_topic, b"x", tags="red"))
    rocketsim_pair.wait_for_lag("counts", rocketsim_topic)
    assert [tuple(row) for row in spark.table("found").collect()] == [("red", 101)]
    query.stop()
