"""CleanStop: writes offsets at a clean stop, so that a RocketMQ that opens this store continues where this broker
stopped.
"""

import logging

from broker_service.broker.core.broker import Broker
from broker_service.errors import ReadFailed, StoreCorrupt, StoreTooNew
from broker_service.names import is_internal_group
from broker_service.pop.places import Places
from broker_service.rocketmq_handover import order_info
from broker_service.state.moves import retry_topic
from broker_service.state.transitions import Place
from broker_service.state.writer import StateWriter
from broker_service.transactions.transactions import Transactions

logger = logging.getLogger(__name__)


class CleanStop:
    def __init__(self, broker: Broker, writer: StateWriter, places: Places, transactions: Transactions) -> None:
        self._broker = broker
        self._writer = writer
        self._places = places
        self._transactions = transactions

    def note_transactions(self) -> None:
        """Commits the offsets at which a RocketMQ would continue to handle the open transactions."""
        try:
            self._writer.check_all_known()
        except (ReadFailed, StoreCorrupt, StoreTooNew) as error:
            logger.error("could not write from where RocketMQ would continue with open transactions: %s", error)
        else:
            self._transactions.note_offsets()

    def note_offsets(self) -> None:
        """Commits the offset at which a RocketMQ would continue, for each queue of each group that pops.

        The committed offset is that of the group's first message that is neither acknowledged nor moved.  If the group
        has taken nothing from a queue, the offset of the queue's first message is committed, because RocketMQ's
        consumers may begin at the end of a queue that has no committed offset.
        """
        broker = self._broker
        if broker.is_slave:
            return
        kept = broker.offsets.kept
        goes_on: dict[tuple[str, str], dict[int, int]] = {}
        for group, topic in {*kept, *((group, retry_topic(group, topic)) for group, topic in kept)}:
            config = broker.topics.get(topic) if not is_internal_group(group) else None
            goes_on[group, topic] = dict(kept.get((group, topic), {}))
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                first, _ = broker.store.queues.bounds(topic, queue_id)
                goes_on[group, topic].setdefault(queue_id, self._places.next(Place(group, topic, queue_id), first))
        broker.offsets.note(goes_on, broker.now_ms())

    def write_order_info(self) -> None:
        """Writes the open deliveries of groups that consume in order into RocketMQ's file `consumerOrderInfo.json`."""
        broker = self._broker
        if not broker.is_slave:
            path = broker.config.store_path_root_dir / "config" / "consumerOrderInfo.json"
            order_info.write(broker.store.disk, path, self._writer.state.queues, broker.now_ms())
