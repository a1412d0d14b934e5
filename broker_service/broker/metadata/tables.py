"""Tables: all data that slaves copy from their master besides the log."""

from typing import NamedTuple

from broker_service.broker.metadata.access import AccessTables
from broker_service.broker.metadata.consumer_offsets import ConsumerOffsetTable
from broker_service.broker.metadata.groups import SubscriptionGroupTable
from broker_service.broker.metadata.known_slaves import KnownSlaves
from broker_service.broker.metadata.topics import TopicTable


class Tables(NamedTuple):
    topics: TopicTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    known_slaves: KnownSlaves
    access: AccessTables | None  # None if access control is off
