"""ReadChecks: refuses reads for the reasons that RocketMQ has, in its order, and finds the consumer's group for table
D1.
"""

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import PERM_READ
from broker_service.broker.reads.commits import Commits
from broker_service.broker.reads.push_subscriptions import PushSubscriptions
from broker_service.broker.reads.selection import Selection, Selections
from broker_service.broker.reads.suggestion import ReadPolicy
from broker_service.errors import InvalidParameter, NoPermission


class QueueIdOutOfRange(InvalidParameter):
    """The topic has no queue with this id.  RocketMQ 4.9.8 answers SYSTEM_ERROR in this case."""

    code = 1


class ReadChecks:
    def __init__(self, broker: Broker, commits: Commits) -> None:
        self._broker = broker
        self._commits = commits
        self._selections = Selections()
        self.push = PushSubscriptions()

    async def make_group(self, name: str) -> None:
        """Creates the group of a first consumer.  Await it before the consumer's first call of `group`."""
        self._check_broker()
        await self._commits.make_group(name)

    def group(self, name: str) -> SubscriptionGroup:
        """Returns the group.  Raises if the broker may not be read, the group does not exist, or its consumeEnable is
        false.
        """
        self._check_broker()
        return self._commits.group(name)

    def nobodys_group(self) -> SubscriptionGroup:
        """Returns a group for a consumer that has no group and keeps its offsets itself."""
        self._check_broker()
        return SubscriptionGroup()

    def check_queue(self, topic_name: str, queue_id: int) -> None:
        """Raises if the topic does not exist or may not be read, or if the queue id is out of range."""
        topic = self._broker.topics.readable(topic_name, self._broker.config.broker_permission)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise QueueIdOutOfRange(
                f"queue {queue_id} does not exist: topic {topic_name} has {topic.read_queue_nums} read queues"
            )

    async def selection(self, sub_expression: str, expression_type: str) -> Selection:
        """Returns what a subscription selects.  Raises if it is invalid, or is SQL92 without `enablePropertyFilter`."""
        enabled = self._broker.config.enable_property_filter
        return await self._selections.of(sub_expression, expression_type, sql_enabled=enabled)

    def check_pop(self, group: str, topic: str) -> None:
        """Raises if the group reads the topic with push consumers.  Push consumers are refused if the group pops
        already.
        """
        if (group, topic) not in self._broker.offsets.kept:
            self.push.check_pop(group, topic)

    def policy(self, group: SubscriptionGroup) -> ReadPolicy:
        config = self._broker.config
        return ReadPolicy(
            role=self._broker.mastership.role,
            slave_read_enable=config.slave_read_enable,
            offset_check_in_slave=config.offset_check_in_slave,
            group_broker_id=group.broker_id,
            group_when_slowly=group.which_broker_when_consume_slowly,
        )

    def is_refused_here(self) -> bool:
        """Returns True if a slave with `strictSlaveRead` must refuse reads.  RocketMQ's slave suggests the master."""
        config = self._broker.config
        return self._broker.is_slave and config.strict_slave_read and not config.slave_read_enable

    def _check_broker(self) -> None:
        config = self._broker.config
        if not config.broker_permission & PERM_READ:
            raise NoPermission(
                f"broker {config.broker_name} cannot be read: brokerPermission is {config.broker_permission}"
            )
