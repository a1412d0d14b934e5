"""testbed/spark_python changes how the Python processes of Spark start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pyspark

from testbed.polling import PROCESS_PATIENCE_S
from testbed.spark_processes import python_path

SECRET = b"secret"


def test_a_process_of_a_stream_connects_before_it_imports_spark(tmp_path):
    """py4j, which Spark imports, waits here until the JVM's side of the connection is done."""
    (tmp_path / "py4j.py").write_text("import sys\nsys.exit(sys.stdin.read())\n")
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        jvm.settimeout(PROCESS_PATIENCE_S)
        environment = os.environ | {
            "PYTHONPATH": python_path(tmp_path),
            "PYTHON_WORKER_FACTORY_PORT": str(jvm.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
        }
        command = [sys.executable, "-m", "pyspark.sql.streaming.python_streaming_source_runner"]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            connection, _ = jvm.accept()
            with connection:
                size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
                assert connection.recv(size, socket.MSG_WAITALL) == SECRET
                connection.sendall((2).to_bytes(4, "big") + b"ok")
                assert "now it imports" in process.communicate("now it imports", PROCESS_PATIENCE_S)[1]
        finally:
            process.kill()
            process.communicate()


def test_the_modules_of_a_process_of_spark_are_the_installed_ones(tmp_path):
    """The script finds Spark by its own path, and Spark's archive contains a copy of the script."""
    home = Path(pyspark.__file__).parent
    archive = home / "python/lib/pyspark.zip"
    assert archive.exists()
    ended = subprocess.run(
        [sys.executable, "-m", "pyspark.find_spark_home"],
        env={name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        | {"PYTHONPATH": python_path(archive)},
        capture_output=True,
        text=True,
    )
    assert ended.stdout.strip() == str(home), ended.stderr
