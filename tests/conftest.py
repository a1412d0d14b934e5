"""Sets up all tests: the environment of their processes, an event loop for `async def` tests, hypothesis without
deadlines, the order of files, and a watchdog.
"""

import asyncio
import inspect
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from testbed import spark_processes
from tests.support.file_order import Load, ordered
from tests.support.watchdog import Watchdog

TEST_TIMEOUT_S = 900.0  # ends a test that hangs, before faulthandler_timeout (pyproject.toml) ends the run

spark_processes.prepare()
# Hundreds of Python processes are started, and later ones use the modules that the first ones have compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Hides the contexts that the user of this machine has made with `rocketsim context`.
os.environ["XDG_CONFIG_HOME"] = os.devnull

# A test must not fail because the machine is slow.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "watchdog_timeout", "seconds without a word from any test after which the run is ended", default="1200"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watchdog(config, float(config.getini("watchdog_timeout"))))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters

    async def run() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})

    asyncio.run(run())
    return True


@pytest.hookimpl(trylast=True)  # runs last, so that it orders only the tests that `-m` and `-k` have selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    # Each process of pytest-xdist collects, and must find the same order.
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    order = ordered({path: load(of_file) for path, of_file in files.items()}, processes)
    items[:] = [item for path in order for item in files[path]]


def load(items: list[pytest.Item]) -> Load:
    """Returns the kind of load that a file with these tests makes: a Spark session, Spark, servers or none of these."""
    if any("spark" in getattr(item, "fixturenames", ()) for item in items):
        return Load.SESSION
    if any(item.get_closest_marker("spark") for item in items):
        return Load.SPARK
    return Load.SERVERS if any(item.get_closest_marker("cluster") for item in items) else Load.OTHER


@pytest.fixture(scope="module", params=["compiled", "python"])
def record_kernels(request):
    """Runs the module's tests with the compiled record codec, and then with the one in Python."""
    from rocketsim_proto.records import kernels

    from tests.support.record_codec import NOT_IN_USE

    if kernels.compiled is None and request.param == "compiled":
        pytest.skip(NOT_IN_USE)
    before = kernels.compiled
    kernels.compiled = before if request.param == "compiled" else None
    yield
    kernels.compiled = before
