"""Commands for topics."""

from collections.abc import Mapping
from typing import Any

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.metadata_pb2 import TopicConfig as TopicMessage

from rocketsim_client.admin.commands import Commands, at_each, plain, status_of, values_of
from rocketsim_client.admin_model import ChangedAt, TopicConfig, TopicStatus
from rocketsim_client.errors import InvalidParameter, TopicNotExist
from rocketsim_client.model import MessageQueue


class TopicCommands(Commands):
    def topic_list(self) -> list[str]:
        """Returns the names of all topics that the name server knows."""
        return self._cluster.topics()

    def update_topic(
        self,
        topic: str,
        *,
        read_queue_nums: int = 8,
        write_queue_nums: int = 8,
        perm: int = 6,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Creates or changes the topic.  Returns the topic's new settings by broker address.

        `attributes` are all attributes of the topic, as in {"message.type":"FIFO"}.
        """
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read_queue_nums,
            write_queue_nums=write_queue_nums,
            perm=perm,
            order=order,
            attributes=attributes or {},
        )
        request = pb.UpdateTopicRequest(topic=TopicMessage(**values_of(config)))
        masters = self.masters(broker_addr, cluster_name)
        return at_each(masters, lambda at: _made(config, self._call(at, request), at))

    def delete_topic(self, topic: str, *, broker_addr: str | None = None, cluster_name: str | None = None) -> ChangedAt:
        """Deletes the topic.  Returns the brokers that had the topic.  The result's `statuses` says which brokers have
        stored the deletion."""
        request = pb.DeleteTopicRequest(topic=topic)
        return self._delete(request, broker_addr, cluster_name, TopicNotExist, f"topic {topic!r} is not")

    def topic_status(self, topic: str) -> list[TopicStatus]:
        """Returns the bounds and the last store time of every queue of the topic."""
        request = pb.TopicStatusRequest(topic=topic)
        return [
            TopicStatus(
                MessageQueue(topic, name, entry.queue_id),
                entry.min_offset,
                entry.max_offset,
                entry.last_update_timestamp,
            )
            for name in self._names_of(topic)
            for entry in self._call_name(name, request, lambda answer: answer.entries)
        ]

    def topic_configs(self, broker_addr: str) -> list[TopicConfig]:
        """Returns the settings of all topics of one broker."""
        return [plain(TopicConfig, topic) for topic in self._call(broker_addr, pb.ListTopicsRequest()).topics]


def _made(wanted: TopicConfig, answer: Any, address: str) -> TopicConfig:
    """Raises InvalidParameter if an older broker has replaced a setting by its default."""
    made = plain(TopicConfig, answer.topic, commit_status=status_of(answer))
    for name in ("read_queue_nums", "write_queue_nums", "perm"):
        if getattr(made, name) != getattr(wanted, name):
            raise InvalidParameter(
                f"topic {wanted.topic_name}: broker {address} has set {name}={getattr(made, name)}, because its "
                f"version takes {getattr(wanted, name)} for the default; upgrade the broker, or use 1",
                address=address,
            )
    return made
