"""An alert for a job that runs every few minutes: finds the groups that are too far behind.

    python examples/spark_lag_alert.py 127.0.0.1:9876 10000

Prints a line for each group and topic whose lag is larger than the given number, and ends with status 1 if there is
such a line.
"""

import os
import sys

from pyspark.sql import SparkSession


def behind(spark: SparkSession, name_server: str, most: int) -> list[str]:
    lags = spark.read.format("rocketsim").options(nameServer=name_server, view="lag").load()
    rows = lags.where(lags.lag > most).orderBy(lags.lag.desc()).collect()
    return [f"group {row.group} is {row.lag} messages behind in {row.topic}" for row in rows]


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = behind(SparkSession.builder.getOrCreate(), sys.argv[1], int(sys.argv[2]))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
