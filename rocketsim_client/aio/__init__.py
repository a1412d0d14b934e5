"""Producer and consumers for programs that use asyncio: the same clients, whose blocking calls run in threads.

One rule for cancellation: a call that was made goes on in its thread, and cancelling the task ends only the wait for
it.  A receive hands messages out in the task itself, so that a cancelled one has taken none.
"""

from rocketsim_client.aio.consumer import AsyncConsumer
from rocketsim_client.aio.producer import AsyncProducer
from rocketsim_client.aio.pull_consumer import AsyncPullConsumer

__all__ = ["AsyncConsumer", "AsyncProducer", "AsyncPullConsumer"]
