"""SubscriptionGroupTable: the consumer groups of this broker, in RocketMQ's `config/subscriptionGroup.json`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from broker_service.broker.metadata.config_table import ConfigTable
from broker_service.broker.metadata.names import check_group_name
from broker_service.errors import InvalidParameter, NoPermission, ServiceNotAvailable, SubscriptionGroupNotExist


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """`broker_id` and `which_broker_when_consume_slowly` are table D1's G.brokerId and G.slow."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.group_name


class SubscriptionGroupTable(ConfigTable[SubscriptionGroup]):
    entry_class = SubscriptionGroup
    table_key = "subscriptionGroupTable"

    def consuming(self, name: str, *, auto_create: bool, may_change: bool, now_ms: int) -> SubscriptionGroup:
        """The group, for one of its consumers.

        A slave (`may_change` false) does not make groups: it serves an unknown one with the defaults.  So does a broker
        whose disk refuses the table.
        """
        check_group_name(name)
        group = self.entries.get(name)
        if group is None:
            if not auto_create:
                raise SubscriptionGroupNotExist(
                    f"consumer group {name!r} does not exist here; create it with `rocketsim admin updateSubGroup`"
                )
            group = SubscriptionGroup(name)
            if may_change:
                # Whatever becomes of the disk, reads go on: the group is made by the first that finds it writable.
                with suppress(OSError, ServiceNotAvailable):
                    self.put(group, now_ms)
        if not group.consume_enable:
            raise NoPermission(f"consumer group {name} may not consume: its consumeEnable is false")
        return group

    def update(self, group: SubscriptionGroup, now_ms: int) -> SubscriptionGroup:
        check_group_name(group.name)
        for what, number in (
            ("brokerId", group.broker_id),
            ("whichBrokerWhenConsumeSlowly", group.which_broker_when_consume_slowly),
            ("retryQueueNums", group.retry_queue_nums),
        ):
            if number < 0:
                raise InvalidParameter(f"consumer group {group.name}: {what}={number} is negative")
        self.put(group, now_ms)
        return group

    def remove(self, name: str, now_ms: int) -> None:
        if not self.delete(name, now_ms):
            raise SubscriptionGroupNotExist(f"consumer group {name!r} does not exist here")
