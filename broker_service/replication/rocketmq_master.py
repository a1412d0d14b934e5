"""RocketMQMaster gets configuration, log bounds and metadata from a RocketMQ master, over the remoting protocol."""

import asyncio
import json
from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Mapping, MutableMapping
from contextlib import aclosing, suppress
from itertools import count
from typing import Any

from google.protobuf import json_format
from rocketsim_proto import metadata_pb2
from rocketsim_proto.remoting import acl, frame, loose_json
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Header
from rocketsim_proto.signature import Credentials

from broker_service.errors import RocketSimError
from broker_service.replication.refusals import Mismatch, ProtocolViolation
from broker_service.replication.rocketmq_follower import LogBounds

SEQUENCE = 1  # marks a whole snapshot; RocketMQ does not number its changes
ANSWER_WITHIN_S = 4.0  # longest wait for the next answer; a whole round of questions has a limit of its own
IN_FLIGHT = 32  # most requests for which a connection waits at once

Floor = tuple[str, int, int]  # topic, queue id, next offset


class RocketMQLost(RocketSimError):
    """The master cannot be reached, is too slow, or has refused a request."""


class RocketMQRefused(RocketMQLost):
    """The master has answered a request with an error."""


class RocketMQMaster:
    """A connection for one round of questions, which one caller asks."""

    def __init__(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: Credentials | None
    ) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer
        self._user = user
        self._opaque = count(1)

    def close(self) -> None:
        self._writer.transport.abort()

    async def config(self) -> dict[str, str]:
        """Returns the master's configuration, by key."""
        lines = (await self._ask(RequestCode.GET_BROKER_CONFIG)).decode(errors="replace").splitlines()
        return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}

    async def bounds(self) -> LogBounds:
        table = _table(await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO), "table")
        try:
            return LogBounds(*(max(0, int(table[f"commitLog{name}Offset"])) for name in ("Min", "Max")))
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolViolation(f"{self._address} does not say where its log begins and ends: {error}") from error

    async def floors(self, known: MutableMapping[str, list[Floor]]) -> list[Floor]:
        """Returns (topic, queue id, next offset) of queues whose messages have all expired.

        A slave needs these next offsets, because the log that it copies does not show them.  `known` has the result for
        each topic whose bounds earlier rounds have found.  This method adds each answer to `known` when it comes, so
        that a round that fails or takes too long loses nothing.  A topic is left out only if the master says that it
        does not exist.  All other errors end the round, since a queue without its floor would begin at offset 0.
        """
        topics = list(_table(await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG), "topicConfigTable"))
        code = RequestCode.GET_TOPIC_STATS_INFO
        each = ({"topic": topic} for topic in topics if topic not in known)
        async with aclosing(self._ask_each(code, each)) as answers:
            async for asked, header, body in answers:
                topic = asked["topic"]
                if header.code == ResponseCode.TOPIC_NOT_EXIST:
                    known[topic] = []  # The topic was deleted meanwhile, or this broker does not have it.
                    continue
                if header.code != ResponseCode.SUCCESS:
                    raise self._refused(code, header, f" for topic {topic}")
                try:
                    known[topic] = list(_expired(topic, _table(body, "offsetTable")))
                except (TypeError, ValueError, KeyError) as error:
                    what = f"sends impossible bounds of topic {topic}: {error}"
                    raise ProtocolViolation(f"{self._address} {what}") from error
        return [floor for topic in topics for floor in known[topic]]

    async def metadata(self) -> tuple[metadata_pb2.Metadata, LogBounds]:
        """Returns a snapshot of the metadata, and the log's bounds after the snapshot was made.

        The log's bounds are asked for after the offsets, so that the log up to its end has all records that the offsets
        cover.  The offset of a delay level does not lie beyond the log's end either, because RocketMQ appends a delayed
        message before it moves the offset.
        """
        topics = _object(await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG))
        offsets = _table(await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET), "offsetTable")
        try:
            delays = _table(await self._ask(RequestCode.GET_ALL_DELAY_OFFSET), "offsetTable")
        except RocketMQRefused:
            delays = {}  # A master that has never written its file of delay offsets answers with an error.
        groups = _object(await self._ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        bounds = await self.bounds()
        try:
            return snapshot(topics, groups, offsets, delays, bounds.end_offset), bounds
        except (TypeError, AttributeError, KeyError, ValueError, json_format.ParseError) as error:
            raise ProtocolViolation(f"{self._address} sends impossible metadata: {error}") from error

    async def _ask(self, code: RequestCode, fields: Mapping[str, str] | None = None) -> bytes:
        """Sends a request and returns the body of the answer.  Raises RocketMQLost."""
        answer, body = await self._next_answer(code, {self._write(code, fields or {})})
        if answer.code != ResponseCode.SUCCESS:
            raise self._refused(code, answer)
        return body

    async def _ask_each(
        self, code: RequestCode, each: Iterable[Mapping[str, str]]
    ) -> AsyncGenerator[tuple[Mapping[str, str], Header, bytes], None]:
        """Sends a request for each of these fields, and yields fields, header and body of each answer when it comes.
        Raises RocketMQLost.
        """
        rest = iter(each)
        waiting: dict[int, Mapping[str, str]] = {}  # opaque -> the fields of a request that is not answered yet
        while True:
            while len(waiting) < IN_FLIGHT and (fields := next(rest, None)) is not None:
                waiting[self._write(code, fields)] = fields
            if not waiting:
                return
            answer, body = await self._next_answer(code, waiting)
            yield waiting.pop(answer.opaque), answer, body

    def _write(self, code: RequestCode, fields: Mapping[str, str]) -> int:
        """Writes a request, and returns its opaque number."""
        given = dict(fields)
        if self._user is not None:
            given = acl.signed(given, b"", self._user.access_key, self._user.secret_key)
        header = Header(int(code), next(self._opaque), fields=given)
        self._writer.write(frame.encode(header))
        return header.opaque

    async def _next_answer(self, code: RequestCode, waiting: Container[int]) -> tuple[Header, bytes]:
        """Returns the next answer to one of the requests with these opaque numbers.  Raises RocketMQLost."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await self._writer.drain()
                while True:
                    form, header_bytes, body_bytes = frame.lengths(await self._reader.readexactly(frame.HEAD.size))
                    answer = frame.decode_header(form, await self._reader.readexactly(header_bytes))
                    body = await self._reader.readexactly(body_bytes)
                    if answer.is_answer and answer.opaque in waiting:
                        return answer, body
                    # Other frames are requests of the server itself, which are ignored.
        except TimeoutError as error:
            what = f"does not answer request {code.name} within {ANSWER_WITHIN_S:g} s"
            raise RocketMQLost(f"{self._address} {what}") from error
        except (OSError, EOFError) as error:
            raise RocketMQLost(f"{self._address} does not answer request {code.name}: {error}") from error
        except frame.FrameError as error:
            raise ProtocolViolation(f"{self._address}: {error}") from error

    def _refused(self, code: RequestCode, answer: Header, what: str = "") -> RocketMQRefused:
        return RocketMQRefused(
            f"{self._address} refuses request {code.name}{what} with code {answer.code}: {answer.remark}"
        )


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection with a small buffer, so that TCP makes the other side wait while nothing is read."""
    try:
        return await asyncio.open_connection(*host_and_port(address), limit=1 << 19)
    except OSError as error:
        raise RocketMQLost(f"{address} cannot be reached: {error}") from error


async def open_master(address: str, user: Credentials | None) -> RocketMQMaster:
    return RocketMQMaster(address, *await connect(address), user)


def check_config(config: Mapping[str, str], file_size: int) -> None:
    """Raises Mismatch if a master with this configuration cannot be followed by a slave with this size of log files."""
    for name in ("enableControllerMode", "enableDLegerCommitLog", "duplicationEnable"):
        if config.get(name) == "true":
            raise Mismatch(f"the RocketMQ master has {name}=true, and speaks another protocol than the plain HA one")
    if config.get("brokerRole") == "SLAVE":
        raise Mismatch("haMasterAddress is the address of a RocketMQ slave: give the address of its master")
    theirs = config.get("mappedFileSizeCommitLog", "")
    if theirs != str(file_size):
        raise Mismatch(
            f"the RocketMQ master has mappedFileSizeCommitLog={theirs}, and this slave {file_size}: set the same here, "
            "and start with an empty store"
        )
    port = config.get("haListenPort", "")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise Mismatch(f"the RocketMQ master has haListenPort={port}, which is no port")


def snapshot(
    topics: Any, groups: Any, offsets: Mapping[str, Any], delays: Mapping[str, Any], end_offset: int
) -> metadata_pb2.Metadata:
    """Makes Metadata from the bodies of RocketMQ's answers.

    Raises TypeError, AttributeError, KeyError, ValueError or ParseError for a body that no RocketMQ sends.
    """
    return metadata_pb2.Metadata(
        topics_version=_version(topics),
        topics=[_topic(value) for value in topics["topicConfigTable"].values()],
        groups_version=_version(groups),
        groups=[_group(value) for value in groups["subscriptionGroupTable"].values()],
        consumer_offsets=_offsets(offsets),
        delay_offsets=[
            metadata_pb2.DelayOffset(delay_level=int(level), offset=offset) for level, offset in delays.items()
        ],
        complete=True,
        end_offset=end_offset,
        sequence=SEQUENCE,
    )


def _object(body: bytes) -> dict[Any, Any]:
    found = None
    with suppress(loose_json.LooseJsonError):
        found = loose_json.loads(body)
    if not isinstance(found, dict):
        raise ProtocolViolation(f"the body of an answer is no JSON object: {body[:60]!r}")
    return found


def _table(body: bytes, name: str) -> dict[Any, Any]:
    found = _object(body).get(name)
    if not isinstance(found, dict):
        raise ProtocolViolation(f"the body of an answer has no {name}: {body[:60]!r}")
    return found


def _expired(topic: str, table: Mapping[Any, Any]) -> Iterator[Floor]:
    """Yields the queues of a topic whose messages have all expired."""
    for queue, bounds in table.items():
        end = int(bounds["maxOffset"])
        if end > 0 and end == int(bounds["minOffset"]):
            yield topic, int(dict(queue)["queueId"]), end


def _version(table: Any) -> metadata_pb2.DataVersion:
    version = metadata_pb2.DataVersion()
    _parse(version, table.get("dataVersion") or {})
    return version


def _group(value: Mapping[str, Any]) -> metadata_pb2.SubscriptionGroupConfig:
    # RocketMQ 4.9 does not send `consumeTimeoutMinute`.
    values = {"consumeTimeoutMinute": 15, **value}
    policy = values.pop("groupRetryPolicy", None)
    group = metadata_pb2.SubscriptionGroupConfig()
    _parse(group, values)
    group.group_retry_policy = json.dumps(policy) if policy else ""
    return group


def _topic(value: Mapping[str, Any]) -> metadata_pb2.TopicConfig:
    topic = metadata_pb2.TopicConfig()
    _parse(topic, value)
    return topic


def _parse(message: Any, value: Mapping[str, Any]) -> None:
    present = {name: field for name, field in value.items() if field is not None}
    json_format.ParseDict(present, message, ignore_unknown_fields=True)


def _offsets(table: Mapping[str, Any]) -> Iterator[metadata_pb2.ConsumerOffset]:
    for key, queues in table.items():
        topic, at, group = key.partition("@")
        if not (topic and at and group):
            continue
        for queue_id, offset in queues.items():
            yield metadata_pb2.ConsumerOffset(group=group, topic=topic, queue_id=int(queue_id), offset=offset)
