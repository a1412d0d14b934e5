"""What Spark imports whenever it looks for data sources: one such module that fails disables all of them."""

import subprocess
import sys


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
    assert found == base  # whatever pyspark itself imports


def test_the_lookup_does_not_need_what_only_reading_needs() -> None:
    blocked = "import sys\nfor name in ('grpc', 'rocketsim_client', 'rocketsim_proto'): sys.modules[name] = None\n"
    assert run(f"{blocked}import pyspark_rocketsim; print(pyspark_rocketsim.DefaultSource.name())") == "rocketsim"


def test_spark_finds_the_format_in_a_module_of_the_right_name() -> None:
    code = (
        "from pkgutil import iter_modules\n"
        "from pyspark.sql.datasource import DataSource\n"
        "import importlib\n"
        "found = {m.name: importlib.import_module(m.name) for m in iter_modules() if m.name.startswith('pyspark_')}\n"
        "print([c.DefaultSource.name() for c in found.values() if issubclass(c.DefaultSource, DataSource)])"
    )
    assert run(code) == "['rocketsim']"
