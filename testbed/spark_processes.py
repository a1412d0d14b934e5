"""Configures the processes of Spark in tests and in smoke benchmarks.

`python -m testbed.spark_processes FILE` writes the classes that Spark loads into FILE, a class-data archive of the JVM,
and prints the options with which JVMs start from it.  With the archive, a test run that starts Spark many times needs a
quarter less CPU.
"""

import os
import subprocess
import sys
from pathlib import Path

# These JVMs end before the optimizing compiler pays off, and they share few processors with other work.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
# By default the JVM and a Python process wait 15 s for each other's connection, and two minutes for an answer.
PATIENT = "-Dspark.python.authenticate.socketTimeout=900s -Dspark.network.timeout=900s"
# Suppresses the JVM's warnings on standard output, for example that a class path is not the archive's.
QUIET = "-Xlog:disable"
# The folder with the module that Spark's Python processes import first.
PYTHON_PROCESSES = Path(__file__).with_name("spark_python")


def prepare() -> None:
    """Configures the JVMs that this process and its children start from now on, and their Python processes."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", f"{SHORT_LIVED} {PATIENT}")
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH", ""))


def python_path(*folders: object) -> str:
    """Returns the PYTHONPATH for a process that uses Spark.  The path has `spark_python` first, and then the given
    folders.
    """
    return os.pathsep.join(dict.fromkeys(map(str, filter(None, (PYTHON_PROCESSES, *folders)))))


SOME_OF_SPARK = """
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = session.config("spark.sql.shuffle.partitions", "1").getOrCreate()
counts = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 9).load().groupBy("value").count()
writer = counts.writeStream.outputMode("complete").format("memory").queryName("counts")
query = writer.trigger(availableNow=True).start()
assert query.awaitTermination(900)
spark.table("counts").orderBy("value").collect()
spark.range(10).mapInArrow(lambda batches: batches, "id long").toArrow()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()  # ends the JVM, which writes the archive now
assert jvm.wait() == 0
"""


def archive_classes(file: str) -> None:
    environment = os.environ | {
        "JDK_JAVA_OPTIONS": f"{SHORT_LIVED} {PATIENT} {QUIET} -XX:ArchiveClassesAtExit={file}",
        "PYTHONPATH": python_path(),
        "PYSPARK_PYTHON": sys.executable,
    }
    subprocess.run([sys.executable, "-c", SOME_OF_SPARK], env=environment, stdout=sys.stderr, check=True)


if __name__ == "__main__":
    archive_classes(sys.argv[1])
    print(SHORT_LIVED, PATIENT, QUIET, f"-XX:SharedArchiveFile={sys.argv[1]}")
