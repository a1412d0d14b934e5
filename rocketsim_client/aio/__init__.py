"""Producer and consumers for programs that use asyncio.  The classes use the ordinary clients, and make their blocking
calls in threads.

If a task is cancelled, the call that it waits for continues in its thread, and only the wait ends.  A receive takes
messages in the task itself, so a cancelled receive has taken no message.
"""

from rocketsim_client.aio.consumer import AsyncConsumer
from rocketsim_client.aio.producer import AsyncProducer
from rocketsim_client.aio.pull_consumer import AsyncPullConsumer
from rocketsim_client.aio.transaction import AsyncTransaction

__all__ = ["AsyncConsumer", "AsyncProducer", "AsyncPullConsumer", "AsyncTransaction"]
