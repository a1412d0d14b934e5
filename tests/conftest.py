"""For all tests: the environment of what they start, an event loop for `async def` tests, hypothesis without deadlines,
the order of files, a watchdog."""

import asyncio
import inspect
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.watchdog import Watchdog

TEST_TIMEOUT_S = 280.0  # ends a test that hangs, before faulthandler_timeout (pyproject.toml) ends the run

# A test's JVM ends before its optimizing compiler pays, and collects its garbage on the processor that it has.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto")
# Hundreds of Python processes are started: the first ones leave compiled modules to the others.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine may be as slow as it likes.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "watchdog_timeout", "seconds without a word from any test after which the run is ended", default="420"
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts Spark comes first: it takes longest, and a process that has not used gRPC yet forks a JVM safely."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
