"""MetadataChanges collects changes of topics, groups, committed offsets, users and known slaves, and sends them to the
slaves.
"""

import asyncio
from typing import Any

from rocketsim_proto import metadata_pb2

from broker_service.broker.core.mastership import Mastership
from broker_service.broker.metadata.consumer_offsets import Change
from broker_service.broker.metadata.messages import (
    access_to_proto,
    floors_to_proto,
    group_to_proto,
    offsets_to_proto,
    topic_to_proto,
    version_to_proto,
)
from broker_service.broker.metadata.tables import Tables
from broker_service.replication.slave_streams import SlaveStreams


class MetadataChanges:
    """Sends changes of the tables to the slaves, in numbered messages.  Slaves acknowledge the numbers of these
    messages.

    A broker that is a slave discards its own changes.  Users and policies are sent only if access control is on.
    """

    def __init__(
        self,
        tables: Tables,
        mastership: Mastership,
        slaves: SlaveStreams[Any],
    ) -> None:
        topics, groups, offsets, known_slaves, access = tables
        self._access = access
        self._users: set[str] = set()
        self._acls: set[str] = set()
        self._tables = topics, groups, offsets, known_slaves
        self._mastership = mastership
        self._slaves = slaves
        self._topics: set[str] = set()
        self._groups: set[str] = set()
        self._offsets: dict[tuple[str, str], set[int]] = {}
        self._known_slaves = False
        self.sent = 1  # number of the last message; message 1 has the tables that were loaded at the start
        topics.changed.append(self._topics.add)
        groups.changed.append(self._groups.add)
        offsets.changed.append(self._offsets_changed)
        known_slaves.changed.append(self._known_slaves_changed)
        if access is not None:
            access.users.changed.append(self._users.add)
            access.acls.changed.append(self._acls.add)

    @property
    def sequence(self) -> int:
        """Returns the number of the message that has all changes until now.  The message with this number may not have
        been sent yet.
        """
        return self.sent + self._has_some()

    def publish(self) -> None:
        """Sends the collected changes now.

        A topic's deletion must be sent at once.  If a deletion were sent only after the topic was created again, slaves
        would take the new topic for the old one.
        """
        if self._mastership.is_master and (change := self._take()) is not None:
            self._slaves.publish(change)

    def publish_topics(self) -> None:
        """Sends the collected changes at once if they include a topic.  Must be called before a new topic's records are
        sent, because a promoted slave must know the topic.
        """
        if self._topics:
            self.publish()

    def publish_soon(self) -> int:
        """Sends the changes at the end of this turn of the event loop, so that all commits of the turn share a message.

        Returns the number of the message that will have all changes made until now.
        """
        asyncio.get_running_loop().call_soon(self.publish)
        return self.sequence

    def forget(self) -> None:
        """Discards the collected changes, because a slave sends none."""
        self._topics.clear()
        self._groups.clear()
        self._offsets = {}
        self._known_slaves = False
        self._users.clear()
        self._acls.clear()

    def _has_some(self) -> bool:
        some = self._topics or self._groups or self._offsets or self._known_slaves or self._users or self._acls
        return bool(some)

    def _take(self) -> metadata_pb2.Metadata | None:
        """Makes a message with all changes since the last call.  Returns None if nothing has changed."""
        if not self._has_some():
            return None
        self.sent += 1
        topics, groups, offsets, known_slaves = self._tables
        topic_names, group_names = sorted(self._topics), sorted(self._groups)
        changed_offsets, slaves_changed = self._offsets, self._known_slaves
        access = self._changed_access()
        self.forget()
        deleted = [name for name in topic_names if name not in topics.entries]
        change = metadata_pb2.Metadata(
            topics_version=version_to_proto(topics.version),
            topics=[topic_to_proto(topic) for name in topic_names if (topic := topics.get(name))],
            groups_version=version_to_proto(groups.version),
            groups=[group_to_proto(group) for name in group_names if (group := groups.get(name))],
            consumer_offsets=offsets_to_proto(
                (group, topic, {queue: offsets.get(group, topic, queue) for queue in sorted(queues)})
                for (group, topic), queues in changed_offsets.items()
            ),
            deleted_topics=deleted,
            deleted_queues=floors_to_proto(topics.tombstones, deleted),
            deleted_groups=[name for name in group_names if name not in groups.entries],
            known_slaves=metadata_pb2.KnownSlaves(addresses=known_slaves.addresses) if slaves_changed else None,
            epoch=self._mastership.epoch,
            sequence=self.sent,
        )
        if access is not None:
            change.MergeFrom(access)
        return change

    def _changed_access(self) -> metadata_pb2.Metadata | None:
        if self._access is None:
            return None
        users, acls = sorted(self._users), sorted(self._acls)
        return access_to_proto(
            self._access,
            users,
            [name for name in users if self._access.users.get(name) is None],
            acls,
            [subject for subject in acls if self._access.acls.get(subject) is None],
        )

    def _known_slaves_changed(self) -> None:
        self._known_slaves = True

    def _offsets_changed(self, change: Change) -> None:
        group, topic, queues = change
        self._offsets.setdefault((group, topic), set()).update(queues)
