"""ReadChecks: refuses reads for the same reasons and in the same order as RocketMQ, and finds the consumer's group for
table D1 of docs/decision_tables.md.
"""

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import PERM_READ
from broker_service.broker.reads.commits import Commits
from broker_service.broker.reads.push_subscriptions import PushSubscriptions
from broker_service.broker.reads.selection import SQL92, Selection, Selections
from broker_service.broker.reads.suggestion import ReadPolicy
from broker_service.errors import InvalidParameter, NoPermission


class QueueIdOutOfRange(InvalidParameter):
    """The topic has no readable queue with this id.  The remoting code is SYSTEM_ERROR, as RocketMQ 4.9.8 answers in
    this case.
    """

    code = 1


class ReadChecks:
    def __init__(self, broker: Broker, commits: Commits) -> None:
        self._broker = broker
        self._commits = commits
        self._selections = Selections()
        self.push = PushSubscriptions()

    async def make_group(self, name: str) -> None:
        """Creates a group for its first consumer.  The caller must await this method before the consumer's first call
        of `group`.
        """
        self._check_broker()
        await self._commits.make_group(name)

    def has_group(self, name: str) -> bool:
        """Returns True if `make_group` has nothing to do for this group."""
        self._check_broker()
        return self._commits.has_group(name)

    def group(self, name: str) -> SubscriptionGroup:
        """Returns the group.  Raises if the broker may not be read, if the group does not exist, or if the group's
        consumeEnable is false.
        """
        self._check_broker()
        return self._commits.group(name)

    def nobodys_group(self) -> SubscriptionGroup:
        """Returns a default group for a consumer without a group, which keeps its offsets itself."""
        self._check_broker()
        return SubscriptionGroup()

    def check_queue(self, topic_name: str, queue_id: int) -> None:
        """Raises if the topic does not exist or must not be read, or if the queue id is out of range."""
        topic = self._broker.topics.readable(topic_name, self._broker.config.broker_permission)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise QueueIdOutOfRange(
                f"queue {queue_id} does not exist: topic {topic_name} has {topic.read_queue_nums} read queues"
            )

    async def selection(self, sub_expression: str, expression_type: str) -> Selection:
        """Returns the filter that a subscription describes.  Raises if the expression is invalid, or if it is SQL92 and
        `enablePropertyFilter` is false.
        """
        enabled = self._broker.config.enable_property_filter
        return await self._selections.of(sub_expression, expression_type, sql_enabled=enabled)

    def selection_at_once(self, sub_expression: str, expression_type: str) -> Selection | None:
        """Does the same as `selection`, but returns None for an SQL92 expression."""
        return self._selections.by_tags(sub_expression, expression_type) if expression_type != SQL92 else None

    def check_pop(self, group: str, topic: str) -> None:
        """Raises if the group must not pop the topic, because it reads the topic with push consumers.  If the group has
        popped the topic before, nothing is checked, because then its push consumers are the ones that are refused.
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
        """Returns True if this broker is a slave that must refuse reads because of `strictSlaveRead`.  Without
        `strictSlaveRead`, a slave answers and suggests the master for the next pull, as in RocketMQ 4.
        """
        config = self._broker.config
        return self._broker.is_slave and config.strict_slave_read and not config.slave_read_enable

    def _check_broker(self) -> None:
        config = self._broker.config
        if not config.broker_permission & PERM_READ:
            raise NoPermission(
                f"broker {config.broker_name} cannot be read: brokerPermission is {config.broker_permission}"
            )
