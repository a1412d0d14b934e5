"""The modules that Spark imports when it searches for data sources: a failing import disables all data sources."""

import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_lookup_imports_nothing_heavy() -> None:
    heavy = ["grpc", "pyarrow", "numpy", "google.protobuf", "rocketsim_client", "rocketsim_proto", "broker_service"]
    found = run(
        f"import sys, pyspark_rocketsim; print([m for m in {heavy} if m in sys.modules and m not in BASE])".replace(
            "BASE", "()"
        )
    )
    base = run(f"import sys, pyspark.sql.datasource; print([m for m in {heavy} if m in sys.modules])")
    assert found == base  # pyspark itself may import some of these modules


def test_the_lookup_does_not_need_what_only_reading_needs() -> None:
    blocked = "import sys\nfor name in ('grpc', 'rocketsim_client', 'rocketsim_proto'): sys.modules[name] = None\n"
    assert run(f"{blocked}import pyspark_rocketsim; print(pyspark_rocketsim.DefaultSource.name())") == "rocketsim"


def test_the_start_of_a_query_imports_only_what_asks_brokers() -> None:
    unneeded = ["admin", "pull_consumer", "message_view", "producer", "sending"]
    code = "import sys, rocketsim_source.stream_reader, rocketsim_client.cluster\n"
    found = run(f"{code}print([m for m in {unneeded} if 'rocketsim_client.' + m in sys.modules])")
    assert found == "[]"
    assert run(f"{code}print('pyarrow.compute' in sys.modules)") == "False"


def test_a_schema_and_the_plan_of_a_write_need_neither_numpy_nor_arrow() -> None:
    """The driver starts one process of its own for the schema, and one for the plan of a write."""
    modules = "rocketsim_source.schema, rocketsim_source.sink.writer"
    heavy = "print([m for m in ('grpc', 'numpy', 'pyarrow') if m in sys.modules])"
    assert run(f"import sys, {modules}; {heavy}") == run(f"import sys, pyspark.sql.datasource; {heavy}")


# This program does the same as pyspark.sql.worker.lookup_data_sources.
LOOKUP = """
import importlib, sys
from pkgutil import iter_modules
from pyspark.sql.datasource import DataSource
found = {m.name: importlib.import_module(m.name) for m in iter_modules() if m.name.startswith("pyspark_")}
print([c.DefaultSource.name() for c in found.values() if issubclass(c.DefaultSource, DataSource)])
"""


def test_spark_finds_the_format_in_a_module_of_the_right_name() -> None:
    assert run(LOOKUP) == "['rocketsim']"


def test_one_sibling_that_fails_to_import_takes_all_formats_with_it(tmp_path: Path) -> None:
    """Spark disables all formats in this case, so our own module must never raise an error."""
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('broken sibling')")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{LOOKUP}")
    assert "broken sibling" in failure.value.stderr
