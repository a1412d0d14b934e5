"""Answers requests of RocketMQ's tools, mqadmin and the dashboard, over the remoting protocol.

Each method converts a request to a call of Operations, Progress, Status or QueueLookup, as the commands of our own
tools do.  Each method also converts the result to the form that RocketMQ's tools read.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from broker_service.access.remoting import request_topic_check
from broker_service.access.rights import READ
from broker_service.admin.messages import FOR_EVER_MS
from broker_service.admin.operations import Operations
from broker_service.admin.progress import Progress
from broker_service.admin.status import Status
from broker_service.admin.volumes import TOTAL, Volume
from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads.queue_lookup import Bounds, QueueLookup
from broker_service.config.properties import values_in
from broker_service.errors import InvalidParameter, SubscriptionGroupNotExist
from broker_service.names import is_internal_topic
from broker_service.put_result import CommitStatus
from broker_service.runtime.remoting.bodies import by_queue, from_json, to_json
from broker_service.runtime.remoting.calls import Answer, Handlers, Request
from broker_service.state.moves import original_topic
from broker_service.state.transitions import Place

T = TypeVar("T")

TOOLS_GROUP = "TOOLS_CONSUMER"  # the group with which RocketMQ's tools read messages
TYPE_ATTRIBUTE = "message.type"
PERM_INHERIT = 1  # a bit that RocketMQ's forms set, and that has no meaning for a topic with queues
CHANGE_WAIT_S = 3.0  # longest wait of a change for a slave; mqadmin waits 5 s for an answer
# Figures that this broker does not count.  If one of these figures is missing in a broker's answer, RocketMQ's tools
# print no line for this broker.
_NOTHING = {
    "sendThreadPoolQueueSize": "0",
    "pullThreadPoolQueueSize": "0",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "pageCacheLockTimeMills": "0",
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
    "remainTransientStoreBufferNumbs": "0",
    "remainHowManyDataToFlush": "0 B",
}


class AdminAnswers:
    def __init__(
        self,
        broker: Broker,
        operations: Operations,
        progress: Progress,
        status: Status,
        queues: QueueLookup,
    ) -> None:
        self._broker = broker
        self._operations = operations
        self._progress = progress
        self._status = status
        self._queues = queues

    def handlers(self) -> Handlers:
        code = RequestCode
        return {
            code.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            code.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            code.GET_ALL_TOPIC_CONFIG: self.all_topics,
            code.GET_TOPIC_CONFIG: self.topic,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            code.GET_TOPIC_STATS_INFO: self.topic_status,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            code.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            code.GET_SUBSCRIPTIONGROUP_CONFIG: self.group,
            code.GET_CONSUME_STATS: self.consume_stats,
            code.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            code.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            code.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            code.QUERY_MESSAGE: self.query_message,
            code.VIEW_MESSAGE_BY_ID: self.view_message,
            code.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            code.GET_BROKER_CONFIG: self.config,
            code.UPDATE_BROKER_CONFIG: self.update_config,
            code.GET_BROKER_HA_STATUS: self.ha_status,
            code.VIEW_BROKER_STATS_DATA: self.stats,
        }

    # --- topics -------------------------------------------------------------------------------------------------------

    async def update_topic(self, request: Request) -> Answer:
        name = request.text("topic")
        present = self._broker.topics.get(name) or TopicConfig(name)
        topic = replace(
            present,
            read_queue_nums=request.number("readQueueNums", present.read_queue_nums, bits=32),
            write_queue_nums=request.number("writeQueueNums", present.write_queue_nums, bits=32),
            perm=request.number("perm", present.perm, bits=32) & ~PERM_INHERIT,
            order=request.boolean("order", default=present.order),
            attributes=_changed(present.attributes, request.text("attributes", "")),
        )
        _, answer = await self._change(partial(self._operations.update_topic, topic))
        return answer

    async def delete_topic(self, request: Request) -> Answer:
        """Deletes a topic.  A slave, which mqadmin also asks, does nothing, because the slave gets the change from its
        master.
        """
        topic = request.text("topic")
        if self._broker.is_slave:
            return Answer()
        await self._operations.past_start()
        if topic not in self._broker.topics.entries:
            # RocketMQ's tools ask every pair of a cluster, and stop at the first pair that refuses.  They also delete
            # the retry and dead letter topics of each group, which RocketMQ's brokers always create.
            return Answer()
        _, answer = await self._change(partial(self._operations.delete_topic, topic), past_start=False)
        return answer

    async def all_topics(self, request: Request) -> Answer:
        topics = self._broker.topics
        table = {name: _topic_json(topics.entries[name]) for name in sorted(topics.entries)}
        body = {"dataVersion": self._version(topics.version), "topicConfigTable": table}
        return Answer(to_json(body), {"totalTopicNum": str(len(table))})

    async def topic(self, request: Request) -> Answer:
        return Answer(to_json(_topic_json(self._topic(request.text("topic")))))

    async def system_topics(self, request: Request) -> Answer:
        return Answer(to_json({"topicList": sorted(filter(is_internal_topic, self._broker.topics.entries))}))

    async def topic_status(self, request: Request) -> Answer:
        topic = request.text("topic")
        lacks = self._broker.lacks_retry_topic(topic)
        found = [Bounds(0, 0, 0)] if lacks else await self._queues.bounds(topic, ())
        entries = [
            (
                topic,
                one.queue_id,
                {
                    "lastUpdateTimestamp": one.last_store_timestamp,
                    "maxOffset": one.max_offset,
                    "minOffset": one.min_offset,
                },
            )
            for one in found
        ]
        return Answer(by_queue("offsetTable", self._name, entries))

    # --- groups -------------------------------------------------------------------------------------------------------

    async def update_group(self, request: Request) -> Answer:
        given = from_json(request.body)
        name = _text_of(given, "groupName", "")
        present = self._broker.groups.entries.get(name) or SubscriptionGroup(name)
        try:
            group = replace(
                present,
                consume_enable=_bool_of(given, "consumeEnable", present.consume_enable),
                consume_from_min_enable=_bool_of(given, "consumeFromMinEnable", present.consume_from_min_enable),
                consume_broadcast_enable=_bool_of(given, "consumeBroadcastEnable", present.consume_broadcast_enable),
                consume_message_orderly=_bool_of(given, "consumeMessageOrderly", present.consume_message_orderly),
                retry_queue_nums=_int_of(given, "retryQueueNums", present.retry_queue_nums),
                retry_max_times=_int_of(given, "retryMaxTimes", present.retry_max_times),
                broker_id=_int_of(given, "brokerId", present.broker_id),
                which_broker_when_consume_slowly=_int_of(
                    given, "whichBrokerWhenConsumeSlowly", present.which_broker_when_consume_slowly
                ),
                group_retry_policy=given.get("groupRetryPolicy") or present.group_retry_policy,
            )
        except ValueError as error:
            raise InvalidParameter(str(error)) from error
        _, answer = await self._change(partial(self._operations.update_group, group))
        return answer

    async def delete_group(self, request: Request) -> Answer:
        """Deletes a group.  Keeps the group's offsets unless the tool asks to remove them, as RocketMQ 4's tools
        expect.
        """
        if self._broker.is_slave:
            return Answer()
        group = request.text("groupName")
        remove_offset = request.boolean("cleanOffset") or request.boolean("removeOffset")
        _, answer = await self._change(partial(self._operations.delete_group, group, remove_offset=remove_offset))
        return answer

    async def all_groups(self, request: Request) -> Answer:
        groups = self._broker.groups
        # RocketMQ's brokers always have this group.  The dashboard takes an empty table for an error.
        listed = {TOOLS_GROUP: SubscriptionGroup(TOOLS_GROUP), **groups.entries}
        table = {name: _group_json(listed[name]) for name in sorted(listed)}
        body = {
            "dataVersion": self._version(groups.version),
            "forbiddenTable": {},
            "subscriptionGroupTable": table,
        }
        return Answer(to_json(body), {"totalGroupNum": str(len(table))})

    async def group(self, request: Request) -> Answer:
        name = request.text("group")
        found = self._broker.groups.entries.get(name)
        if found is None:
            raise SubscriptionGroupNotExist(f"consumer group {name!r} does not exist here")
        return Answer(to_json(_group_json(found)))

    async def consume_stats(self, request: Request) -> Answer:
        group, topic = request.text("consumerGroup"), request.text("topic", "")
        found = await self._progress.of(group, topic)
        entries = [
            (
                item.place.topic,
                item.place.queue_id,
                {
                    "brokerOffset": item.broker_offset,
                    "consumerOffset": max(0, item.consumer_offset),
                    "lastTimestamp": last_timestamp,
                    "pullOffset": max(0, item.consumer_offset),
                },
            )
            for item, last_timestamp in found
        ]
        read = {(item.place.topic, item.place.group) for item, _ in found}
        tps = sum((self._tps(*one) for one in read), 0.0)
        return Answer(by_queue("offsetTable", self._name, entries, consumeTps=tps))

    async def groups_of_topic(self, request: Request) -> Answer:
        topic = self._topic(request.text("topic")).name
        read = self._broker.offsets.topics_by_group()
        return Answer(to_json({"groupList": sorted(group for group, topics in read.items() if topic in topics)}))

    async def topics_of_group(self, request: Request) -> Answer:
        group = request.text("group")
        topics = self._broker.offsets.topics_by_group().get(group, set())
        found = {original_topic(Place(group, topic, 0)) for topic in topics}
        return Answer(to_json({"topicList": sorted(found)}))

    async def reset_offset(self, request: Request) -> Answer:
        """Resets a group to a time, or one queue to the offset that the request names."""
        group, topic, timestamp = request.text("group"), request.text("topic"), request.number("timestamp")
        queue_id, offset = request.number("queueId", -1, bits=32), request.number("offset", -1)
        if queue_id >= 0 and offset >= 0:
            reset = partial(self._operations.reset_offset, group, topic, queue_id, offset)
        else:
            queue_ids = [queue_id] if queue_id >= 0 else []
            force = request.boolean("isForce", default=True)
            reset = partial(self._operations.reset_offset_by_time, group, topic, timestamp, queue_ids, force=force)
        resets, answer = await self._change(reset)
        answer.body = by_queue("offsetTable", self._name, [(topic, one.queue_id, one.offset) for one in resets])
        return answer

    # --- messages -----------------------------------------------------------------------------------------------------

    async def query_message(self, request: Request) -> Answer:
        """Answers with the newest messages first.  A message is found by its id in the same way as by a key."""
        records, _ = await self._operations.messages_by_key(
            request.text("topic"),
            request.text("key"),
            max(0, request.number("maxNum", 0)),
            request.number("beginTimestamp", 0),
            min(request.number("endTimestamp", FOR_EVER_MS), FOR_EVER_MS),
            None,
        )
        fields = {"indexLastUpdateTimestamp": str(self._broker.now_ms()), "indexLastUpdatePhyoffset": "0"}
        if not records:
            code = ResponseCode.QUERY_NOT_FOUND
            return Answer(fields=fields, code=code, remark="can not find message, maybe time range not correct")
        return Answer(b"".join(records), fields)

    async def view_message(self, request: Request) -> Answer:
        offset = request.number("offset")
        check = request_topic_check(request, *READ)
        return Answer(await self._operations.message_at(request.text("topic", ""), offset, check))

    # --- the broker ---------------------------------------------------------------------------------------------------

    async def runtime_info(self, request: Request) -> Answer:
        values = self._status.values()
        table = {
            **_NOTHING,
            **values,
            "getTransferredTps": values["getTransferedTps"],
            "getFoundTps": values["getTransferedTps"],
            "getTotalTps": values["getTransferedTps"],
            "getMissTps": "0.0 0.0 0.0",
            "msgPutTotalTodayNow": values["putMessageTimesTotal"],
            "msgGetTotalTodayNow": values["getMessageTimesTotal"],
            "earliestMessageTimeStamp": str(self._broker.store.oldest_stored_ms),
        }
        return Answer(to_json({"table": table}))

    async def config(self, request: Request) -> Answer:
        return Answer("".join(f"{key}={value}\n" for key, value in self._operations.config().items()).encode())

    async def update_config(self, request: Request) -> Answer:
        self._operations.update_config(values_in(request.body.decode(errors="replace")))
        return Answer()

    async def ha_status(self, request: Request) -> Answer:
        slaves = self._status.slaves()
        body = {
            "master": not self._broker.is_slave,
            "masterCommitLogMaxOffset": self._broker.store.end_offset,
            "inSyncSlaveNums": sum(one.in_sync for one in slaves),
            "haConnectionInfo": [
                {
                    "addr": one.address,
                    "slaveAckOffset": one.ack_offset,
                    "diff": one.diff_bytes,
                    "inSync": one.in_sync,
                    "transferredByteInSecond": one.transfer_bytes_per_second,
                    "transferFromWhere": one.transfer_from_where,
                }
                for one in slaves
            ],
            "haClientRuntimeInfo": {
                "masterAddr": self._status.master_address,
                "transferredByteInSecond": 0,
                "maxOffset": self._broker.store.end_offset,
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "isActivated": self._broker.is_slave,
            },
        }
        return Answer(to_json(body))

    async def stats(self, request: Request) -> Answer:
        """Answers that a figure does not exist if this broker does not have it, or has counted nothing for the key."""
        name, key = request.text("statsName", ""), request.text("statsKey", "")
        of_cluster = TOTAL if key == self._broker.config.broker_cluster_name else None
        puts, gets = self._status.put_volumes, self._status.get_volumes
        figures = {
            "TOPIC_PUT_NUMS": (puts, (key,), "messages"),
            "TOPIC_PUT_SIZE": (puts, (key,), "bytes"),
            "GROUP_GET_NUMS": (gets, tuple(key.split("@")), "messages"),
            "GROUP_GET_SIZE": (gets, tuple(key.split("@")), "bytes"),
            "BROKER_PUT_NUMS": (puts, of_cluster, "messages"),
            "BROKER_GET_NUMS": (gets, of_cluster, "messages"),
        }
        volumes, labels, what = figures.get(name, (puts, None, ""))
        found = None if labels is None else volumes.of(labels, self._broker.clock())
        if found is None:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=f"The stats <{name}> <{key}> not exist")
        spans = ("statsMinute", "statsHour", "statsDay")
        return Answer(to_json({span: _volume_json(one, what) for span, one in zip(spans, found, strict=True)}))

    # ------------------------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self._broker.config.broker_name

    def _topic(self, name: str) -> TopicConfig:
        """Returns a topic.

        Every group of RocketMQ has a retry topic.  If a group here has none yet, returns an empty one for the tools.
        """
        return TopicConfig(name, 1, 1) if self._broker.lacks_retry_topic(name) else self._broker.topics.existing(name)

    def _tps(self, topic: str, group: str) -> float:
        """Returns how many messages per second the group was given in the last minute."""
        found = self._status.get_volumes.of((topic, group), self._broker.clock())
        return found[0].per_second(found[0].messages) if found else 0.0

    async def _change(self, change: Callable[[], Awaitable[T]], *, past_start: bool = True) -> tuple[T, Answer]:
        """Makes a change.  Returns the change's result, and an answer whose remark says if no slave has the change
        yet.
        """
        changed, status = await self._operations.shared(change, CHANGE_WAIT_S, past_start=past_start)
        return changed, answer_of(status)

    def _version(self, version: Any) -> dict[str, int]:
        return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}


def answer_of(status: CommitStatus) -> Answer:
    """Returns the answer to a change.  Its remark says if no slave has the change yet."""
    return Answer(remark="" if status is CommitStatus.COMMIT_OK else f"{status.name}: the change is made here")


def _changed(present: Mapping[str, str], text: str) -> dict[str, str]:
    """Returns the attributes of a topic after the changes in mqadmin's form `+name=value,-name`.

    The dashboard sends the type UNSPECIFIED back for a topic without a type.
    """
    found = dict(present)
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, value = part.partition("=")
        if name.startswith("-"):
            found.pop(name[1:], None)
        else:
            found[name.removeprefix("+")] = value
    if found.get(TYPE_ATTRIBUTE) == "UNSPECIFIED":
        del found[TYPE_ATTRIBUTE]
    return found


def _topic_json(topic: TopicConfig) -> dict[str, Any]:
    return {
        "attributes": dict(topic.attributes),
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_nums,
        "topicFilterType": topic.topic_filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.topic_sys_flag,
        "writeQueueNums": topic.write_queue_nums,
    }


def _group_json(group: SubscriptionGroup) -> dict[str, Any]:
    # A tool that changes one setting sends all settings back, so the retry policy must be among them.
    policy = {"groupRetryPolicy": dict(group.group_retry_policy)} if group.group_retry_policy else {}
    return policy | {
        "attributes": dict(group.attributes),
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min_enable,
        "consumeMessageOrderly": group.consume_message_orderly,
        "consumeTimeoutMinute": group.consume_timeout_minute,
        "groupName": group.name,
        "groupSysFlag": group.group_sys_flag,
        "notifyConsumerIdsChangedEnable": group.notify_consumer_ids_changed_enable,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": group.retry_queue_nums,
        "whichBrokerWhenConsumeSlowly": group.which_broker_when_consume_slowly,
    }


def _volume_json(volume: Volume, what: str) -> dict[str, float]:
    amount = volume.bytes if what == "bytes" else volume.messages
    return {
        "avgpt": amount / volume.calls if volume.calls else 0.0,  # for each call
        "sum": amount,
        "tps": volume.per_second(amount),
    }


def _text_of(given: Mapping[str, Any], name: str, default: str) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise InvalidParameter(f"{name}={str(value)[:40]!r} must be a text")
    return value


def _bool_of(given: Mapping[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise InvalidParameter(f"{name}={str(value)[:40]!r} must be true or false")
    return value


def _int_of(given: Mapping[str, Any], name: str, default: int) -> int:
    value = given.get(name, default)
    if type(value) is not int or abs(value) >= 1 << 31:
        raise InvalidParameter(f"{name}={str(value)[:40]!r} must be a number of 32 bits")
    return value
