"""SubscriptionGroupTable: keeps the consumer groups of this broker in RocketMQ's `config/subscriptionGroup.json`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker_service.broker.metadata.config_table import ConfigTable, JsonStore, Planned
from broker_service.broker.metadata.retry_policy import retry_times_ms
from broker_service.errors import (
    InvalidParameter,
    NoPermission,
    ServiceNotAvailable,
    SubscriptionGroupNotExist,
    SystemBusy,
)
from broker_service.names import check_group_name

MOST_MADE = (
    # With this many groups, consumers can create no more, because each new group makes all writes of the table slower.
    50_000
)


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """A consumer group.  In table D1 of docs/decision_tables.md, `broker_id` is G.brokerId, and
    `which_broker_when_consume_slowly` is G.slow.
    """

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
    group_retry_policy: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError if the retry policy is not a valid RocketMQ policy."""
        try:
            retry_times_ms(self.group_retry_policy)
        except ValueError as error:
            raise ValueError(f"group {self.group_name}: groupRetryPolicy: {error}") from error

    @property
    def name(self) -> str:
        return self.group_name

    @property
    def max_attempts(self) -> int:
        """Returns how often a message is delivered at most: the first delivery and `retryMaxTimes` retries."""
        return max(0, self.retry_max_times) + 1

    def backoff_ms(self, attempt: int) -> int:
        """Returns how long a message waits for its next delivery after this attempt has failed.  The first attempt is
        number 1.
        """
        times = retry_times_ms(self.group_retry_policy)
        return times[min(max(attempt, 1), len(times)) - 1]


class SubscriptionGroupTable(ConfigTable[SubscriptionGroup]):
    entry_class = SubscriptionGroup
    table_key = "subscriptionGroupTable"

    def __init__(self, file: JsonStore, tombstones_file: JsonStore) -> None:
        super().__init__(file, tombstones_file)
        self._wanted: set[str] = set()  # groups that consumers want to create

    async def make_for_consumer(self, name: str, now_ms: int) -> None:
        """Creates a group for its first consumer.  One write creates all groups that consumers want to create at that
        moment.

        If the disk refuses the write, the consumer can still read, and a later call creates the group.
        """
        if name not in self.entries:
            check_group_name(name)
            if len(self.entries) < MOST_MADE:
                self._wanted.add(name)
                with suppress(OSError, ServiceNotAvailable):
                    await self.apply(partial(self._making_for_consumers, now_ms))
            if name not in self.entries and len(self.entries) >= MOST_MADE:
                raise SystemBusy(
                    f"there are {len(self.entries)} consumer groups, and consumers create no more than {MOST_MADE}: "
                    "remove some with `rocketsim admin deleteSubGroup`, or "
                    f"create {name!r} with `rocketsim admin updateSubGroup`"
                )

    def _making_for_consumers(self, now_ms: int) -> Planned[SubscriptionGroup] | None:
        room = max(0, MOST_MADE - len(self.entries))
        new = frozenset(sorted(self._wanted - self.entries.keys())[:room])
        self._wanted.clear()
        if not new:
            return None
        entries = {**self.entries, **{name: SubscriptionGroup(name) for name in sorted(new)}}
        return Planned(entries, self.version.next(now_ms), new)

    def consuming(self, name: str, *, auto_create: bool) -> SubscriptionGroup:
        """Returns the group for a consumer of this group.

        If the group does not exist here and `auto_create` is True, a group with default values is returned but not
        stored.  Slaves need such a group because they create none, and masters need it if their disk has refused to
        store the group.
        """
        check_group_name(name)
        group = self.entries.get(name)
        if group is None:
            if not auto_create:
                raise SubscriptionGroupNotExist(
                    f"consumer group {name!r} does not exist here; create it with `rocketsim admin updateSubGroup`"
                )
            group = SubscriptionGroup(name)
        if not group.consume_enable:
            raise NoPermission(f"consumer group {name} may not consume: its consumeEnable is false")
        return group

    def update(self, group: SubscriptionGroup, now_ms: int) -> SubscriptionGroup:
        """Plans a change with `updating`, and makes it on the calling thread."""
        self._apply_now(self.updating(group, now_ms))
        return group

    def updating(self, group: SubscriptionGroup, now_ms: int) -> Planned[SubscriptionGroup] | None:
        check_group_name(group.name)
        for what, number in (
            ("brokerId", group.broker_id),
            ("whichBrokerWhenConsumeSlowly", group.which_broker_when_consume_slowly),
            ("retryQueueNums", group.retry_queue_nums),
            ("retryMaxTimes", group.retry_max_times),
        ):
            if number < 0:
                raise InvalidParameter(f"consumer group {group.name}: {what}={number} is negative; 0 is the least")
        return self.putting(group, now_ms)

    def removing(self, name: str, now_ms: int) -> Planned[SubscriptionGroup]:
        planned = self.deleting(name, now_ms)
        if planned is None:
            raise SubscriptionGroupNotExist(f"consumer group {name!r} does not exist here")
        return planned
