"""Serves operators' commands for topics."""

import logging
from functools import partial

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto import metadata_pb2

from broker_service.access.policies import Action
from broker_service.access.rights import LISTING, READ, of_topic, user
from broker_service.admin.commands import Commands, SubjectOperations, change, command
from broker_service.broker.metadata.config_table import Planned
from broker_service.broker.metadata.messages import topic_to_proto, version_to_proto
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import InvalidParameter, ServiceNotAvailable
from broker_service.runtime.tasks import to_its_end
from broker_service.state.moves import group_of

logger = logging.getLogger(__name__)


class TopicCommands(Commands):
    @change(user(lambda request: [of_topic(request.topic.topic_name, Action.CREATE)]))
    async def UpdateTopic(self, request: pb.UpdateTopicRequest) -> pb.UpdateTopicResponse:
        topic = await self._operations.update_topic(asked_topic(request.topic))
        return pb.UpdateTopicResponse(topic=topic_to_proto(topic))

    @change(user(lambda request: [of_topic(request.topic, Action.DELETE)]))
    async def DeleteTopic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        await self._operations.delete_topic(request.topic)
        return pb.DeleteTopicResponse()

    @command(user(lambda request: [of_topic("", *LISTING)]))
    async def ListTopics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        topics = self._broker.topics
        return pb.ListTopicsResponse(
            version=version_to_proto(topics.version),
            topics=[topic_to_proto(topics.entries[name]) for name in sorted(topics.entries)],
        )

    @command(user(lambda request: [of_topic(request.topic, *READ)]))
    async def TopicStatus(self, request: pb.TopicStatusRequest) -> pb.TopicStatusResponse:
        return pb.TopicStatusResponse(
            entries=[
                pb.TopicStatusResponse.Entry(
                    queue_id=bounds.queue_id,
                    min_offset=bounds.min_offset,
                    max_offset=bounds.max_offset,
                    last_update_timestamp=bounds.last_store_timestamp,
                )
                for bounds in await self._queues.bounds(request.topic, ())
            ]
        )


def asked_topic(asked: metadata_pb2.TopicConfig) -> TopicConfig:
    """Returns the settings of a request, with the default for each absent field."""
    values = {
        name: getattr(asked, name) for name in ("read_queue_nums", "write_queue_nums", "perm") if asked.HasField(name)
    }
    return TopicConfig(asked.topic_name, **values, order=asked.order, attributes=dict(asked.attributes))


class TopicOperations(SubjectOperations):
    async def update_topic(self, topic: TopicConfig) -> TopicConfig:
        broker = self._broker
        broker.check_writable()
        await broker.topics.apply(partial(broker.topics.updating, topic, broker.now_ms()))
        logger.info(
            "topic %s now has %d read and %d write queues, and perm %d",
            topic.name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm,
        )
        return topic

    async def delete_topic(self, name: str) -> None:
        """Deletes the topic with its queues and the offsets of its groups.  The records expire with the log files.

        If the disk refuses to delete the offsets, `Saving` deletes them as soon as the disk allows it.
        """
        self._broker.check_writable()
        group = group_of(name)
        if group and (group in self._broker.groups.entries or group in self._broker.offsets.groups()):
            raise InvalidParameter(
                f"topic {name} has the messages that group {group} gets again; to drop them, reset the group on this "
                "topic, or delete the group with its offsets"
            )
        await to_its_end(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        broker = self._broker
        ends: dict[int, int] = {}

        def removing() -> Planned[TopicConfig]:
            # `Broker.append` appends nothing to the topic until the table has changed, so the queues keep these ends.
            ends.update(broker.store.queues.ends(name))
            return broker.topics.removing(name, broker.now_ms(), ends)

        def removed() -> None:
            broker.store.forget_before({name: ends})
            try:
                broker.offsets.delete_topic(name)
            except ServiceNotAvailable as error:
                logger.warning("topic %s is deleted; the offsets of its groups are deleted later: %s", name, error)
            broker.changes.publish()
            broker.long_polling.arrived([queue for queue in broker.long_polling.queues() if queue[0] == name])

        await broker.topics.apply(removing, then=removed)
        logger.info("topic %s is deleted", name)
