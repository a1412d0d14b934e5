"""The stop of a broker, in the reverse order of its start."""

import asyncio
import logging
from typing import TYPE_CHECKING

from broker_service.errors import RocketSimError

if TYPE_CHECKING:
    from broker_service.node.node import BrokerNode

logger = logging.getLogger(__name__)

GRACE_S = 8.0  # for calls that are under way when the broker stops
DRAIN_S = 7.0  # for puts that wait for a disk or a slave
CATCH_UP_S = 2.0  # for slaves that lack the last of the log


async def stop(node: "BrokerNode") -> None:
    """Say good-bye, take no more calls, let those under way end, flush, close."""
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
        logger.warning("%s: answering the puts that still wait with their timeouts", node.acknowledgements)
    node.acknowledgements.abandon()
    # Slaves get the rest of the log first: a clean stop leaves nothing behind on one broker.
    if not await node.acknowledgements.slaves_caught_up(CATCH_UP_S):
        logger.warning("stopping before every slave has all: %s", node.acknowledgements)
    node.replication_master.disconnect("this broker is stopping")
    await stopping
    await node.tasks.cancel()
    await node.v2_port.close(0)  # if it was about to open
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
        node.consumption.writer.catch_up()  # what follows needs all of the state
        node.consumption.timer_delivery.write_check()
        node.consumption.clean_stop.write_order_info()
        if saving := node.consumption.saving():
            saving()
    except (RocketSimError, OSError) as error:
        logger.error("the journal and the log keep what could not be written: %s", error)
    finally:
        node.storage.close()
    logger.info("broker %s stopped at %d", node.config.broker_name, node.store.end_offset)
