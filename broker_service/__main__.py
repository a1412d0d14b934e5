"""Starts a server process: `python -m broker_service broker|namesrv -c FILE [KEY=VALUE …]`.

No other module of the servers reads the command line or handles signals.
"""

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from rocketsim_proto.allocation import FreedMemory, keep_freed_memory
from rocketsim_proto.printable import printable

from broker_service.config.loading import load_broker_config, load_namesrv_config
from broker_service.errors import RocketSimError
from broker_service.runtime.garbage import collect_what_follows
from broker_service.runtime.without_pandas import leave_pandas_out

logger = logging.getLogger(__name__)

Config = TypeVar("Config")
INTERRUPTED = 130
RETURN_MEMORY_EVERY_S = 10.0
FILES_MAX = 65536  # thousands of queues need thousands of open files; a shell's limit is often 1024


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m broker_service", description="A RocketSim server process.")
    parser.add_argument("kind", choices=("broker", "namesrv"))
    parser.add_argument("-c", "--config", required=True, type=Path, help="a .properties file with RocketMQ's keys")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="override a key of the file")
    arguments = parser.parse_args(argv)
    log_to_standard_error()
    logging.captureWarnings(True)
    allow_many_files()
    keep_freed_memory()
    leave_pandas_out()
    overrides = dict(setting.partition("=")[::2] for setting in arguments.settings)
    gc.disable()  # A search for garbage finds nothing in imported modules, and takes a tenth of the time of a start.
    try:
        # A name server does not import the broker, and so starts in half the time.
        if arguments.kind == "broker":
            from broker_service.node.app import run_broker

            collect_what_follows()
            asyncio.run(until_signal(load_broker_config(arguments.config, overrides), run_broker))
        else:
            from broker_service.namesrv.server import run_namesrv

            collect_what_follows()
            asyncio.run(until_signal(load_namesrv_config(arguments.config, overrides), run_namesrv))
    except RocketSimError as error:
        # The operator gets one line for each error, and no traceback.
        for line in str(error).split("\n"):
            logger.critical("%s", line)
        return 1
    return 0


class LineFormatter(logging.Formatter):
    """Writes each log record as one line of printable characters; the indented lines of a traceback follow.

    A name from a client may contain line breaks and terminal codes.  In a line of printable characters, a client's name
    can neither look like another log line nor control the operator's terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, error: Any) -> str:
        return "\n".join(f"  {printable(line)}" for line in super().formatException(error).split("\n"))

    def formatStack(self, stack: str) -> str:
        return "\n".join(f"  {printable(line)}" for line in stack.split("\n"))


def log_to_standard_error() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def until_signal(config: Config, run: Callable[[Config, asyncio.Event], Awaitable[None]]) -> None:
    """Runs until the first SIGTERM or SIGINT, which starts a clean stop.  A second signal ends the process at once."""
    shutdown = asyncio.Event()

    def on_signal(number: int) -> None:
        if shutdown.is_set():
            logger.warning("%s again: exiting at once", signal.Signals(number).name)
            os._exit(INTERRUPTED)
        logger.info("%s: stopping", signal.Signals(number).name)
        shutdown.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    memory_return = asyncio.create_task(return_memory(), name="freed memory")
    try:
        await run(config, shutdown)
    finally:
        memory_return.cancel()


async def return_memory() -> None:
    """Gives memory that a burst of calls has freed back to the operating system, until cancelled."""
    freed = FreedMemory()
    while True:
        await asyncio.sleep(RETURN_MEMORY_EVERY_S)
        if freed.is_much():
            await asyncio.to_thread(freed.give_back)


if __name__ == "__main__":
    sys.exit(main())
