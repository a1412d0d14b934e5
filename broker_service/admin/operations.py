"""Operations: what operators ask of a broker, in mqadmin's words.  Changes are the master's to make."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rocketsim_proto.records.record import decode, parse_offset_message_id

from broker_service.admin.progress import check_known_group
from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.config_table import Planned
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.config.properties import as_properties
from broker_service.errors import InvalidParameter, NotFound, RocketSimError, ServiceNotAvailable
from broker_service.leadership.leadership import Leadership, Promoted
from broker_service.model import BrokerRole
from broker_service.runtime import cold_reads
from broker_service.runtime.tasks import to_its_end
from broker_service.state.moves import group_of, retry_topic
from broker_service.store.key_search import KeySearchResult
from broker_service.store.offset_journal import NO_OFFSET

logger = logging.getLogger(__name__)

AT_THE_END = -1  # resetOffsetByTime's "now"
DEFAULT_QUERY_MESSAGES = 32
MAX_QUERY_MESSAGES = 64
MAX_QUERY_BYTES = 4 << 20  # of an answer, unless one record is larger
START_WAIT_S = 3.0  # less than any operator's deadline
FOR_EVER_MS = 2**62


@dataclass(frozen=True, slots=True)
class Reset:
    queue_id: int
    offset: int
    previous: int  # -1: none


class Operations:
    def __init__(self, broker: Broker, leadership: Leadership) -> None:
        self._broker = broker
        self._leadership = leadership

    async def past_start(self) -> None:
        """To be awaited before a change: a master that has just started may take it in a moment."""
        await self._leadership.settled(START_WAIT_S)

    # --- topics and groups ------------------------------------------------------------------------------------------

    async def update_topic(self, topic: TopicConfig) -> TopicConfig:
        broker = self._broker
        broker.check_writable()
        await broker.topics.apply(partial(broker.topics.updating, topic, broker.now_ms()))
        logger.info(
            "topic %s: %d read and %d write queues, perm %d",
            topic.name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm,
        )
        return topic

    async def delete_topic(self, name: str) -> None:
        """Its queues and its consumers' offsets go at once, its records when the log's files expire.

        Where the disk refuses the offsets, `Saving` deletes them once it takes them.
        """
        self._broker.check_writable()
        group = group_of(name)
        if group and (group in self._broker.groups.entries or group in self._broker.offsets.groups()):
            raise InvalidParameter(
                f"topic {name} has the messages that group {group} gets again; to do without them reset the group on "
                "this topic, or delete the group with its offsets"
            )
        await to_its_end(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        broker = self._broker
        ends: dict[int, int] = {}

        def removing() -> Planned[TopicConfig]:
            # Nothing is appended to the topic from here until the table has become (`Broker.append`): the ends are
            # those of that moment, too.
            ends.update(broker.store.queue_ends(name))
            return broker.topics.removing(name, broker.now_ms(), ends)

        def removed() -> None:
            broker.store.forget_before({name: ends})
            try:
                broker.offsets.delete_topic(name)
            except ServiceNotAvailable as error:
                logger.warning("topic %s is deleted, the offsets of its groups are a little later: %s", name, error)
            broker.changes.publish()
            broker.long_polling.arrived([queue for queue in broker.long_polling.queues() if queue[0] == name])

        await broker.topics.apply(removing, then=removed)
        logger.info("topic %s deleted", name)

    async def update_group(self, group: SubscriptionGroup) -> SubscriptionGroup:
        broker = self._broker
        broker.check_writable()
        await broker.groups.apply(partial(broker.groups.updating, group, broker.now_ms()))
        logger.info("consumer group %s: %s", group.name, group)
        return group

    async def delete_group(self, name: str, *, remove_offset: bool) -> None:
        """Its settings; with `remove_offset` all that it has read, too: its offsets, what it has under way, and its
        retry topics.  Without, a group that is made again goes on where this one was.

        With `remove_offset` also where its settings are deleted already: the disk may have refused the rest.
        """
        self._broker.check_writable()
        await to_its_end(self._delete_group(name, remove_offset))

    async def _delete_group(self, name: str, remove_offset: bool) -> None:
        broker = self._broker
        removing = partial(broker.groups.removing, name, broker.now_ms())
        if remove_offset:
            async with broker.topics.held():  # the retry topics go in the step in which the group does
                dropped = partial(self._drop_group, name)
                if name in broker.groups.entries or not self._has_read(name):
                    await broker.groups.apply(removing, then=dropped)
                else:
                    dropped()
        else:
            await broker.groups.apply(removing)
        logger.info("consumer group %s deleted%s", name, " with all that it has read" if remove_offset else "")

    def _has_read(self, group: str) -> bool:
        """Whether something is left of what it has read."""
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

    # --- offsets ----------------------------------------------------------------------------------------------------

    async def reset_offset_by_time(
        self, group: str, topic_name: str, timestamp: int, queue_ids: Sequence[int], *, force: bool
    ) -> list[Reset]:
        """Where each queue's offset stands now.  If a disk refuses it, nothing has moved, or the error says what has.

        Without `force` an offset only goes back, as with mqadmin: a queue whose offset would go forward stays as it is,
        with what is under way.
        """
        broker = self._broker
        queue_ids = self._check_resets(group, topic_name, queue_ids)
        if timestamp < AT_THE_END:
            raise InvalidParameter(f"timestamp {timestamp}: milliseconds since 1970, or -1 for the end of each queue")
        deleted_before = broker.topics.tombstones.get(topic_name)
        wanted_of = {queue_id: await self._offset_at(topic_name, queue_id, timestamp) for queue_id in queue_ids}
        self._check_resets(group, topic_name, queue_ids)  # may have changed while the disk was read
        if broker.topics.tombstones.get(topic_name) is not deleted_before:
            raise ServiceNotAvailable(
                f"topic {topic_name} was deleted and made again while its offsets were looked for; reset them again"
            )
        resets: list[Reset] = []
        starts: dict[int, int] = {}
        for queue_id, wanted in wanted_of.items():
            previous = broker.offsets.progress(group, topic_name, queue_id).offset
            if previous == NO_OFFSET or wanted <= previous or force:
                starts[queue_id] = wanted
            resets.append(Reset(queue_id, starts.get(queue_id, previous), previous))
        moved = {reset.queue_id: reset.offset for reset in resets if reset.offset != reset.previous}
        self._move(group, topic_name, starts, moved)
        logger.info("offsets of group %s on topic %s reset to time %d: %s", group, topic_name, timestamp, moved)
        return resets

    def _move(self, group: str, topic_name: str, starts: Mapping[int, int], moved: Mapping[int, int]) -> None:
        """Pops go on at `starts`, which is in the log; then committed offsets move, which is in their journal."""
        offsets = self._broker.offsets
        offsets.make_room_for_reset(group, topic_name, moved)
        have_pops_moved = any([listener(group, topic_name, starts) for listener in self._broker.offsets_reset])
        try:
            offsets.reset(group, topic_name, moved)
        except RocketSimError as error:
            if not have_pops_moved:
                raise
            raise ServiceNotAvailable(
                f"{error}; this reset is half done: what group {group} pops of topic {topic_name} has moved, its "
                "committed offsets have not; reset again"
            ) from error

    def _check_resets(self, group: str, topic_name: str, queue_ids: Sequence[int]) -> Sequence[int]:
        """The queues to reset: all that can be read, if none is named.  Raises where they cannot be reset now."""
        broker = self._broker
        broker.check_writable()
        broker.check_answers_for_offsets()
        queue_nums = broker.topics.existing(topic_name).read_queue_nums
        check_known_group(broker, group)
        for queue_id in queue_ids:
            if not 0 <= queue_id < queue_nums:
                raise InvalidParameter(f"queue {queue_id} of topic {topic_name}, which has {queue_nums}")
        return queue_ids or range(queue_nums)

    async def _offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        store = self._broker.store
        if timestamp == AT_THE_END:
            return store.queue_bounds(topic, queue_id)[1]
        return await cold_reads.read(store, partial(store.search_offset_by_time, topic, queue_id, timestamp))

    # --- messages ---------------------------------------------------------------------------------------------------

    async def message_by_id(self, topic: str, message_id: str) -> list[bytes]:
        """Takes the client's id (UNIQ_KEY, which needs the topic) and the offset id: both may be 32 hex digits.  With a
        topic nothing of another one is found: who may read one may not read all."""
        found = await self._by_offset_id(message_id)
        if found is not None and (not topic or decode(found, check_crc=False).topic == topic):
            return [found]
        if not topic:
            raise NotFound(f"no record here has the offset message id {message_id!r}; name the topic for a client's id")
        before = None
        while True:
            offsets, before = await self._search(topic, message_id, MAX_QUERY_MESSAGES, 0, FOR_EVER_MS, before)
            records, _ = await self._records(offsets)
            if records:
                return records
            if before is None:
                raise NotFound(f"no message of topic {topic} has the id {message_id!r}")
            await asyncio.sleep(0)  # others get their turn

    async def message_at(self, topic: str, commit_log_offset: int) -> bytes:
        """Returns the record that starts at this offset of the log, and belongs to the topic if one is given."""
        store = self._broker.store
        found = await cold_reads.read(store, partial(store.find_record, commit_log_offset))
        if found is None or (topic and decode(found, check_crc=False).topic != topic):
            where = f" of topic {topic}" if topic else ""
            raise NotFound(f"no record{where} starts at {commit_log_offset} of this broker's log")
        return found

    async def messages_by_key(
        self, topic: str, key: str, max_num: int, begin: int, end: int | None, before: int | None
    ) -> tuple[list[bytes], int | None]:
        """Records, newest first, and the log offset in front of which to look for more; None: there are no more.

        `max_num` is DEFAULT_QUERY_MESSAGES if it is 0, `end` the newest message if it is None.
        """
        self._broker.topics.existing(topic)
        if not key:
            raise InvalidParameter("name a key")
        if max_num < 0:
            raise InvalidParameter(
                f"{max_num} messages are asked for; 1 to {MAX_QUERY_MESSAGES}, or 0 for {DEFAULT_QUERY_MESSAGES}"
            )
        wanted = min(max_num or DEFAULT_QUERY_MESSAGES, MAX_QUERY_MESSAGES)
        end = FOR_EVER_MS if end is None else end
        offsets, more_before = await self._search(topic, key, wanted, begin, end, before)
        records, looked_at = await self._records(offsets)
        if looked_at < len(offsets):
            more_before = offsets[looked_at - 1]
        return records, more_before

    async def _search(
        self, topic: str, key: str, wanted: int, begin: int, end: int, before: int | None
    ) -> KeySearchResult:
        store = self._broker.store
        search = store.key_search(topic, key, wanted, begin, end, before)
        return await cold_reads.read(store, search.run)

    async def _records(self, offsets: Sequence[int]) -> tuple[list[bytes], int]:
        """As many as go into one answer, at least one if there is one, and how many of the offsets were looked at."""
        records: list[bytes] = []
        size = 0
        for looked_at, offset in enumerate(offsets):
            try:
                record = await self._read_record(offset)
            except NotFound:
                continue  # It has expired since it was found.
            size += len(record)
            if records and size > MAX_QUERY_BYTES:
                return records, looked_at
            records.append(record)
        return records, len(offsets)

    async def message_by_offset(self, topic: str, queue_id: int, offset: int) -> bytes:
        self._broker.topics.existing(topic)
        store = self._broker.store
        found = await cold_reads.read(
            store, lambda: store.read_ranges([(topic, queue_id, offset, offset + 1)], max_bytes=1)
        )
        answer = found.answers[0]
        if not answer.count:
            there = (
                f"from {answer.min_offset} to {answer.max_offset - 1}"
                if answer.max_offset > answer.min_offset
                else "none"
            )
            raise NotFound(f"queue {queue_id} of topic {topic} has no message {offset}: it has {there}")
        return b"".join(found.records)

    async def _read_record(self, offset: int) -> bytes:
        store = self._broker.store
        return await cold_reads.read(store, partial(store.read_record, offset))

    async def _by_offset_id(self, message_id: str) -> bytes | None:
        try:
            offset = parse_offset_message_id(message_id)[2]
        except ValueError:
            return None
        store = self._broker.store
        data = await cold_reads.read(store, partial(store.find_record, offset))
        if data is None:
            return None
        # A pair's records carry the master's address wherever they are read: the offset alone says which one is meant.
        message = decode(data, check_crc=False)
        host = bytes.fromhex(message_id)[:-8]
        return data if host == message.store_host else None

    # --- the broker -------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, str]:
        return as_properties(self._broker.config)

    def update_config(self, values: Mapping[str, str]) -> dict[str, str]:
        """The changed keys as they are now."""
        if not values:
            raise InvalidParameter("name a key and its value")
        self._leadership.update_config(values)
        now = self.config()
        return {key: now[key] for key in values}

    def remove_slave(self, broker_id: int) -> None:
        """A slave that is gone for good: no start waits for it, no promotion asks for it."""
        broker = self._broker
        if broker_id in broker.acknowledgements.tracker.slaves:
            raise InvalidParameter(f"slave {broker_id} follows this master now: stop it first, and for good")
        address = broker.known_slaves.addresses.get(broker_id, "")
        had_promise = self._leadership.promises.forget(broker_id, address)
        if address or not had_promise:
            broker.known_slaves.remove(broker_id)
        broker.mastership.forget_slave(broker_id)
        broker.peers.forget(address)
        logger.warning("slave %d at %s is forgotten: an operator says that it is gone for good", broker_id, address)

    async def promote(self, broker_name: str, expected_epoch: int, role_name: str, *, force: bool) -> Promoted:
        """Without a role name it is the former master's."""
        try:
            role = BrokerRole(role_name) if role_name else None
        except ValueError:
            raise InvalidParameter(f"brokerRole {role_name!r}: ASYNC_MASTER or SYNC_MASTER") from None
        return await self._leadership.promote(broker_name, expected_epoch, role, force=force)
