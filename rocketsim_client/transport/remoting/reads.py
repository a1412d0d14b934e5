"""Reads messages, and the offsets of queues and groups, from RocketMQ's brokers."""

import re
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile

from rocketsim_proto.records.framing import walk_sizes
from rocketsim_proto.records.record import MIN_SIZE, RecordError
from rocketsim_proto.records.slices import as_bytes
from rocketsim_proto.remoting import frame
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from rocketsim_client.errors import (
    BadAnswer,
    CallTimeout,
    GroupNotExist,
    NotSupported,
    RocketSimError,
    ServiceNotAvailable,
)
from rocketsim_client.model import (
    MASTER_ID,
    CommitStatus,
    GetMessageStatus,
    LogEpoch,
    MessageQueue,
    OffsetRange,
    PullFrame,
    QueueBounds,
    QueueRange,
    Ranges,
    Segment,
)
from rocketsim_client.retry import is_worth_asking_again
from rocketsim_client.transport.reads import OffsetsAnswer, PullAnswer, PullCall
from rocketsim_client.transport.remoting import versions
from rocketsim_client.transport.remoting.answers import PULL_CODES, body_of, error_of, field, part, pull_status
from rocketsim_client.transport.remoting.connection import Answer, Inbox
from rocketsim_client.transport.remoting.connections import Connections, Reply, Request, checked, header_of
from rocketsim_client.transport.remoting.groups import Groups
from rocketsim_client.transport.remoting.members import KnownMembers
from rocketsim_client.transport.remoting.pace import Pace
from rocketsim_client.transport.remoting.pull_window import Ask, Piece, PullReply, PullWindow

ALL = "*"
HAS_SUBSCRIPTION = 4  # sysFlag: the request has the subscription, so no heartbeat is needed
WAITS = 2  # sysFlag: the broker holds the request until a message comes
LONG_POLL_GRACE_S = 10.0  # every 5 s a broker looks whether a pull that it holds is due
FRAME_AFTER_S = 0.5  # a frame is returned after this time, however small, because Spark waits for frames
# An overloaded broker drops answers silently, so a pull without an answer is sent again after this time.
ASKED_AGAIN_AFTER_S = 1.0
FLOW_CONTROL_PAUSE_S = 0.02

_OFFSET_AT, _SYS_FLAG_AT = 20, 36
_OFFSET, _SYS_FLAG = struct.Struct(">Q"), struct.Struct(">I")
_INNER_BATCH = 0x80

_CODE, _NEXT, _MIN, _MAX, _SUGGESTED = (
    re.compile(rb'"%s":"?(-?\d{1,19})' % name)
    for name in (b"code", b"nextBeginOffset", b"minOffset", b"maxOffset", b"suggestWhichBrokerId")
)
_REMARK = re.compile(rb'"remark":"([A-Z_]+)"')


