"""Runs a real broker in this process, on an event loop of its own, for tests of the synchronous client."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.node.node import BrokerNode
from rocketsim_client import Cluster
from testbed.polling import PATIENCE_S
from tests.support.brokers import running

T = TypeVar("T")


class BrokerThread:
    """A broker on the event loop of a thread, whose `node` may be changed only with `do`.  `cluster` is for clients,
    with time-outs that are long enough for a slow machine.
    """

    def __init__(self, root: Path, **keys: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._stack = AsyncExitStack()
        self._thread.start()
        self.cluster: Cluster | None = None
        try:
            self.node: BrokerNode = self._run(self._stack.enter_async_context(running(root, **keys)))
        except BaseException:
            self.stop()
            raise
        self.cluster = Cluster("", brokers=self.brokers, timeout_s=PATIENCE_S)

    @property
    def brokers(self) -> dict[str, dict[int, str]]:
        return {"broker-a": {0: self.node.address}}

    def do(self, act: Callable[[], T]) -> T:
        async def on_the_loop() -> T:
            return act()

        return self._run(on_the_loop())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        result: T = self._run(work)
        return result

    def make_topic(self, name: str, queues: int = 1) -> None:
        self.do(lambda: self.node.topics.put(TopicConfig(name, queues, queues), 0))

    def make_group(self, name: str, **settings: Any) -> None:
        self.do(lambda: self.node.groups.put(SubscriptionGroup(name, **settings), 0))

    def stop(self) -> None:
        if self.cluster is not None:
            self.cluster.close()
        try:
            self._run(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


@contextmanager
def broker_thread(root: Path, **keys: Any) -> Iterator[BrokerThread]:
    started = BrokerThread(root, **keys)
    try:
        yield started
    finally:
        started.stop()
