"""Changes how the Python processes of Spark start in tests and in smoke benchmarks.

Python imports this module when it starts, because `testbed.spark_processes` puts its folder on PYTHONPATH.

- A process that Spark starts for a stream connects to the JVM before it imports anything else.  The JVM waits ten
  seconds for this connection (Spark's `PythonWorkerFactory.createSimpleWorker`).  Spark's own code connects after its
  imports, which may take longer on a busy machine.
- A process imports Spark's modules from where they are installed, not from the archive that Spark puts first on the
  path.  From the archive, every process would compile the modules again, which takes two thirds of the CPU time of its
  start.
"""

import os
import socket
import struct
import sys


def connect(port, secret):
    """Connects to the JVM.  Returns the same as `pyspark.util.local_connect_and_auth`: a file, and its socket."""
    connection = socket.create_connection(("127.0.0.1", port))
    file = connection.makefile("rwb", 1 << 16)
    file.write(struct.pack("!i", len(secret)) + secret)
    file.flush()
    (size,) = struct.unpack("!i", file.read(4))
    if file.read(size) != b"ok":
        raise ConnectionError("Spark's JVM did not take the secret of its process")
    return file, connection


def give(made):
    """Makes Spark's code use the given connection in place of the first one that it would open."""
    from pyspark import util

    usual = util.local_connect_and_auth

    def first(*_):
        util.local_connect_and_auth = usual
        return made

    util.local_connect_and_auth = first


if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark."):
    sys.path[:] = [path for path in sys.path if not path.endswith(("/pyspark.zip", "-src.zip"))]
    if port := os.environ.get("PYTHON_WORKER_FACTORY_PORT"):
        give(connect(int(port), os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()))
