"""Topics, groups and offsets as they travel between a master and its slaves: snapshots, changes, and their merging."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from rocketsim_proto import metadata_pb2

from broker_service.broker.broker import Broker
from broker_service.broker.delayed.schedule import DelayPosition
from broker_service.broker.metadata.config_table import DataVersion
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.names import check_group_name, check_topic_name
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.offsets.consumer_offsets import Change
from broker_service.errors import RocketSimError
from broker_service.store.message_store import MessageStore
from broker_service.store.offset_journal import NO_OFFSET, LogPoint, OffsetEntry

logger = logging.getLogger(__name__)


class MetadataExchange:
    """`delays` tells how far delayed messages are delivered here, `take_delays` hears what the master says of that."""

    def __init__(
        self,
        broker: Broker,
        *,
        delays: Callable[[], DelayPosition],
        take_delays: Callable[[DelayPosition], None],
    ) -> None:
        self._broker = broker
        self._delays = delays
        self._take_delays = take_delays
        self._changed_topics: set[str] = set()
        self._changed_groups: set[str] = set()
        self._changed_offsets: dict[tuple[str, str], set[int]] = {}
        self._sequence = 1  # of the last changes that were taken; what was loaded at the start is the first
        self._slaves_changed = False
        broker.topics.changed.append(self._changed_topics.add)
        broker.groups.changed.append(self._changed_groups.add)
        broker.offsets.changed.append(self._offsets_changed)
        broker.known_slaves.changed.append(self._known_slaves_changed)

    # --- the master's side ------------------------------------------------------------------------------------------

    def snapshot(self) -> metadata_pb2.Metadata:
        broker = self._broker
        position = self._delays()
        return metadata_pb2.Metadata(
            topics_version=version_to_proto(broker.topics.version),
            topics=[topic_to_proto(topic) for topic in broker.topics.entries.values()],
            groups_version=version_to_proto(broker.groups.version),
            groups=[group_to_proto(group) for group in broker.groups.entries.values()],
            consumer_offsets=offsets_to_proto(broker.offsets.everything()),
            delay_offsets=[
                metadata_pb2.DelayOffset(delay_level=level, offset=offset) for level, offset in position.offsets.items()
            ],
            deleted_topics=broker.topics.deleted(),
            deleted_queues=self._floors(broker.topics.tombstones),
            deleted_groups=broker.groups.deleted(),
            known_slaves=self._known_slaves(),
            complete=True,
            epoch=broker.epoch,
            end_offset=position.log_offset,
            sequence=self._sequence,
        )

    @property
    def topics_changed(self) -> bool:
        return bool(self._changed_topics)

    @property
    def sequence(self) -> int:
        """Of the message that has, or will have, all that is changed by now."""
        return self._sequence + self._has_changes()

    def _has_changes(self) -> bool:
        return bool(self._changed_topics or self._changed_groups or self._changed_offsets or self._slaves_changed)

    def take_changes(self) -> metadata_pb2.Metadata | None:
        """What has changed since the last call; None if nothing has."""
        if not self._has_changes():
            return None
        self._sequence += 1
        broker = self._broker
        topics, groups, offsets = self._changed_topics.copy(), self._changed_groups.copy(), self._changed_offsets
        self._changed_topics.clear()
        self._changed_groups.clear()
        self._changed_offsets = {}
        slaves_changed, self._slaves_changed = self._slaves_changed, False
        deleted = [name for name in sorted(topics) if name not in broker.topics.entries]
        return metadata_pb2.Metadata(
            topics_version=version_to_proto(broker.topics.version),
            topics=[topic_to_proto(topic) for name in sorted(topics) if (topic := broker.topics.get(name))],
            groups_version=version_to_proto(broker.groups.version),
            groups=[group_to_proto(group) for name in sorted(groups) if (group := broker.groups.get(name))],
            consumer_offsets=offsets_to_proto(
                (group, topic, {queue: broker.offsets.get(group, topic, queue) for queue in sorted(queues)})
                for (group, topic), queues in offsets.items()
            ),
            deleted_topics=deleted,
            deleted_queues=self._floors(deleted),
            deleted_groups=[name for name in sorted(groups) if name not in broker.groups.entries],
            known_slaves=self._known_slaves() if slaves_changed else None,
            epoch=broker.epoch,
            sequence=self._sequence,
        )

    def _floors(self, deleted: Iterable[str]) -> list[metadata_pb2.QueueFloor]:
        graves = self._broker.topics.tombstones
        return [
            metadata_pb2.QueueFloor(topic=name, queue_id=queue_id, next_offset=offset)
            for name in deleted
            if name in graves
            for queue_id, offset in graves[name].queue_offsets.items()
        ]

    def accept_offsets(self, slave_id: int, metadata: metadata_pb2.Metadata) -> None:
        """Merge forward what a slave took while this master was away; ValueError for garbage.

        A tail that a newer epoch forked off may have been read there: its offsets end where the queue ends here.
        """
        end_of = self._broker.store.queue_end
        changes = []
        for group, topic, queues in offsets_from_proto(metadata.consumer_offsets):
            if topic not in self._broker.topics.entries:
                continue  # deleted here since
            foreign = [queue for queue, entry in queues.items() if not self._broker.offsets.may_bring(entry)]
            if foreign:
                logger.warning(
                    "offsets of group %s for queues %s of %s, from slave %d, were reset in another history than this "
                    "log's: refused",
                    *(group, foreign, topic, slave_id),
                )
            within = {
                queue: entry.at(min(entry.offset, end_of(topic, queue)))
                for queue, entry in queues.items()
                if queue not in foreign
            }
            changes.append((group, topic, within))
        if risen := self._broker.offsets.merge(changes):
            logger.info("%d consumer offsets taken over from slave %d", risen, slave_id)

    # --- the slave's side -------------------------------------------------------------------------------------------

    def apply(self, metadata: metadata_pb2.Metadata) -> None:
        """A snapshot or a change from the master.  Offsets merge forward; topics and groups become the master's."""
        broker = self._broker
        deleted: dict[str, dict[int, int]] = {name: {} for name in metadata.deleted_topics}
        for floor in metadata.deleted_queues:  # also of topics that were made again
            deleted.setdefault(floor.topic, {})[floor.queue_id] = floor.next_offset
        topics = broker.topics.adopt(
            version_from_proto(metadata.topics_version),
            [topic_from_proto(topic) for topic in metadata.topics],
            deleted,
            complete=metadata.complete,
        )
        groups = broker.groups.adopt(
            version_from_proto(metadata.groups_version),
            [group_from_proto(group) for group in metadata.groups],
            {name: {} for name in metadata.deleted_groups},
            complete=metadata.complete,
        )
        # Only a tombstone deletes queues: a snapshot without the topic may come from a master that lost its file.
        delete_queues(broker.store, deleted)
        if topics or groups:
            logger.info(
                "taken over from the master: topics %s, groups %s", sorted(topics) or "-", sorted(groups) or "-"
            )
        if metadata.HasField("known_slaves"):
            slaves = metadata.known_slaves.addresses
            broker.known_slaves.adopt({at: slaves[at] for at in slaves if at != broker.broker_id})
        broker.offsets.merge_from_master(
            offsets_from_proto(metadata.consumer_offsets), begins=metadata.complete, ends=metadata.sequence > 0
        )
        if metadata.complete:
            delays = {item.delay_level: item.offset for item in metadata.delay_offsets}
            self._take_delays(DelayPosition(metadata.end_offset, delays))
        self.forget_changes()

    def offsets_to_hand_back(self) -> metadata_pb2.Metadata | None:
        offsets = offsets_to_proto(self._broker.offsets.to_hand_back())
        return metadata_pb2.Metadata(consumer_offsets=offsets) if offsets else None

    def forget_changes(self) -> None:
        """A slave has nobody to tell them to."""
        self._changed_topics.clear()
        self._changed_groups.clear()
        self._changed_offsets = {}
        self._slaves_changed = False

    def _known_slaves(self) -> metadata_pb2.KnownSlaves:
        return metadata_pb2.KnownSlaves(addresses=self._broker.known_slaves.addresses)

    def _known_slaves_changed(self) -> None:
        self._slaves_changed = True

    def _offsets_changed(self, change: Change) -> None:
        group, topic, queues = change
        self._changed_offsets.setdefault((group, topic), set()).update(queues)


