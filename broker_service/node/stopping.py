"""Stops a broker, in the reverse order of its start."""

import asyncio
import logging
from typing import TYPE_CHECKING

from broker_service.errors import RocketSimError

if TYPE_CHECKING:
    from broker_service.node.node import BrokerNode

logger = logging.getLogger(__name__)

GRACE_S = 8.0  # how long calls that are under way may continue
DRAIN_S = 7.0  # how long puts may wait for the disk or a slave
CATCH_UP_S = 2.0  # how long the slaves have to fetch the end of the log


async def stop(node: "BrokerNode") -> None:
    """Unregisters, takes no more calls, lets the calls that are under way end, flushes and closes the store."""
    node.broker.stopping = True
    await node.health.enter_graceful_shutdown()
    await node.registration.unregister()
    node.broker.long_polling.close()
    node.consumption.close()
    stopping = asyncio.gather(
        node.server.stop(GRACE_S),
        node.v2_port.close(GRACE_S),
        node.range_streams.stop(GRACE_S),
        *([node.remoting.server.stop(GRACE_S)] if node.remoting is not None else []),
    )
    try:
        async with asyncio.timeout(DRAIN_S):
            await node.puts.drained()
    except TimeoutError:
        logger.warning("%s: the puts that still wait are answered as timed out", node.acknowledgements)
    node.acknowledgements.abandon()
    # The slaves get the rest of the log, so that a clean stop leaves no message on one broker only.
    if not await node.acknowledgements.slaves_caught_up(CATCH_UP_S):
        logger.warning("this broker stops before every slave has all of its log: %s", node.acknowledgements)
    node.replication_master.disconnect("this broker is stopping")
    await node.replication_master.close_sockets()
    await stopping
    await node.tasks.cancel()
    await node.v2_port.close(0)  # the port is closed again, since a task may have opened it after the first `close`
    await node.wire.v2_routes.close()
    await node.saving.finish()
    await asyncio.gather(*(table.settled() for table in (node.topics, node.groups, *(node.access or ()))))
    node.metrics.close()
    await node.flusher.close()
    try:
        node.schedule.save()
        node.consumption.clean_stop.note_transactions()
        node.offsets.close(node.broker.now_ms())
        node.consumption.clean_stop.note_offsets()
        node.consumption.writer.catch_up()  # the next steps need the complete state
        node.consumption.timer_delivery.write_check()
        node.consumption.clean_stop.write_order_info()
        if saving := node.consumption.saving():
            saving()
    except (RocketSimError, OSError) as error:
        logger.error("a file could not be written, the next start reads the journal and the log instead: %s", error)
    finally:
        node.storage.close()
    logger.info("broker %s stopped at %d", node.config.broker_name, node.store.end_offset)
