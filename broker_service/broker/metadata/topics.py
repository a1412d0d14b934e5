"""TopicTable: keeps this broker's topics, with queue counts and permissions, in RocketMQ's `config/topics.json`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rocketsim_proto.limits import MAX_QUEUE_NUMS
from rocketsim_proto.reserved import DEFAULT_TOPIC, MESSAGE_TYPE, MESSAGE_TYPES, SCHEDULE_TOPIC, TRACE_TOPIC

from broker_service.broker.metadata.config_table import ConfigTable, JsonStore, Planned
from broker_service.errors import InvalidParameter, NoPermission, TopicNotExist
from broker_service.names import (
    check_topic_name,
    is_internal_topic,
    is_system_topic,
    refuse_system_topic,
)

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4


@dataclass(frozen=True, slots=True)
class TopicConfig:
    topic_name: str = ""
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.topic_name

    @property
    def message_type(self) -> str:
        """Returns the type of messages that RocketMQ 5's clients may send to the topic, which is one of
        MESSAGE_TYPES.
        """
        return self.attributes.get(MESSAGE_TYPE, "") or MESSAGE_TYPES[0]

    def queue_of(self, queue_id: int) -> int:
        """Returns the queue in which to store a message that the broker accepted earlier for `queue_id`.

        If the topic has fewer queues now, the result may differ from `queue_id`.  If the topic has no write queues now,
        the result is one of its read queues.
        """
        return queue_id % max(1, self.write_queue_nums or self.read_queue_nums)


class TopicTable(ConfigTable[TopicConfig]):
    entry_class = TopicConfig
    table_key = "topicConfigTable"

    def __init__(self, file: JsonStore, tombstones_file: JsonStore) -> None:
        super().__init__(file, tombstones_file)

    def add_system_topics(self, default_queue_nums: int, delay_levels: int) -> None:
        """Adds the system topics to the table in memory only.  As in RocketMQ, the system topics are written with the
        table's next change.
        """
        perm = PERM_READ | PERM_WRITE | PERM_INHERIT
        for topic in (
            TopicConfig(DEFAULT_TOPIC, default_queue_nums, default_queue_nums, perm),
            TopicConfig(SCHEDULE_TOPIC, delay_levels, delay_levels),
        ):
            self.entries.setdefault(topic.name, topic)

    def readable(self, name: str, broker_permission: int) -> TopicConfig:
        """Returns the topic for a client that reads it.  Raises the errors of table 1d (docs/decision_tables.md), in
        the order of that table.
        """
        topic = self.existing(name)
        if not topic.perm & broker_permission & PERM_READ:
            raise NoPermission(f"topic {name} cannot be read: {_why(topic, broker_permission)}")
        return topic

    def existing(self, name: str) -> TopicConfig:
        topic = self.entries.get(name)
        if topic is None:
            raise TopicNotExist(f"topic {name!r} does not exist here; create it with `rocketsim admin updateTopic`")
        return topic

    def writable(self, name: str, broker_permission: int) -> TopicConfig | None:
        """Returns the topic for a client that sends to it.  If the topic does not exist and the caller may create it,
        returns None.
        """
        topic = self.entries.get(name)
        if topic is None:
            check_topic_name(name)
        refuse_system_topic(name)
        if not broker_permission & PERM_WRITE or (topic is not None and not topic.perm & PERM_WRITE):
            raise NoPermission(f"topic {name} cannot be written: {_why(topic, broker_permission)}")
        return topic

    def auto_create(self, name: str, asked_queue_nums: int, default_queue_nums: int, now_ms: int) -> TopicConfig:
        """Plans a creation with `auto_creating`, and makes it on the calling thread."""
        self._apply_now(self.auto_creating(name, asked_queue_nums, default_queue_nums, now_ms))
        return self.entries[name]

    def auto_creating(
        self, name: str, asked_queue_nums: int, default_queue_nums: int, now_ms: int
    ) -> Planned[TopicConfig] | None:
        """Plans the creation of a topic for its first message.  The topic gets as many queues as the sender asks for,
        but no more than the default.
        """
        if name in self.entries:
            return None
        queue_nums = min(asked_queue_nums, default_queue_nums) if asked_queue_nums > 0 else default_queue_nums
        return self.putting(TopicConfig(name, queue_nums, queue_nums), now_ms)

    async def make_of_one_queue(self, name: str, now_ms: int) -> None:
        """Creates a topic for the broker's own records unless it exists.  Raises MessageIllegal for a name that no
        topic may have, because its folder has this name.

        The caller awaits this method before an append, so that the disk does not block the event loop.  After this
        method has returned, the topic takes records until the caller awaits something else.
        """
        if name not in self.entries:
            check_topic_name(name)
        topic = TopicConfig(name, read_queue_nums=1, write_queue_nums=1)
        await self.until_settled(name)
        while name not in self.entries:
            await self.apply(lambda: None if name in self.entries else self.putting(topic, now_ms))
            await self.until_settled(name)

    def update(self, topic: TopicConfig, now_ms: int) -> TopicConfig:
        """Plans a change with `updating`, and makes it on the calling thread."""
        self._apply_now(self.updating(topic, now_ms))
        return topic

    def updating(self, topic: TopicConfig, now_ms: int) -> Planned[TopicConfig] | None:
        """Plans to create or change a topic as an operator has asked.  All values are checked before anything
        changes.
        """
        check_topic_name(topic.name)
        refuse_system_topic(topic.name)
        for what, nums in (("readQueueNums", topic.read_queue_nums), ("writeQueueNums", topic.write_queue_nums)):
            if not 0 <= nums <= MAX_QUEUE_NUMS:
                raise InvalidParameter(f"topic {topic.name}: {what}={nums}; 0 to {MAX_QUEUE_NUMS} are allowed")
        if topic.write_queue_nums and not topic.read_queue_nums:
            raise InvalidParameter(
                f"topic {topic.name}: readQueueNums=0 and writeQueueNums={topic.write_queue_nums}: nobody could read "
                "what is sent; lower writeQueueNums first"
            )
        if topic.perm not in (PERM_WRITE, PERM_READ, PERM_READ | PERM_WRITE):
            raise InvalidParameter(f"topic {topic.name}: perm={topic.perm} must be 2 (write), 4 (read) or 6 (both)")
        if signed := next((name for name in topic.attributes if name.startswith(("+", "-"))), None):
            raise InvalidParameter(
                f"topic {topic.name}: attribute {signed} must be named without a sign, as in {MESSAGE_TYPE}"
            )
        if topic.message_type not in MESSAGE_TYPES:
            raise InvalidParameter(
                f"topic {topic.name}: {MESSAGE_TYPE}={topic.message_type} must be one of {', '.join(MESSAGE_TYPES)}"
            )
        return self.putting(topic, now_ms)

    def remove(self, name: str, now_ms: int, queue_offsets: Mapping[int, int]) -> None:
        """Plans a deletion with `removing`, and makes it on the calling thread."""
        self._apply_now(self.removing(name, now_ms, queue_offsets))

    def removing(self, name: str, now_ms: int, queue_offsets: Mapping[int, int]) -> Planned[TopicConfig]:
        """Plans the deletion of a topic.  Retry and dead letter topics may also be deleted, although only the broker
        writes to them.
        """
        if is_internal_topic(name) and name != TRACE_TOPIC:
            raise NoPermission(f"topic {name} belongs to the broker, which cannot do without it")
        planned = self.deleting(name, now_ms, queue_offsets)
        if planned is None:
            raise TopicNotExist(f"topic {name!r} does not exist here")
        return planned

    def announced(self, auto_create: bool) -> list[TopicConfig]:
        """Returns the topics that this broker registers at the name servers.  With `auto_create` the result includes
        the default topic, by which producers find a broker that creates topics.
        """
        return [topic for name, topic in self.entries.items() if auto_create or name != DEFAULT_TOPIC]

    def of_users(self) -> list[str]:
        return [name for name in self.entries if not is_system_topic(name)]


def _why(topic: TopicConfig | None, broker_permission: int) -> str:
    mine = f"its perm is {topic.perm}, " if topic else ""
    return f"{mine}brokerPermission is {broker_permission}"
