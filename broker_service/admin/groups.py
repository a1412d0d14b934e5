"""Serves operators' commands for consumer groups and their offsets."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto import metadata_pb2

from broker_service.access.policies import Action
from broker_service.access.rights import GET, LISTING, READ, Need, of_clients, of_group, of_topic, user
from broker_service.admin.commands import Commands, SubjectOperations, change, command
from broker_service.admin.progress import check_known_group
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.messages import group_to_proto, retry_policy_from_proto, version_to_proto
from broker_service.errors import InvalidParameter, RocketSimError, ServiceNotAvailable
from broker_service.runtime import cold_reads
from broker_service.runtime.tasks import to_its_end
from broker_service.state.moves import retry_topic
from broker_service.store.offset_journal import NO_OFFSET

logger = logging.getLogger(__name__)

AT_THE_END = -1  # timestamp of resetOffsetByTime that stands for the end of each queue
OF_AN_OFFSET = -1  # stands for the timestamp of a reset that names an offset


@dataclass(frozen=True, slots=True)
class Reset:
    queue_id: int
    offset: int
    previous: int  # -1: none


def _progress(request: Any) -> list[Need]:
    return [of_group(request.group, *GET), *([of_topic(request.topic, *READ)] if request.topic else [])]


def _reset(request: Any) -> list[Need]:
    return [of_group(request.group, Action.UPDATE), of_topic(request.topic, Action.UPDATE)]


class GroupCommands(Commands):
    @change(user(lambda request: [of_group(request.group.group_name, Action.CREATE)]))
    async def UpdateSubGroup(self, request: pb.UpdateSubGroupRequest) -> pb.UpdateSubGroupResponse:
        group = await self._operations.update_group(asked_group(request.group))
        return pb.UpdateSubGroupResponse(group=group_to_proto(group))

    @change(user(lambda request: [of_group(request.group, Action.DELETE)]))
    async def DeleteSubGroup(self, request: pb.DeleteSubGroupRequest) -> pb.DeleteSubGroupResponse:
        await self._operations.delete_group(request.group, remove_offset=request.remove_offset)
        return pb.DeleteSubGroupResponse()

    @command(user(lambda request: [of_group("", *LISTING)]))
    async def ListSubGroups(self, request: pb.ListSubGroupsRequest) -> pb.ListSubGroupsResponse:
        groups = self._broker.groups
        return pb.ListSubGroupsResponse(
            version=version_to_proto(groups.version),
            groups=[group_to_proto(groups.entries[name]) for name in sorted(groups.entries)],
        )

    @command(user(_progress))
    async def ConsumerProgress(self, request: pb.ConsumerProgressRequest) -> pb.ConsumerProgressResponse:
        return pb.ConsumerProgressResponse(
            entries=[
                pb.ConsumerProgressResponse.Entry(
                    group=item.place.group,
                    topic=item.place.topic,
                    queue_id=item.place.queue_id,
                    broker_offset=item.broker_offset,
                    consumer_offset=item.consumer_offset,
                    last_timestamp=last_timestamp,
                    generation=item.generation,
                    lag=item.lag,
                )
                for item, last_timestamp in await self._progress.of(request.group, request.topic)
            ],
            broker_id=self._broker.broker_id,
        )

    @command(user(lambda request: [of_clients(request.consumer_group)]))
    async def ConsumerConnection(self, request: pb.ConsumerConnectionRequest) -> pb.ConsumerConnectionResponse:
        now_s = self._broker.clock()
        return pb.ConsumerConnectionResponse(
            clients=[
                pb.ConsumerConnectionResponse.Client(
                    client_id=seen.client_id,
                    way=seen.way,
                    last_ms_ago=int((now_s - seen.at_s) * 1000),
                    messages=seen.messages,
                )
                for seen in self._broker.consumers.of(request.consumer_group, now_s)
            ],
            broker_id=self._broker.broker_id,
        )

    @change(user(_reset))
    async def ResetOffsetByTime(self, request: pb.ResetOffsetByTimeRequest) -> pb.ResetOffsetByTimeResponse:
        resets = await self._operations.reset_offset_by_time(
            request.group, request.topic, request.timestamp, list(request.queue_ids), force=request.force
        )
        return pb.ResetOffsetByTimeResponse(
            entries=[
                pb.ResetOffsetByTimeResponse.Entry(queue_id=item.queue_id, offset=item.offset, previous=item.previous)
                for item in resets
            ],
        )


def asked_group(asked: metadata_pb2.SubscriptionGroupConfig) -> SubscriptionGroup:
    """Returns the settings of a request, with the default for each absent field."""
    own = ("group_name", "attributes", "group_retry_policy")
    names = [field.name for field in fields(SubscriptionGroup) if field.name not in own]
    values = {name: getattr(asked, name) for name in names if asked.HasField(name)}
    try:
        policy = retry_policy_from_proto(asked)
        return SubscriptionGroup(
            asked.group_name, **values, attributes=dict(asked.attributes), group_retry_policy=policy
        )
    except ValueError as error:
        raise InvalidParameter(str(error)) from error


class GroupOperations(SubjectOperations):
    async def update_group(self, group: SubscriptionGroup) -> SubscriptionGroup:
        broker = self._broker
        broker.check_writable()
        await broker.groups.apply(partial(broker.groups.updating, group, broker.now_ms()))
        logger.info("consumer group %s is now %s", group.name, group)
        return group

    async def delete_group(self, name: str, *, remove_offset: bool) -> None:
        """Deletes the group's settings.  Without `remove_offset`, a group that is created again under this name
        continues at the old group's offsets.

        With `remove_offset`, the offsets, the deliveries under way and the retry topics of the group are deleted, too.
        A call with `remove_offset` can be repeated when the settings are deleted already, because the disk may have
        refused to delete the rest.
        """
        self._broker.check_writable()
        await to_its_end(self._delete_group(name, remove_offset))

    async def _delete_group(self, name: str, remove_offset: bool) -> None:
        broker = self._broker
        removing = partial(broker.groups.removing, name, broker.now_ms())
        if remove_offset:
            async with broker.topics.held():  # the retry topics are deleted in the same step as the group
                dropped = partial(self._drop_group, name)
                if name in broker.groups.entries or not self._has_read(name):
                    await broker.groups.apply(removing, then=dropped)
                else:
                    dropped()
        else:
            await broker.groups.apply(removing)
        logger.info("consumer group %s is deleted%s", name, " with all that it has read" if remove_offset else "")

    def _has_read(self, group: str) -> bool:
        """Returns True if the group still has offsets or retry topics."""
        retries = retry_topic(group, "")
        return group in self._broker.offsets.groups() or any(
            topic.startswith(retries) for topic in self._broker.topics.entries
        )

    def _drop_group(self, name: str) -> None:
        broker = self._broker
        try:
            for listener in broker.group_dropped:
                listener(name)
            broker.offsets.delete_group(name)
        except ServiceNotAvailable as error:
            raise type(error)(
                f"the settings of group {name} are deleted, but not all that it has read: {error}; delete it again"
            ) from error

    async def reset_offset_by_time(
        self, group: str, topic_name: str, timestamp: int, queue_ids: Sequence[int], *, force: bool
    ) -> list[Reset]:
        """Resets the group's offsets on a topic to a time.  Returns the new and the previous offset of each queue.

        Without `force` an offset only moves back, as with mqadmin.  A queue whose offset would move forward keeps its
        offset and its open deliveries.  If a disk refuses the reset, either nothing has moved, or the error says what
        has moved.
        """
        broker = self._broker
        queue_ids = self._check_resets(group, topic_name, queue_ids)
        if timestamp < AT_THE_END:
            raise InvalidParameter(
                f"timestamp {timestamp} must be milliseconds since 1970, or -1 for the end of each queue"
            )
        deleted_before = broker.topics.tombstones.get(topic_name)
        wanted_of = {queue_id: await self._offset_at(topic_name, queue_id, timestamp) for queue_id in queue_ids}
        # checked again, because things may change while the disk is read
        self._check_resets(group, topic_name, queue_ids)
        if broker.topics.tombstones.get(topic_name) is not deleted_before:
            raise ServiceNotAvailable(
                f"topic {topic_name} was deleted and created again while its offsets were searched; reset them again"
            )
        return self._reset(group, topic_name, timestamp, wanted_of, force=force)

    async def reset_offset(self, group: str, topic_name: str, queue_id: int, offset: int) -> list[Reset]:
        """Resets the group's offset in one queue.  Raises InvalidParameter if the queue does not have this offset."""
        self._check_resets(group, topic_name, [queue_id])
        low, high = self._broker.store.queues.bounds(topic_name, queue_id)
        if not low <= offset <= high:
            raise InvalidParameter(
                f"offset {offset} is not in queue {queue_id} of topic {topic_name}: name one from {low} to {high}"
            )
        return self._reset(group, topic_name, OF_AN_OFFSET, {queue_id: offset}, force=True)

    def _reset(
        self, group: str, topic_name: str, timestamp: int, wanted_of: Mapping[int, int], *, force: bool
    ) -> list[Reset]:
        broker = self._broker
        resets: list[Reset] = []
        starts: dict[int, int] = {}
        for queue_id, wanted in wanted_of.items():
            previous = broker.offsets.progress(group, topic_name, queue_id).offset
            if previous == NO_OFFSET or wanted <= previous or force:
                starts[queue_id] = wanted
            resets.append(Reset(queue_id, starts.get(queue_id, previous), previous))
        moved = {reset.queue_id: reset.offset for reset in resets if reset.offset != reset.previous}
        self._move(group, topic_name, starts, moved)
        logger.info("the offsets of group %s on topic %s are reset to time %d: %s", group, topic_name, timestamp, moved)
        for listener in broker.offsets_moved:
            listener(group, topic_name, timestamp, {reset.queue_id: reset.offset for reset in resets})
        return resets

    def _move(self, group: str, topic_name: str, starts: Mapping[int, int], moved: Mapping[int, int]) -> None:
        """Writes the pops' new starting offsets to the log, and then new committed offsets to the offset journal."""
        offsets = self._broker.offsets
        offsets.make_room_for_reset(group, topic_name, moved)
        have_pops_moved = any([listener(group, topic_name, starts) for listener in self._broker.offsets_reset])
        try:
            offsets.reset(group, topic_name, moved)
        except RocketSimError as error:
            if not have_pops_moved:
                raise
            raise ServiceNotAvailable(
                f"{error}; this reset is half done: the pops of group {group} on topic {topic_name} have moved, its "
                "committed offsets have not; reset again"
            ) from error

    def _check_resets(self, group: str, topic_name: str, queue_ids: Sequence[int]) -> Sequence[int]:
        """Returns the queues to reset: those named, or all that can be read.  Raises an error if these queues cannot be
        reset now.
        """
        broker = self._broker
        broker.check_writable()
        broker.check_answers_for_offsets()
        queue_nums = broker.topics.existing(topic_name).read_queue_nums
        check_known_group(broker, group)
        for queue_id in queue_ids:
            if not 0 <= queue_id < queue_nums:
                raise InvalidParameter(f"queue {queue_id} does not exist: topic {topic_name} has {queue_nums} queues")
        return queue_ids or range(queue_nums)

    async def _offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        store = self._broker.store
        if timestamp == AT_THE_END:
            return store.queues.bounds(topic, queue_id)[1]
        return await cold_reads.read(store, partial(store.queues.search_offset_by_time, topic, queue_id, timestamp))
