"""Commands for consumer groups and their offsets."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.metadata_pb2 import SubscriptionGroupConfig as GroupMessage

from rocketsim_client.admin.commands import Commands, at_each, plain, status_of, values_of
from rocketsim_client.admin_model import ChangedAt, ConsumeProgress, GroupClient, ResetOffset, SubscriptionGroupConfig
from rocketsim_client.errors import BrokerNotExist, GroupNotExist
from rocketsim_client.model import MASTER_ID, MessageQueue


class GroupCommands(Commands):
    def update_sub_group(
        self, config: SubscriptionGroupConfig, *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """Creates the group, or replaces all its settings.  Returns the new settings by broker address."""
        request = pb.UpdateSubGroupRequest(group=GroupMessage(**values_of(config)))

        def made(answer: Any) -> SubscriptionGroupConfig:
            return plain(SubscriptionGroupConfig, answer.group, commit_status=status_of(answer))

        return self._call_masters(request, broker_addr, cluster_name, made)

    def delete_sub_group(
        self,
        group: str,
        *,
        remove_offset: bool = False,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> ChangedAt:
        """Deletes the group.  Returns the brokers that had the group.  The result's `statuses` says which brokers have
        stored the deletion.

        With `remove_offset` the broker also deletes the group's offsets, its messages under way, and its retry topics.
        Without `remove_offset`, a later group with the same name continues at the old group's offsets.
        """
        request = pb.DeleteSubGroupRequest(group=group, remove_offset=remove_offset)
        return self._delete(request, broker_addr, cluster_name, GroupNotExist, f"consumer group {group!r} is not")

    def sub_groups(self, broker_addr: str) -> list[SubscriptionGroupConfig]:
        """Returns the settings of all consumer groups of one broker."""
        answer = self._call(broker_addr, pb.ListSubGroupsRequest())
        return [plain(SubscriptionGroupConfig, group) for group in answer.groups]

    def consumer_progress(self, group: str | None = None, topic: str | None = None) -> list[ConsumeProgress]:
        """Returns the progress of groups in each queue.  While a broker name has no master, a queue's progress comes
        from the slave with the newest offset, whose id is in `broker_id`."""
        request = pb.ConsumerProgressRequest(group=group or "", topic=topic or "")
        found: list[ConsumeProgress] = []
        for name in sorted({member.broker_name for member in self.cluster_list()}):

            def call(at: str, name: str = name) -> list[ConsumeProgress]:
                return progress_of(self._call(at, request), name)

            newest: dict[tuple[str, MessageQueue], ConsumeProgress] = {}
            for entry in chain.from_iterable(self._cluster.ask_master_or_slaves(name, call)):
                other = newest.get((entry.group, entry.queue), entry)
                place = max(entry, other, key=lambda one: (one.generation, one.consumer_offset))
                newest[entry.group, entry.queue] = place
            found += newest.values()
        return found

    def consumer_connection(self, group: str) -> list[GroupClient]:
        """Returns the clients that have consumed with the group lately, as seen by the master of each broker name, or
        by its slaves while there is no master.  A client that pops messages is listed for one minute after its last
        call.  A client that commits offsets is listed for ten minutes."""
        request = pb.ConsumerConnectionRequest(consumer_group=group)
        found: list[GroupClient] = []
        for name in sorted({member.broker_name for member in self.cluster_list()}):

            def call(at: str, name: str = name) -> list[GroupClient]:
                answer = self._call(at, request)
                return [plain(GroupClient, one, broker_name=name, broker_id=answer.broker_id) for one in answer.clients]

            found += chain.from_iterable(self._cluster.ask_master_or_slaves(name, call))
        return found

    def reset_offset_by_time(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        force: bool = True,
        queue_ids: Iterable[int] = (),
        broker_name: str | None = None,
    ) -> list[ResetOffset]:
        """Moves a group's offsets to the first message that was stored at or after the timestamp, or to the end if the
        timestamp is -1.  Without `force` the group is only moved backwards.  Only masters can reset offsets."""
        request = pb.ResetOffsetByTimeRequest(
            group=group, topic=topic, timestamp=timestamp_ms, queue_ids=queue_ids, force=force
        )
        route = self.topic_route(topic)
        names = sorted({data.broker_name for data in route.queues if broker_name in (None, data.broker_name)})
        if not names:
            raise BrokerNotExist(f"topic {topic!r} is not on broker {broker_name!r}")
        masters = {route.addresses(name).get(MASTER_ID) or name: name for name in names}

        def reset(place: str) -> list[ResetOffset]:
            name = masters[place]
            if place == name:
                raise BrokerNotExist(f"broker {name!r} has no master, and only a master can reset offsets")
            answer = self._call(place, request)
            return [
                ResetOffset(MessageQueue(topic, name, entry.queue_id), entry.offset, entry.previous, status_of(answer))
                for entry in answer.entries
            ]

        return [*chain.from_iterable(at_each(masters, reset).values())]


def progress_of(answer: Any, broker_name: str) -> list[ConsumeProgress]:
    """Converts one broker's answer to the command consumerProgress."""
    return [
        ConsumeProgress(
            entry.group,
            MessageQueue(entry.topic, broker_name, entry.queue_id),
            entry.broker_offset,
            entry.consumer_offset,
            entry.last_timestamp,
            answer.broker_id,
            entry.generation,
            entry.lag if entry.HasField("lag") else None,
        )
        for entry in answer.entries
    ]