class RemotingReads:
    """Implements `ReadCalls` over RocketMQ's remoting protocol."""

    def __init__(self, connections: Connections, members: KnownMembers, groups: Groups, pace: Pace) -> None:
        self._connections = connections
        self._members = members
        self._groups = groups
        self._pace = pace
        self._supported: set[tuple[str, str]] = set()  # address, topic
        self._steps: dict[str, int] = {}  # address -> how many messages the broker returns for one pull

    # --- messages -----------------------------------------------------------------------------------------------------

    def pull(self, address: str, call: PullCall, timeout_s: float) -> PullAnswer:
        wait_ms = call.suspend_timeout_ms
        fields = pull_fields(
            call.group, call.topic, call.queue_id, call.queue_offset, call.max_msg_nums, call.expression
        )
        fields |= {"sysFlag": str(HAS_SUBSCRIPTION | (WAITS if wait_ms else 0)), "suspendTimeoutMillis": str(wait_ms)}
        fields |= {"bname": self._members.broker_name(address, call.topic)}
        what = f"a pull of queue {call.queue_id} of topic {call.topic!r}"
        request = Request(RequestCode.PULL_MESSAGE, what, fields)
        grace_s = LONG_POLL_GRACE_S if wait_ms else 0.0
        self._pace.wait(1)
        (reply,) = self._connections.calls(address, [request], timeout_s + grace_s)
        header = reply.header
        if header.code not in PULL_CODES:
            raise self._pull_refused(reply, what, call.group)
        begin = field(header, "nextBeginOffset", address)
        refuse_inner_batch(call.topic, reply.body)
        status = pull_status(header.code, header.remark)
        sizes = _sizes(reply.body, address)
        return PullAnswer(
            code=header.code,
            status=status,
            next_begin_offset=begin,
            min_offset=field(header, "minOffset", address),
            max_offset=field(header, "maxOffset", address),
            suggest_which_broker_id=self._members.suggestion(address, field(header, "suggestWhichBrokerId", address)),
            broker_id=self._members.broker_id(address),
            count=len(sizes),
            records=reply.body,
            sizes=sizes.astype("<u4").tobytes(),
        )

    def pull_range(
        self,
        address: str,
        ranges: Ranges,
        *,
        group: str,
        expression: str,
        max_frame_bytes: int,
        timeout_s: float,
        read_in: Mapping[tuple[str, int], LogEpoch] | None = None,
    ) -> Iterator[PullFrame]:
        """Sends several pulls before the first one is answered (`pull_window`), puts their answers in order and joins
        them to frames.  `read_in` is ignored, because RocketMQ has no epochs.

        A pull that is not answered for a second is sent again, and the first of its answers counts.  If no pull is
        served within `timeout_s`, raises SystemBusy if the broker has refused pulls because of flow control, otherwise
        CallTimeout."""
        filtered = expression != ALL
        window = PullWindow[bytes](ranges, filtered=filtered, step=self._steps.get(address))
        heads = [self._template(address, one, group, expression) for one in ranges]
        last_answer = time.monotonic()  # before the connection is made, because that belongs to the first answer's time
        connection = self._connections.to(address, timeout_s)
        inbox = Inbox()
        asked: dict[int, tuple[Ask, float]] = {}  # the pulls in flight, in the order of sending
        repeated: dict[int, Ask] = {}  # pulls that were sent again, whose first answer may still come
        frames = _Frames(ranges, filtered, self._members.broker_id(address), address)
        refusal: RocketSimError | None = None  # by flow control, after the last answer
        try:
            while not window.is_done:
                while (piece := window.next_piece()) is not None:
                    frames.add(piece, self._members.suggestion(address, piece.reply.suggested))
                    if frames.size_bytes >= max_frame_bytes:
                        yield frames.take()
                        last_answer = time.monotonic()
                if window.is_done:
                    break
                if frames.is_due(time.monotonic()):
                    yield frames.take()
                    last_answer = time.monotonic()
                if asks := window.asks():
                    last_answer += self._pace.wait(len(asks))  # the broker need not answer before it is asked
                    now = time.monotonic()
                    numbers = connection.numbers(inbox, len(asks))
                    connection.send(
                        [heads[ask.range_index](number, ask) for number, ask in zip(numbers, asks, strict=True)],
                        now + timeout_s,
                    )
                    asked.update({number: (ask, now) for number, ask in zip(numbers, asks, strict=True)})
                answer = inbox.get(0)
                if answer is None:
                    window.waited()
                    if overdue := _overdue(asked, time.monotonic()):
                        for opaque in overdue:
                            repeated[opaque], _ = asked.pop(opaque)
                            window.again(repeated[opaque])
                        continue
                    answer = inbox.get(min(FRAME_AFTER_S, last_answer + timeout_s - time.monotonic()))
                if answer is not None:
                    ask = repeated.pop(answer.opaque) if answer.opaque in repeated else asked.pop(answer.opaque)[0]
                    refusal = self._take(window, ask, answer, address, ranges[ask.range_index], group)
                    if refusal is None:
                        last_answer = time.monotonic()
                    else:
                        time.sleep(FLOW_CONTROL_PAUSE_S)
                if time.monotonic() - last_answer >= timeout_s:
                    silence = CallTimeout(f"pulls at {address}: no answer within {timeout_s:.3g} s", address=address)
                    raise refusal or silence
            if window.step is not None:
                self._steps[address] = window.step
            if frames.has_any:
                yield frames.take()
        finally:
            connection.forget(inbox)

    def _take(
        self,
        window: PullWindow[bytes],
        ask: Ask,
        answer: Answer,
        address: str,
        one: "QueueRange | OffsetRange",
        group: str,
    ) -> RocketSimError | None:
        """Gives an answer to the window.  If the broker refuses the pull because of flow control, the window gets
        smaller, the pull is sent again, and the refusal is returned.  Raises any other refusal."""
        code, reply = _pull_reply(answer, address)
        if reply is not None:
            window.answered(ask, reply)
            return None
        what = f"a pull of queue {one.queue_id} of topic {one.topic!r}"
        refusal = self._pull_refused(Reply(header_of(answer, address), answer.body, address), what, group)
        if code != ResponseCode.FLOW_CONTROL:
            raise refusal
        window.slower()
        window.again(ask)
        return refusal

    def _pull_refused(self, reply: Reply, what: str, group: str) -> RocketSimError:
        """Returns the error for a refused pull.  A slave of 5.x that serves no reads says that it is busy.  If the
        broker is a slave that serves no reads, the error makes the caller ask the master, and later suggestions to read
        at the slave are ignored."""
        if reply.header.code == ResponseCode.SYSTEM_BUSY and self._members.broker_id(reply.address) != MASTER_ID:
            self._members.note_refused_reads(reply.address)
            return ServiceNotAvailable(
                f"{what} at {reply.address}: this slave serves no reads (slaveReadEnable is not set on it): "
                f"{reply.header.remark}",
                address=reply.address,
            )
        error = error_of(reply.header, what, reply.address)
        return _to_be_made(error, group) if isinstance(error, GroupNotExist) else error

    def _template(self, address: str, one: "QueueRange | OffsetRange", group: str, expression: str) -> "_Template":
        fields = pull_fields(group, one.topic, one.queue_id, 0, 0, expression)
        return _Template(self._connections, fields | {"bname": self._members.broker_name(address, one.topic)})

    # --- offsets of groups --------------------------------------------------------------------------------------------

    def commit_offsets(
        self, address: str, group: str, offsets: Mapping[MessageQueue, int], timeout_s: float
    ) -> OffsetsAnswer:
        """Sends only offsets that are higher than the group's, because a RocketMQ broker also accepts a lower offset,
        which moves the group back.  Refuses to commit at a slave, because a slave accepts the commit but does not send
        it to its master."""
        if self._members.broker_id(address) != MASTER_ID:
            raise ServiceNotAvailable(
                f"a commit of group {group!r} at {address}: RocketMQ's slaves keep no commits for their master",
                address=address,
            )
        before = {
            (topic, queue_id): offset
            for topic, queue_id, offset in self.query_offsets(address, group, list(offsets), False, timeout_s).offsets
        }
        higher = {queue: to for queue, to in offsets.items() if to > before[queue.topic, queue.queue_id]}
        requests = [
            Request(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                f"a commit of group {group!r} for queue {queue.queue_id} of topic {queue.topic!r}",
                {
                    "consumerGroup": group,
                    "topic": queue.topic,
                    "queueId": str(queue.queue_id),
                    "commitOffset": str(offset),
                    "bname": self._members.broker_name(address, queue.topic),
                },
            )
            for queue, offset in higher.items()
        ]
        if requests:
            self._commit(address, group, next(iter(higher)), requests, timeout_s)
            self._groups.committed(address, group, timeout_s)
        now = [
            (queue.topic, queue.queue_id, max(to, before[queue.topic, queue.queue_id])) for queue, to in offsets.items()
        ]
        return OffsetsAnswer(now, MASTER_ID, CommitStatus.UNSAID)

    def _commit(
        self, address: str, group: str, queue: MessageQueue, requests: Sequence[Request], timeout_s: float
    ) -> None:
        replies = self._connections.calls(address, requests, timeout_s)
        if any(reply.header.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST for reply in replies):
            # A broker of 5.x that may create groups creates a group at the group's first pull.
            self.pull(address, PullCall(group, queue.topic, queue.queue_id, 0, max_msg_nums=1), timeout_s)
            replies = self._connections.calls(address, requests, timeout_s)
        for reply, request in zip(replies, requests, strict=True):
            try:
                checked(reply, request)
            except GroupNotExist as error:
                raise _to_be_made(error, group) from error

    def query_offsets(
        self, address: str, group: str, queues: Sequence[MessageQueue], zero_for_new_group: bool, timeout_s: float
    ) -> OffsetsAnswer:
        broker_id = self._members.broker_id(address)
        requests = [
            Request(
                RequestCode.QUERY_CONSUMER_OFFSET,
                f"the offset of group {group!r} in queue {queue.queue_id} of topic {queue.topic!r}",
                {
                    "consumerGroup": group,
                    "topic": queue.topic,
                    "queueId": str(queue.queue_id),
                    "setZeroIfNotFound": frame.text(zero_for_new_group),
                    "bname": self._members.broker_name(address, queue.topic),
                },
            )
            for queue in queues
        ]
        absent = (ResponseCode.QUERY_NOT_FOUND, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        found: list[int] = []
        version = versions.FIRST_5
        for reply, request in zip(self._connections.calls(address, requests, timeout_s), requests, strict=True):
            checked(reply, request, absent)
            version = reply.header.version
            found.append(-1 if reply.header.code else field(reply.header, "offset", address))
        if broker_id != MASTER_ID and not versions.slaves_have_group_offsets(version):
            found = [-1] * len(found)
        elif 0 in found and not zero_for_new_group and not versions.says_that_there_is_no_offset(version):
            found = self._only_committed(address, group, queues, found, timeout_s)
        offsets = [(queue.topic, queue.queue_id, to) for queue, to in zip(queues, found, strict=True)]
        return OffsetsAnswer(offsets, broker_id)

    def _only_committed(
        self, address: str, group: str, queues: Sequence[MessageQueue], found: Sequence[int], timeout_s: float
    ) -> list[int]:
        """Returns the offsets with -1 instead of each 0 that the group has not committed.  A broker of 4.x answers 0
        also if the group has no offset, so the broker's table of all offsets is read."""
        request = Request(RequestCode.GET_ALL_CONSUMER_OFFSET, "the table of all offsets", {})
        body = body_of(self._connections.call(address, request, timeout_s).body, address)
        table = part(body, "offsetTable", dict, address)
        return [
            to if to or str(queue.queue_id) in (table.get(f"{queue.topic}@{group}") or {}) else -1
            for queue, to in zip(queues, found, strict=True)
        ]

    # --- offsets of queues --------------------------------------------------------------------------------------------

    def queue_bounds(
        self,
        address: str,
        topic: str,
        queue_ids: Sequence[int],
        timeout_s: float,
        read_in: Collection[LogEpoch] = (),
        group: str = "",
        closed: bool = False,
    ) -> dict[int, QueueBounds]:
        """Takes the bounds from the broker's statistics, which have all queues that can be written.  The statistics
        also say if the topic does not exist.  Queues that are not in the statistics are asked for one by one.  A proxy
        has no statistics, so all its queues are asked for one by one.  The first call for a topic raises NotSupported
        if topics of its kind are not supported."""
        request = Request(RequestCode.GET_TOPIC_STATS_INFO, f"the bounds of topic {topic!r}", {"topic": topic})
        requests = [request]
        if (address, topic) not in self._supported:
            requests.append(Request(RequestCode.GET_TOPIC_CONFIG, f"the settings of topic {topic!r}", {"topic": topic}))
        reply, *settings = self._connections.calls(address, requests, timeout_s)
        for answer in settings:
            if answer.header.code == ResponseCode.SUCCESS:
                refuse_kind(topic, body_of(answer.body, address).get("attributes"))
            elif is_worth_asking_again(error_of(answer.header, request.what, address)):
                continue  # the next call asks for the settings again
            # A refusal to tell the topic's settings is ignored, because brokers of 4.x and proxies do not know that
            # call, and some users may not make it.
            self._supported.add((address, topic))
        table: dict[int, tuple[int, int, int]] = {}
        is_proxy = reply.header.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if not is_proxy:
            checked(reply, request)
            for key, value in part(body_of(reply.body, address), "offsetTable", dict, address).items():
                if not isinstance(key, tuple) or not isinstance(value, dict):
                    raise BadAnswer(f"{address} sent statistics that cannot be read: {str(key)[:80]}", address=address)
                bounds = (part(value, name, int, address) for name in ("minOffset", "maxOffset", "lastUpdateTimestamp"))
                table[part(dict(key), "queueId", int, address)] = tuple(bounds)
        known = self._members.queues(topic, address)
        if is_proxy and known is None and not queue_ids:
            raise NotSupported(f"{address}, a proxy, has no statistics of topic {topic!r}: name its queues")
        readable = known.read_queue_nums if known is not None else max([*table, *queue_ids], default=-1) + 1
        missing = [one for one in queue_ids or range(readable) if one not in table and one < readable]
        table |= self._one_by_one(address, topic, missing, timeout_s)
        broker_id = self._members.broker_id(address)
        return {
            queue_id: QueueBounds(
                min_offset=low,
                max_offset=high,
                last_store_timestamp=stored,
                broker_id=broker_id,
                is_master=broker_id == MASTER_ID,
                readable=queue_id < readable,
                writable=known is None or queue_id < known.write_queue_nums,
            )
            for queue_id, (low, high, stored) in sorted(table.items())
            if not queue_ids or queue_id in queue_ids
        }

    def _one_by_one(
        self, address: str, topic: str, queue_ids: Sequence[int], timeout_s: float
    ) -> dict[int, tuple[int, int, int]]:
        codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        requests = [self._of_queue(address, code, topic, queue_id) for queue_id in queue_ids for code in codes]
        if not requests:
            return {}
        replies = self._connections.calls(address, requests, timeout_s)
        values = [
            field(checked(reply, request).header, "offset", address)
            for reply, request in zip(replies, requests, strict=True)
        ]
        return {one: (values[2 * at], values[2 * at + 1], 0) for at, one in enumerate(queue_ids)}

    def wait_for_records(
        self, address: str, topic: str, ends: Mapping[int, int], hold_s: float, timeout_s: float
    ) -> bool:
        """Returns False at once, because a RocketMQ broker can hold only a pull, which is for one queue."""
        return False

    def search_offsets(
        self, address: str, topic: str, timestamps: Mapping[int, int], timeout_s: float
    ) -> dict[int, int]:
        requests = []
        for queue_id, timestamp in timestamps.items():
            search = {"timestamp": str(max(timestamp, 0)), "boundaryType": "LOWER"}
            requests.append(self._of_queue(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic, queue_id, search))
        replies = self._connections.calls(address, requests, timeout_s)
        found = {
            queue_id: field(checked(reply, request).header, "offset", address)
            for queue_id, reply, request in zip(timestamps, replies, requests, strict=True)
        }
        bounds = self._one_by_one(address, topic, list(timestamps), timeout_s)
        if not versions.finds_exactly_by_time(replies[0].header.version):
            return {
                queue_id: self._bisected(
                    address, topic, queue_id, timestamps[queue_id], bounds[queue_id][:2], timeout_s
                )
                for queue_id in timestamps
            }
        # The message that 5.x finds may already be deleted, so a result below the queue's first offset is raised to it.
        return {queue_id: max(offset, bounds[queue_id][0]) for queue_id, offset in found.items()}

    def _bisected(
        self, address: str, topic: str, queue_id: int, timestamp: int, bounds: tuple[int, int], timeout_s: float
    ) -> int:
        """Finds the first message that was stored at or after `timestamp`, by pulls of single messages.  RocketMQ 4.x's
        own search is not used, because it finds the nearest message, or any one of several with the same store time."""
        low, high = bounds
        while low < high:
            middle = (low + high) // 2
            call = PullCall("", topic, queue_id, middle, max_msg_nums=1)
            answer = self.pull(address, call, timeout_s)
            if not answer.records:
                if not middle < answer.next_begin_offset <= high:
                    break
                low = answer.next_begin_offset
            elif _store_timestamp(answer.records) >= timestamp:
                high = middle
            else:
                low = middle + 1
        return low

    def _of_queue(
        self, address: str, code: RequestCode, topic: str, queue_id: int, also: Mapping[str, str] | None = None
    ) -> Request:
        fields = {"topic": topic, "queueId": str(queue_id), "bname": self._members.broker_name(address, topic)}
        return Request(code, f"an offset of queue {queue_id} of topic {topic!r}", fields | dict(also or {}))


def refuse_kind(topic: str, attributes: object) -> None:
    """Raises NotSupported if the messages of a topic with these attributes cannot be read one by one, without gaps."""
    found = attributes if isinstance(attributes, dict) else {}
    if found.get("queue.type") == "BatchCQ":
        raise NotSupported(f"topic {topic!r} has batches in its queues (queue.type=BatchCQ): not supported")
    if found.get("cleanup.policy") == "COMPACTION":
        raise NotSupported(
            f"topic {topic!r} is compacted (cleanup.policy=COMPACTION): not supported, since a message that was "
            "compacted could not be told from one that was lost"
        )


def refuse_inner_batch(topic: str, records: bytes | memoryview) -> None:
    if len(records) >= MIN_SIZE and _SYS_FLAG.unpack_from(records, _SYS_FLAG_AT)[0] & _INNER_BATCH:
        refuse_kind(topic, {"queue.type": "BatchCQ"})


def pull_fields(group: str, topic: str, queue_id: int, offset: int, count: int, expression: str) -> dict[str, str]:
    """Returns all fields of a pull request.  A broker answers with a NullPointerException if a field is missing."""
    return {
        "consumerGroup": group or READER_GROUP,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(HAS_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": expression,
        "subVersion": "0",
        "expressionType": "TAG",
    }


# Pulls that name no group use this group.  Each broker has the group from the start, even if it creates no groups by
# itself, because RocketMQ's mqadmin reads with this group.  No offsets are committed for this group.
READER_GROUP = "TOOLS_CONSUMER"


def _to_be_made(error: GroupNotExist, group: str) -> GroupNotExist:
    return GroupNotExist(
        f"{error}; the broker makes no groups by itself (autoCreateSubscriptionGroup): create it with "
        f"updateSubGroup -g {group}",
        address=error.address,
    )


class _Template:
    """Makes the requests for pulls of one queue.  Requests without a signature differ only in their number, offset and
    count, so all other bytes are encoded only once."""

    def __init__(self, connections: Connections, fields: dict[str, str]) -> None:
        self._connections = connections
        self._fields = fields
        self._parts: tuple[bytes, ...] | None = None
        if not connections.signs:
            marked = fields | {"queueOffset": "\x00", "maxMsgNums": "\x00"}
            header = frame.Header(RequestCode.PULL_MESSAGE, fields=connections.signed(marked))
            whole = frame.encode(header)[frame.HEAD.size :].replace(b'"opaque":0', b'"opaque":\\u0000', 1)
            self._parts = tuple(whole.split(b"\\u0000"))

    def __call__(self, opaque: int, ask: Ask) -> bytes:
        if self._parts is not None:
            first, second, third, fourth = self._parts
            header = b"%b%d%b%d%b%d%b" % (first, opaque, second, ask.offset, third, ask.messages, fourth)
            return frame.with_head(header, 0)
        fields = self._fields | {"queueOffset": str(ask.offset), "maxMsgNums": str(ask.messages)}
        return self._connections.encoded(Request(RequestCode.PULL_MESSAGE, "a pull", fields), opaque)


def _pull_reply(answer: Answer, address: str) -> tuple[int, PullReply[bytes] | None]:
    """Returns the code and the reply, which is None if the code is a refusal.  A header in the usual JSON form is
    searched for its values, which is faster than decoding the header."""
    head = answer.head
    if answer.form is frame.Form.JSON:
        found = [pattern.search(head) for pattern in (_CODE, _NEXT, _MIN, _MAX, _SUGGESTED)]
        remark = _REMARK.search(head)
        if remark is not None and all(found):
            code, following, low, high, suggested = (int(one[1]) for one in found if one is not None)
            if code in PULL_CODES:
                status = pull_status(code, remark[1].decode())
                return code, PullReply(status, following, low, high, suggested, answer.body, len(answer.body))
    header = header_of(answer, address)
    if header.code not in PULL_CODES:
        return header.code, None
    names = ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")
    following, low, high, suggested = (field(header, name, address) for name in names)
    status = pull_status(header.code, header.remark)
    return header.code, PullReply(status, following, low, high, suggested, answer.body, len(answer.body))


def _overdue(asked: Mapping[int, tuple[Ask, float]], now: float) -> list[int]:
    """Returns the numbers of the pulls whose answers have not come in time.  `asked` is in the order of sending."""
    return [number for number, _ in takewhile(lambda item: now - item[1][1] >= ASKED_AGAIN_AFTER_S, asked.items())]


def _sizes(records: bytes | memoryview, address: str):  # type: ignore[no-untyped-def]  # numpy's types are heavy
    try:
        return walk_sizes(as_bytes(records))
    except RecordError as error:
        raise BadAnswer(f"{address} sent bytes that are not records: {error}", address=address) from error


def _store_timestamp(records: bytes | memoryview) -> int:
    """Returns the store time of the first record."""
    from rocketsim_proto.records import record

    return record.decode(records, check_crc=False).store_timestamp


class _Frames:
    """Joins the records of several pulls to the frames that a range read yields."""

    def __init__(self, ranges: Ranges, filtered: bool, broker_id: int, address: str) -> None:
        self._ranges = ranges
        self._filtered = filtered
        self._broker_id = broker_id
        self._address = address
        self._suggested = broker_id
        self._parts: list[bytes | memoryview] = []
        self._segments: list[Segment] = []
        self._since = 0.0
        self.size_bytes = 0

    @property
    def has_any(self) -> bool:
        return bool(self._segments)

    def is_due(self, now: float) -> bool:
        return self.has_any and now - self._since >= FRAME_AFTER_S

    def add(self, piece: Piece[bytes], suggested: int) -> None:
        if not self._segments:
            self._since = time.monotonic()
        self._suggested = suggested
        reply, until = piece.reply, self._ranges[piece.range_index].until_offset
        end = min(piece.end, until)
        records: bytes | memoryview = reply.records
        first = piece.begin
        count = 0
        if len(records):
            first = self._first_offset(records, piece)
            if piece.end > until or (self._filtered and first >= until):
                records = self._before(records, until)
            count = len(_sizes(records, self._address)) if self._filtered or first > piece.begin else end - first
            if first > piece.begin and not self._filtered:
                self._segment(piece, 0, min(first, end), GetMessageStatus.MESSAGE_WAS_REMOVING)
        if len(records):
            self._parts.append(records)
            self.size_bytes += len(records)
        self._segment(piece, count, end, reply.status)

    def _segment(self, piece: Piece[bytes], count: int, end: int, status: GetMessageStatus) -> None:
        """Adds a segment to the frame, or extends the last segment if that is of the same range."""
        last = self._segments[-1] if self._segments else None
        low, high = piece.reply.min_offset, piece.reply.max_offset
        if (
            last is not None
            and last.range_index == piece.range_index
            and last.status == status == GetMessageStatus.FOUND
        ):
            last.count, last.next_offset, last.min_offset, last.max_offset = last.count + count, end, low, high
        else:
            self._segments.append(Segment(piece.range_index, count, end, low, high, status))

    def take(self) -> PullFrame:
        found = PullFrame(b"".join(self._parts), b"", self._segments, self._suggested, self._broker_id)
        self._parts, self._segments, self.size_bytes = [], [], 0
        return found

    def _first_offset(self, records: bytes | memoryview, piece: Piece[bytes]) -> int:
        one = self._ranges[piece.range_index]
        if len(records) < MIN_SIZE:
            raise BadAnswer(f"{self._address} sent {len(records)} bytes, which are not a record", address=self._address)
        refuse_inner_batch(one.topic, records)
        first: int = _OFFSET.unpack_from(records, _OFFSET_AT)[0]
        if first < piece.begin:
            raise BadAnswer(
                f"{self._address} sent offset {first} of queue {one.queue_id} of topic {one.topic!r} to a pull at "
                f"{piece.begin}",
                address=self._address,
            )
        return first

    def _before(self, records: bytes | memoryview, until: int) -> memoryview:
        """Returns the records whose offsets are before `until`."""
        at = 0
        for size in _sizes(records, self._address).tolist():
            if _OFFSET.unpack_from(records, at + _OFFSET_AT)[0] >= until:
                break
            at += size
        return memoryview(records)[:at]