def delete_queues(store: MessageStore, floors: Mapping[str, Mapping[int, int]]) -> None:
    """Deletes what the queues of these topics had when the topics were deleted.

    Only what lies before the tombstone's offsets goes: the topic may have been made again since, and the file that says
    so may be lost.
    """
    if queues := store.forget_before(floors):
        logger.info("deleted topics: the entries of queues %s from before are gone", sorted(queues))


def version_to_proto(version: DataVersion) -> metadata_pb2.DataVersion:
    return metadata_pb2.DataVersion(
        timestamp=version.timestamp, counter=version.counter, state_version=version.state_version
    )


def version_from_proto(version: metadata_pb2.DataVersion) -> DataVersion:
    return DataVersion(version.timestamp, version.counter, version.state_version)


def topic_to_proto(topic: TopicConfig) -> metadata_pb2.TopicConfig:
    return metadata_pb2.TopicConfig(**_values(topic))


def topic_from_proto(topic: metadata_pb2.TopicConfig) -> TopicConfig:
    _check(check_topic_name, topic.topic_name)
    return TopicConfig(**_fields_of(TopicConfig, topic))


def group_to_proto(group: SubscriptionGroup) -> metadata_pb2.SubscriptionGroupConfig:
    return metadata_pb2.SubscriptionGroupConfig(**_values(group))


