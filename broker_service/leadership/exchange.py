"""MetadataExchange makes the metadata that a master and its slaves send to each other, and merges what they receive."""

import logging
from collections.abc import Mapping

from rocketsim_proto import metadata_pb2

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.metadata.consumer_offsets import Change
from broker_service.broker.metadata.messages import (
    access_to_proto,
    acl_from_proto,
    floors_to_proto,
    group_from_proto,
    group_to_proto,
    offsets_from_proto,
    offsets_to_proto,
    topic_from_proto,
    topic_to_proto,
    user_from_proto,
    version_from_proto,
    version_to_proto,
)
from broker_service.delayed.schedule import DelayPosition
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.store.message_store import MessageStore

logger = logging.getLogger(__name__)


class MetadataExchange:
    def __init__(self, broker: Broker, schedule: ScheduleService) -> None:
        self._broker = broker
        self._schedule = schedule

    # --- the master's side ------------------------------------------------------------------------------------------

    def snapshot(self) -> metadata_pb2.Metadata:
        broker = self._broker
        position = self._schedule.position()
        snapshot = metadata_pb2.Metadata(
            topics_version=version_to_proto(broker.topics.version),
            topics=[topic_to_proto(topic) for topic in broker.topics.entries.values()],
            groups_version=version_to_proto(broker.groups.version),
            groups=[group_to_proto(group) for group in broker.groups.entries.values()],
            consumer_offsets=offsets_to_proto(broker.offsets.everything()),
            delay_offsets=[
                metadata_pb2.DelayOffset(delay_level=level, offset=offset) for level, offset in position.offsets.items()
            ],
            deleted_topics=broker.topics.deleted(),
            deleted_queues=floors_to_proto(broker.topics.tombstones, broker.topics.tombstones),
            deleted_groups=broker.groups.deleted(),
            known_slaves=metadata_pb2.KnownSlaves(addresses=broker.known_slaves.addresses),
            complete=True,
            epoch=broker.epoch,
            end_offset=position.log_offset,
            sequence=broker.changes.sent,
        )
        if (access := broker.access) is not None:
            users, acls = access
            snapshot.MergeFrom(
                access_to_proto(access, users.entries, users.deleted(), acls.entries, acls.deleted()),
            )
        return snapshot

    def accept_offsets(self, slave_id: int, metadata: metadata_pb2.Metadata) -> None:
        """Merges the offsets that a slave accepted while this master was away; offsets only rise.

        Raises ValueError for impossible offsets.  Consumers may have read messages from the slave's log that this
        master has lost, or that a newer epoch has replaced.  An offset beyond the end of its queue is lowered to this
        end, and gets a new generation.  If the lowered offset kept its generation, the slave would later hand back the
        higher offset, and the group would skip new messages.

        While this master waits after an unclean stop, no offset is lowered, because another slave may still bring the
        lost messages.  If no slave brings the lost messages, a new epoch begins, and the offsets are lowered then.
        Offsets of an unknown topic are kept, since the topic may be made again, but offsets of a deleted topic are not
        kept.
        """
        end_of, mastership = self._broker.store.queues.end, self._broker.mastership
        may_grow = mastership.standing is Standing.WAITING and mastership.begins_epoch
        topics, offsets = self._broker.topics, self._broker.offsets
        changes: list[Change] = []
        cut: list[Change] = []
        for group, topic, queues in offsets_from_proto(metadata.consumer_offsets):
            if topic in topics.tombstones and topic not in topics.entries:
                continue
            foreign = [queue for queue, entry in queues.items() if not offsets.may_bring(entry)]
            if foreign:
                logger.warning(
                    "refused the offsets of group %s for queues %s of topic %s from slave %d: they come from a reset "
                    "at a log position that is not in this broker's log",
                    *(group, foreign, topic, slave_id),
                )
            own = {queue: entry for queue, entry in queues.items() if queue not in foreign}
            ends = {queue: entry.offset if may_grow else end_of(topic, queue) for queue, entry in own.items()}
            changes.append(
                (group, topic, {queue: entry for queue, entry in own.items() if entry.offset <= ends[queue]})
            )
            beyond = {queue: entry.at(ends[queue]) for queue, entry in own.items() if entry.offset > ends[queue]}
            cut.append((group, topic, beyond))
        if risen := offsets.merge(changes):
            logger.info("%d consumer offsets taken over from slave %d", risen, slave_id)
        for group, topic, queues in cut:
            for queue, entry in offsets.merge_in_new_generation(group, topic, queues).items():
                logger.warning(
                    "group %s has read messages beyond the end %d of queue %d of topic %s, and these messages are "
                    "lost: its offset is set to that end",
                    *(group, entry.offset, queue, topic),
                )

    # --- the slave's side -------------------------------------------------------------------------------------------

    def apply(self, metadata: metadata_pb2.Metadata) -> None:
        """Applies a snapshot or a change from the master.

        Offsets only rise.  The topics and groups of this slave become equal to the master's.
        """
        broker = self._broker
        deleted: dict[str, dict[int, int]] = {name: {} for name in metadata.deleted_topics}
        for floor in metadata.deleted_queues:  # the list also has queues of topics that were deleted and exist again
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
        # Queues are deleted only for a topic with a tombstone, which records the topic's deletion.  A snapshot that
        # merely lacks a topic may come from a master that lost its file of topics.
        delete_queues(broker.store, deleted)
        if topics or groups:
            logger.info(
                "taken over from the master: topics %s, groups %s", sorted(topics) or "-", sorted(groups) or "-"
            )
        self._apply_access(metadata)
        if metadata.HasField("known_slaves"):
            slaves = metadata.known_slaves.addresses
            broker.known_slaves.adopt({at: slaves[at] for at in slaves if at != broker.broker_id})
        broker.offsets.merge_from_master(
            offsets_from_proto(metadata.consumer_offsets), begins=metadata.complete, ends=metadata.sequence > 0
        )
        if metadata.complete:
            delays = {item.delay_level: item.offset for item in metadata.delay_offsets}
            self._schedule.take_masters_position(DelayPosition(metadata.end_offset, delays))
        broker.changes.forget()

    def _apply_access(self, metadata: metadata_pb2.Metadata) -> None:
        """Takes over the master's users and policies, unless the master has no access control and sends none.

        Policies are written first, as in deleteUser, so that a crash between the writes of the two files leaves no
        policy of a user that is gone.
        """
        access = self._broker.access
        if access is None or not metadata.HasField("users_version"):
            return
        access.acls.adopt(
            version_from_proto(metadata.acls_version),
            [acl_from_proto(acl) for acl in metadata.acls],
            {subject: {} for subject in metadata.deleted_acls},
            complete=metadata.complete,
        )
        access.users.adopt(
            version_from_proto(metadata.users_version),
            [user_from_proto(user) for user in metadata.users],
            {name: {} for name in metadata.deleted_users},
            complete=metadata.complete,
        )

    def offsets_to_hand_back(self) -> metadata_pb2.Metadata | None:
        offsets = offsets_to_proto(self._broker.offsets.to_hand_back())
        return metadata_pb2.Metadata(consumer_offsets=offsets) if offsets else None


def delete_queues(store: MessageStore, floors: Mapping[str, Mapping[int, int]]) -> None:
    """Deletes the queue entries of deleted topics.

    `floors` has the end that each queue had when its topic was deleted, as the tombstones store it.  Entries before the
    end in `floors` are deleted.  Later entries stay: they may belong to a new topic of the same name, even if this
    topic is missing in the file of topics.
    """
    if any(floors.values()) and (queues := store.forget_before(floors)):
        logger.info("deleted the entries of queues %s that are older than the deletion of their topics", sorted(queues))
