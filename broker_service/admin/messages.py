"""Serves operators' commands for single messages."""

import asyncio
from collections.abc import Sequence
from functools import partial

from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.records.record import decode, parse_offset_message_id

from broker_service.access.interceptor import require
from broker_service.access.rights import READ, CheckTopic, needs, of_topic, topic_check, user
from broker_service.admin.commands import Commands, Context, SubjectOperations, command
from broker_service.errors import InvalidParameter, NotFound
from broker_service.runtime import cold_reads
from broker_service.runtime.rpc_errors import maps_errors
from broker_service.store.key_search import KeySearchResult

DEFAULT_QUERY_MESSAGES = 32
MAX_QUERY_MESSAGES = 64
MAX_QUERY_BYTES = 4 << 20  # most bytes of an answer; a single record may be larger
FOR_EVER_MS = 2**62


class MessageCommands(Commands):
    @needs(user(lambda request: [of_topic(request.topic, *READ)], finds=True))
    @maps_errors
    async def QueryMsgById(self, request: pb.QueryMsgByIdRequest, context: Context) -> pb.QueryMsgResponse:
        check = topic_check(partial(require, context), *READ)
        return _messages(await self._operations.message_by_id(request.topic, request.message_id, check))

    @command(user(lambda request: [of_topic(request.topic, *READ)]))
    async def QueryMsgByKey(self, request: pb.QueryMsgByKeyRequest) -> pb.QueryMsgResponse:
        before = request.before if request.HasField("before") else None
        end = request.end_timestamp if request.HasField("end_timestamp") else None
        records, more_before = await self._operations.messages_by_key(
            request.topic, request.key, request.max_num, request.begin_timestamp, end, before
        )
        return _messages(records, more_before)

    @command(user(lambda request: [of_topic(request.topic, *READ)]))
    async def QueryMsgByOffset(self, request: pb.QueryMsgByOffsetRequest) -> pb.QueryMsgResponse:
        return _messages([await self._operations.message_by_offset(request.topic, request.queue_id, request.offset)])


def _messages(records: Sequence[bytes], more_before: int | None = None) -> pb.QueryMsgResponse:
    return pb.QueryMsgResponse(records=b"".join(records), count=len(records), more_before=more_before)


class MessageOperations(SubjectOperations):
    async def message_by_id(self, topic: str, message_id: str, check: CheckTopic) -> list[bytes]:
        """Finds a message by the client's id (UNIQ_KEY, which needs the topic) or by the offset message id.

        Both kinds of id can have 32 hex digits, so every id is looked up as an offset message id first.  If a topic is
        named, only its messages are found, because a caller who may read one topic may not read all.  `check` is called
        with the topic of a record that is found by its offset message id.
        """
        found = await self._by_offset_id(message_id)
        if found is not None:
            own = decode(found, check_crc=False).topic
            if topic in ("", own):
                check(own)
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
            await asyncio.sleep(0)  # gives other tasks of the event loop a turn

    async def message_at(self, topic: str, commit_log_offset: int, check: CheckTopic) -> bytes:
        """Returns the record that starts at this log offset.  If `topic` is not empty, the record must belong to this
        topic.  `check` is called with the record's topic.
        """
        store = self._broker.store
        found = await cold_reads.read(store, partial(store.log.find_record, commit_log_offset))
        own = "" if found is None else decode(found, check_crc=False).topic
        if found is None or topic not in ("", own):
            where = f" of topic {topic}" if topic else ""
            raise NotFound(f"no record{where} starts at {commit_log_offset} of this broker's log")
        check(own)
        return found

    async def messages_by_key(
        self, topic: str, key: str, max_num: int, begin: int, end: int | None, before: int | None
    ) -> tuple[list[bytes], int | None]:
        """Returns records, the newest first, and the `before` of the next search for older records; None if no older
        records exist.

        `max_num` 0 means DEFAULT_QUERY_MESSAGES.  Without `end` the search begins at the newest message, without
        `before` at the end of the log.
        """
        self._broker.topics.existing(topic)
        if not key:
            raise InvalidParameter("a search by key must name a key")
        if max_num < 0:
            raise InvalidParameter(
                f"{max_num} messages are asked for; ask for 1 to {MAX_QUERY_MESSAGES} or 0 for {DEFAULT_QUERY_MESSAGES}"
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
        """Reads as many of the records as fit into one answer, but at least one.

        Returns the records, and the number of offsets that were read.
        """
        records: list[bytes] = []
        size = 0
        for looked_at, offset in enumerate(offsets):
            try:
                record = await self._read_record(offset)
            except NotFound:
                continue  # the record has expired since it was found
            size += len(record)
            if records and size > MAX_QUERY_BYTES:
                return records, looked_at
            records.append(record)
        return records, len(offsets)

    async def message_by_offset(self, topic: str, queue_id: int, offset: int) -> bytes:
        self._broker.topics.existing(topic)
        store = self._broker.store
        found = await cold_reads.read(
            store, lambda: store.queues.read_ranges([(topic, queue_id, offset, offset + 1)], max_bytes=1)
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
        return await cold_reads.read(store, partial(store.log.record_at, offset))

    async def _by_offset_id(self, message_id: str) -> bytes | None:
        try:
            offset = parse_offset_message_id(message_id)[2]
        except ValueError:
            return None
        store = self._broker.store
        data = await cold_reads.read(store, partial(store.log.find_record, offset))
        if data is None:
            return None
        # The address in the id is compared with the record's address and not with this broker's, because the records of
        # both brokers of a pair have the master's address.
        message = decode(data, check_crc=False)
        host = bytes.fromhex(message_id)[:-8]
        return data if host == message.store_host else None
