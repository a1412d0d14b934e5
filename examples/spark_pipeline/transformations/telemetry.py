"""Fills the table `readings` from the topic `telemetry`, and the topic `alarms` from that table."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
name_server = os.environ["ROCKETSIM_NAMESRV"]


@dp.table
def readings() -> DataFrame:
    stream = spark.readStream.format("rocketsim")
    stream = stream.options(nameServer=name_server, topic="telemetry", startingOffsets="earliest")
    return stream.load().selectExpr("CAST(body AS STRING) AS reading", "tags", "storeTimestamp")


dp.create_sink("alarms", "rocketsim", {"nameServer": name_server, "topic": "alarms"})


@dp.append_flow(target="alarms")
def send_alarms() -> DataFrame:
    return spark.readStream.table("readings").where("tags = 'alarm'").selectExpr("reading AS body", "tags")