def group_from_proto(group: metadata_pb2.SubscriptionGroupConfig) -> SubscriptionGroup:
    _check(check_group_name, group.group_name)
    return SubscriptionGroup(**_fields_of(SubscriptionGroup, group))


def offsets_to_proto(changes: Iterable[Change]) -> list[metadata_pb2.ConsumerOffset]:
    return [
        metadata_pb2.ConsumerOffset(
            group=group,
            topic=topic,
            queue_id=queue_id,
            generation=entry.generation,
            offset=entry.offset,
            epoch=entry.raised_at.epoch,
            epoch_id=entry.raised_at.epoch_id,
            log_offset=entry.raised_at.log_offset,
        )
        for group, topic, queues in changes
        for queue_id, entry in queues.items()
    ]


def offsets_from_proto(offsets: Iterable[metadata_pb2.ConsumerOffset]) -> list[Change]:
    """ValueError for what no broker would send."""
    changes: dict[tuple[str, str], dict[int, OffsetEntry]] = {}
    for item in offsets:
        if (item.group, item.topic) not in changes:
            _check(check_group_name, item.group)
            _check(check_topic_name, item.topic)
        if item.generation < 0 or item.offset < NO_OFFSET or item.queue_id < 0:
            raise ValueError(f"consumer offset {item.offset} of generation {item.generation}, queue {item.queue_id}")
        queues = changes.setdefault((item.group, item.topic), {})
        raised_at = LogPoint(item.epoch, item.epoch_id, item.log_offset)
        queues[item.queue_id] = OffsetEntry(item.generation, item.offset, raised_at)
    return [(group, topic, queues) for (group, topic), queues in changes.items()]


def _values(entry: TopicConfig | SubscriptionGroup) -> dict[str, Any]:
    return {field.name: getattr(entry, field.name) for field in fields(entry)}


def _fields_of(entry_class: type[Any], message: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields(entry_class):
        value = getattr(message, field.name)
        values[field.name] = dict(value) if isinstance(value, Mapping) else value
    return values


def _check(rule: Callable[[str], None], name: str) -> None:
    try:
        rule(name)
    except RocketSimError as error:
        raise ValueError(str(error)) from error
