"""Operators' calls of RocketMQ's brokers, as far as users of Spark need them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError, parse_offset_message_id
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from rocketsim_client.admin_model import (
    ConsumeProgress,
    ResetOffset,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicStatus,
)
from rocketsim_client.errors import BadAnswer, NotFound
from rocketsim_client.message_view import Messages
from rocketsim_client.model import MessageQueue
from rocketsim_client.transport.remoting.answers import body_of, part
from rocketsim_client.transport.remoting.connections import Connections, Reply, Request, checked
from rocketsim_client.transport.remoting.members import KnownMembers
from rocketsim_client.transport.remoting.unsupported import UnsupportedCall

FAR = 2**63 - 1


class RemotingAdmin:
    """The part of `AdminCalls` that RocketMQ has.  The others raise NotSupported, which names them."""

    def __init__(self, connections: Connections, members: KnownMembers) -> None:
        self._connections = connections
        self._members = members

    def __getattr__(self, name: str) -> UnsupportedCall:
        if name.startswith("_"):
            raise AttributeError(name)
        return UnsupportedCall(name)

    def update_topic(self, address: str, topic: TopicConfig, timeout_s: float) -> TopicConfig:
        fields = {
            "topic": topic.topic_name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(topic.read_queue_nums),
            "writeQueueNums": str(topic.write_queue_nums),
            "perm": str(topic.perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": str(topic.order).lower(),
            "attributes": ",".join(f"+{name}={value}" for name, value in topic.attributes.items()),
        }
        what = f"updateTopic {topic.topic_name}"
        self._connections.call(address, Request(RequestCode.UPDATE_AND_CREATE_TOPIC, what, fields), timeout_s)
        return topic

    def update_sub_group(
        self, address: str, group: SubscriptionGroupConfig, timeout_s: float
    ) -> SubscriptionGroupConfig:
        body = json.dumps(
            {
                "groupName": group.group_name,
                "consumeEnable": group.consume_enable,
                "consumeFromMinEnable": group.consume_from_min_enable,
                "consumeBroadcastEnable": group.consume_broadcast_enable,
                "consumeMessageOrderly": group.consume_message_orderly,
                "retryQueueNums": group.retry_queue_nums,
                "retryMaxTimes": group.retry_max_times,
                "brokerId": group.broker_id,
                "whichBrokerWhenConsumeSlowly": group.which_broker_when_consume_slowly,
                "notifyConsumerIdsChangedEnable": group.notify_consumer_ids_changed_enable,
                "consumeTimeoutMinute": group.consume_timeout_minute,
            }
        ).encode()
        what = f"updateSubGroup {group.group_name}"
        request = Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, what, {}, body)
        self._connections.call(address, request, timeout_s)
        return group

    def topic_status(self, address: str, broker_name: str, topic: str, timeout_s: float) -> list[TopicStatus]:
        request = Request(RequestCode.GET_TOPIC_STATS_INFO, f"topicStatus {topic}", {"topic": topic})
        entries = self._entries(self._connections.call(address, request, timeout_s))
        found = [
            TopicStatus(
                MessageQueue(topic, broker_name, part(key, "queueId", int, address)),
                part(value, "minOffset", int, address),
                part(value, "maxOffset", int, address),
                part(value, "lastUpdateTimestamp", int, address),
            )
            for key, value in entries
        ]
        return sorted(found, key=lambda one: one.queue)

    def consumer_progress(
        self, address: str, broker_name: str, group: str, topic: str, timeout_s: float
    ) -> list[ConsumeProgress]:
        groups = [group] if group else self._groups(address, timeout_s)
        found: list[ConsumeProgress] = []
        for name in groups:
            request = Request(
                RequestCode.GET_CONSUME_STATS, f"consumerProgress of {name}", {"consumerGroup": name, "topic": topic}
            )
            (reply,) = self._connections.calls(address, [request], timeout_s)
            if reply.header.code and not group:
                continue  # of a group that has consumed nothing
            for key, value in self._entries(checked(reply, request)):
                queue = MessageQueue(part(key, "topic", str, address), broker_name, part(key, "queueId", int, address))
                found.append(
                    ConsumeProgress(
                        name,
                        queue,
                        part(value, "brokerOffset", int, address),
                        part(value, "consumerOffset", int, address),
                        part(value, "lastTimestamp", int, address),
                        self._members.broker_id(address),
                    )
                )
        return sorted(found, key=lambda one: (one.group, one.queue))

    def _groups(self, address: str, timeout_s: float) -> list[str]:
        request = Request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "the list of groups", {})
        body = body_of(self._connections.call(address, request, timeout_s).body, address)
        return sorted(part(body, "subscriptionGroupTable", dict, address))

    def reset_offset_by_time(
        self,
        address: str,
        broker_name: str,
        group: str,
        topic: str,
        timestamp_ms: int,
        queue_ids: Sequence[int],
        force: bool,
        timeout_s: float,
    ) -> list[ResetOffset]:
        """As the old way of RocketMQ's tools: a search by time, and a commit of what it finds, forwards or back.  It
        is for groups whose consumers are not running: these would commit their own offsets again."""
        from rocketsim_client.transport.remoting.groups import Groups
        from rocketsim_client.transport.remoting.pace import Pace
        from rocketsim_client.transport.remoting.reads import RemotingReads

        reads = RemotingReads(self._connections, self._members, Groups(self._connections, "false"), Pace(0))
        bounds = reads.queue_bounds(address, topic, list(queue_ids), timeout_s)
        if timestamp_ms < 0:
            found = {queue_id: one.max_offset for queue_id, one in bounds.items()}
        else:
            found = reads.search_offsets(address, topic, dict.fromkeys(bounds, timestamp_ms), timeout_s)
        queues = [MessageQueue(topic, broker_name, queue_id) for queue_id in found]
        before = {
            queue_id: offset
            for _, queue_id, offset in reads.query_offsets(address, group, queues, False, timeout_s).offsets
        }
        wanted = {
            queue_id: to for queue_id, to in found.items() if force or to <= before[queue_id] or before[queue_id] < 0
        }
        requests = [
            Request(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                f"resetOffsetByTime of {group}",
                {
                    "consumerGroup": group,
                    "topic": topic,
                    "queueId": str(queue_id),
                    "commitOffset": str(to),
                    "bname": broker_name,
                },
            )
            for queue_id, to in wanted.items()
        ]
        if requests:
            for reply, request in zip(self._connections.calls(address, requests, timeout_s), requests, strict=True):
                checked(reply, request)
        return [
            ResetOffset(
                MessageQueue(topic, broker_name, queue_id), wanted.get(queue_id, before[queue_id]), before[queue_id]
            )
            for queue_id in sorted(found)
        ]

    def broker_status(self, address: str, timeout_s: float) -> dict[str, str]:
        request = Request(RequestCode.GET_BROKER_RUNTIME_INFO, "brokerStatus", {})
        table = part(body_of(self._connections.call(address, request, timeout_s).body, address), "table", dict, address)
        return {str(name): str(value) for name, value in sorted(table.items())}

    def get_broker_config(self, address: str, timeout_s: float) -> dict[str, str]:
        reply = self._connections.call(
            address, Request(RequestCode.GET_BROKER_CONFIG, "getBrokerConfig", {}), timeout_s
        )
        lines = reply.body.decode(errors="replace").splitlines()
        return dict(line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#"))

    def query_msg_by_id(self, address: str, broker_name: str, topic: str, msg_id: str, timeout_s: float) -> Messages:
        """`msg_id`: of the client (UNIQ_KEY), which is indexed like a key, or an offset message id."""
        found, _ = self.query_msg_by_key(address, broker_name, topic, msg_id, 32, 0, None, None, timeout_s)
        if len(found):
            return found
        try:
            _, _, log_offset = parse_offset_message_id(msg_id)
        except ValueError:
            raise NotFound(f"no message {msg_id} of topic {topic!r} at {address}", address=address) from None
        request = Request(
            RequestCode.VIEW_MESSAGE_BY_ID, f"message {msg_id}", {"offset": str(log_offset), "topic": topic}
        )
        (reply,) = self._connections.calls(address, [request], timeout_s)
        if reply.header.code:
            raise NotFound(f"no message {msg_id} at {address}: {reply.header.remark[:200]}", address=address)
        return _messages(reply, broker_name)

    def query_msg_by_key(
        self,
        address: str,
        broker_name: str,
        topic: str,
        key: str,
        max_num: int,
        begin_timestamp: int,
        end_timestamp: int | None,
        before: int | None,
        timeout_s: float,
    ) -> tuple[Messages, int | None]:
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(max_num),
            "beginTimestamp": str(begin_timestamp),
            "endTimestamp": str(FAR if end_timestamp is None else end_timestamp),
        }
        request = Request(RequestCode.QUERY_MESSAGE, f"messages with key {key!r}", fields)
        reply = self._connections.call(address, request, timeout_s, (ResponseCode.QUERY_NOT_FOUND,))
        return _messages(reply, broker_name), None

    @staticmethod
    def _entries(reply: Reply) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Of a table by queue, whose keys are objects."""
        table = part(body_of(reply.body, reply.address), "offsetTable", dict, reply.address)
        if not all(isinstance(key, tuple) and isinstance(value, dict) for key, value in table.items()):
            raise BadAnswer(f"{reply.address} sent a table of queues that cannot be read", address=reply.address)
        return [(dict(key), value) for key, value in table.items()]


def _messages(reply: Reply, broker_name: str) -> Messages:
    records = b"" if reply.header.code else reply.body
    try:
        walked = Records.walk(records)
        walked.check()
    except RecordError as error:
        raise BadAnswer(f"broker {broker_name!r} sent damaged records: {error}") from error
    return Messages(walked, records, broker_name)
