"""Producer and consumers for programs that use asyncio: the same clients, whose blocking calls run in threads.

If a task is cancelled, a call that it has made continues in its thread, and only the wait for it ends.  A receive takes
messages in the task itself, so a cancelled receive has taken none.
"""

from rocketsim_client.aio.consumer import AsyncConsumer
from rocketsim_client.aio.producer import AsyncProducer
from rocketsim_client.aio.pull_consumer import AsyncPullConsumer

__all__ = ["AsyncConsumer", "AsyncProducer", "AsyncPullConsumer"]
