"""Makes operators' commands on RocketMQ's brokers, but only those that users of Spark need."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import Message
from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError, parse_offset_message_id
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from rocketsim_client.errors import BadAnswer, InvalidParameter, NotFound
from rocketsim_client.model import MessageQueue
from rocketsim_client.transport.admin import command_name
from rocketsim_client.transport.remoting.answers import body_of, part
from rocketsim_client.transport.remoting.connections import Connections, Reply, Request, checked
from rocketsim_client.transport.remoting.members import KnownMembers
from rocketsim_client.transport.remoting.unsupported import UnsupportedCall

FAR = 2**63 - 1
# The settings of a group: the name in RocketMQ's JSON -> the field of SubscriptionGroupConfig.
GROUP_FIELDS = {
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeMessageOrderly": "consume_message_orderly",
    "retryQueueNums": "retry_queue_nums",
    "retryMaxTimes": "retry_max_times",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "which_broker_when_consume_slowly",
    "notifyConsumerIdsChangedEnable": "notify_consumer_ids_changed_enable",
    "consumeTimeoutMinute": "consume_timeout_minute",
}


class RemotingAdmin:
    """Implements the commands of `AdminCalls` that RocketMQ has.  Commands that RocketMQ does not have raise
    NotSupported, which names the command."""

    def __init__(self, connections: Connections, members: KnownMembers) -> None:
        self._connections = connections
        self._members = members
        self._commands: dict[str, Callable[[str, Any, float], Message]] = {
            "UpdateTopic": self._update_topic,
            "ListTopics": self._list_topics,
            "UpdateSubGroup": self._update_sub_group,
            "ListSubGroups": self._list_sub_groups,
            "TopicStatus": self._topic_status,
            "ConsumerProgress": self._consumer_progress,
            "ResetOffsetByTime": self._reset_offset_by_time,
            "BrokerStatus": self._broker_status,
            "GetBrokerConfig": self._get_broker_config,
            "QueryMsgById": self._query_msg_by_id,
            "QueryMsgByKey": self._query_msg_by_key,
        }

    def command(self, address: str, request: Message, timeout_s: float) -> Any:
        name = command_name(request)
        command = f"{name[0].lower()}{name[1:]}"
        call = self._commands.get(name, UnsupportedCall(command))
        try:
            return call(address, request, timeout_s)
        # Protobuf raises these errors for a value that no field of the response can have.
        except (TypeError, ValueError) as error:
            raise BadAnswer(
                f"{command} at {address}: a value in the answer is impossible: {error}", address=address
            ) from error

    def _update_topic(self, address: str, asked: pb.UpdateTopicRequest, timeout_s: float) -> pb.UpdateTopicResponse:
        topic = asked.topic
        changes = changes_of(self._attributes(address, topic.topic_name, timeout_s), topic.attributes)
        fields = {
            "topic": topic.topic_name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(topic.read_queue_nums),
            "writeQueueNums": str(topic.write_queue_nums),
            "perm": str(topic.perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": str(topic.order).lower(),
            "attributes": ",".join(changes),
        }
        what = f"updateTopic {topic.topic_name}"
        self._connections.call(address, Request(RequestCode.UPDATE_AND_CREATE_TOPIC, what, fields), timeout_s)
        return pb.UpdateTopicResponse(topic=topic)

    def _attributes(self, address: str, topic: str, timeout_s: float) -> Mapping[str, str]:
        """Returns the present attributes of a topic, which are empty for a new topic and at a broker of 4.x."""
        request = Request(RequestCode.GET_TOPIC_CONFIG, f"the settings of topic {topic!r}", {"topic": topic})
        absent = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        reply = self._connections.call(address, request, timeout_s, absent)
        return {} if reply.header.code else texts(body_of(reply.body, address).get("attributes"))

    def _list_topics(self, address: str, _: Message, timeout_s: float) -> pb.ListTopicsResponse:
        request = Request(RequestCode.GET_ALL_TOPIC_CONFIG, "the list of topics", {})
        body = body_of(self._connections.call(address, request, timeout_s).body, address)
        table = part(body, "topicConfigTable", dict, address)
        found = pb.ListTopicsResponse()
        for name, config in sorted(table.items()):
            found.topics.add(
                topic_name=name,
                read_queue_nums=part(config, "readQueueNums", int, address),
                write_queue_nums=part(config, "writeQueueNums", int, address),
                perm=part(config, "perm", int, address),
                order=bool(config.get("order")),
                attributes=texts(config.get("attributes")),
            )
        return found

    def _update_sub_group(
        self, address: str, asked: pb.UpdateSubGroupRequest, timeout_s: float
    ) -> pb.UpdateSubGroupResponse:
        group = asked.group
        config: dict[str, Any] = {"groupName": group.group_name}
        config |= {name: getattr(group, field) for name, field in GROUP_FIELDS.items()}
        if group.group_retry_policy:
            try:
                config["groupRetryPolicy"] = json.loads(group.group_retry_policy)
            except ValueError as error:
                raise InvalidParameter(f"group {group.group_name!r}: group_retry_policy is not JSON: {error}") from None
        body = json.dumps(config).encode()
        what = f"updateSubGroup {group.group_name}"
        request = Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, what, {}, body)
        self._connections.call(address, request, timeout_s)
        return pb.UpdateSubGroupResponse(group=group)

    def _list_sub_groups(self, address: str, _: Message, timeout_s: float) -> pb.ListSubGroupsResponse:
        """Leaves out the attributes of groups, because `updateSubGroup` cannot change them over the remoting
        protocol."""
        found = pb.ListSubGroupsResponse()
        for name, config in sorted(self._group_table(address, timeout_s).items()):
            group = found.groups.add(group_name=name)
            for key, field in GROUP_FIELDS.items():
                if key in config:
                    setattr(group, field, config[key])
            if config.get("groupRetryPolicy"):
                group.group_retry_policy = json.dumps(config["groupRetryPolicy"])
        return found

    def _topic_status(self, address: str, asked: pb.TopicStatusRequest, timeout_s: float) -> pb.TopicStatusResponse:
        topic = asked.topic
        request = Request(RequestCode.GET_TOPIC_STATS_INFO, f"topicStatus {topic}", {"topic": topic})
        entries = [
            pb.TopicStatusResponse.Entry(
                queue_id=part(key, "queueId", int, address),
                min_offset=part(value, "minOffset", int, address),
                max_offset=part(value, "maxOffset", int, address),
                last_update_timestamp=part(value, "lastUpdateTimestamp", int, address),
            )
            for key, value in self._entries(self._connections.call(address, request, timeout_s))
        ]
        entries.sort(key=lambda entry: entry.queue_id)
        return pb.TopicStatusResponse(entries=entries)

    def _consumer_progress(
        self, address: str, asked: pb.ConsumerProgressRequest, timeout_s: float
    ) -> pb.ConsumerProgressResponse:
        groups = [asked.group] if asked.group else sorted(self._group_table(address, timeout_s))
        absent = () if asked.group else (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,)
        entries: list[pb.ConsumerProgressResponse.Entry] = []
        for name in groups:
            fields = {"consumerGroup": name, "topic": asked.topic}
            request = Request(RequestCode.GET_CONSUME_STATS, f"consumerProgress of {name}", fields)
            reply = self._connections.call(address, request, timeout_s, absent)
            if reply.header.code:
                continue  # the group was deleted after the list was made
            entries += [
                pb.ConsumerProgressResponse.Entry(
                    group=name,
                    topic=part(key, "topic", str, address),
                    queue_id=part(key, "queueId", int, address),
                    broker_offset=part(value, "brokerOffset", int, address),
                    consumer_offset=part(value, "consumerOffset", int, address),
                    last_timestamp=part(value, "lastTimestamp", int, address),
                )
                for key, value in self._entries(reply)
            ]
        entries.sort(key=lambda entry: (entry.group, entry.topic, entry.queue_id))
        return pb.ConsumerProgressResponse(entries=entries, broker_id=self._members.broker_id(address))

    def _group_table(self, address: str, timeout_s: float) -> dict[str, Any]:
        """Returns the settings of all groups, in RocketMQ's JSON."""
        request = Request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "the list of groups", {})
        body = body_of(self._connections.call(address, request, timeout_s).body, address)
        found: dict[str, Any] = part(body, "subscriptionGroupTable", dict, address)
        return found

    def _reset_offset_by_time(
        self, address: str, asked: pb.ResetOffsetByTimeRequest, timeout_s: float
    ) -> pb.ResetOffsetByTimeResponse:
        """Searches by time and commits the offsets that it finds, forwards or back, as RocketMQ's older tools do.
        The group's consumers must not be running, because they would commit their own offsets again."""
        from rocketsim_client.transport.remoting.groups import Groups
        from rocketsim_client.transport.remoting.pace import Pace
        from rocketsim_client.transport.remoting.reads import RemotingReads

        group, topic = asked.group, asked.topic
        name = self._members.broker_name(address, topic)
        reads = RemotingReads(self._connections, self._members, Groups(self._connections, "false"), Pace(0))
        bounds = reads.queue_bounds(address, topic, list(asked.queue_ids), timeout_s)
        if asked.timestamp < 0:
            found = {queue_id: one.max_offset for queue_id, one in bounds.items()}
        else:
            found = reads.search_offsets(address, topic, dict.fromkeys(bounds, asked.timestamp), timeout_s)
        queues = [MessageQueue(topic, name, queue_id) for queue_id in found]
        before = {
            queue_id: offset
            for _, queue_id, offset in reads.query_offsets(address, group, queues, False, timeout_s).offsets
        }
        wanted = {
            queue_id: to
            for queue_id, to in found.items()
            if asked.force or to <= before[queue_id] or before[queue_id] < 0
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
                    "bname": name,
                },
            )
            for queue_id, to in wanted.items()
        ]
        if requests:
            for reply, request in zip(self._connections.calls(address, requests, timeout_s), requests, strict=True):
                checked(reply, request)
        return pb.ResetOffsetByTimeResponse(
            entries=[
                pb.ResetOffsetByTimeResponse.Entry(
                    queue_id=queue_id, offset=wanted.get(queue_id, before[queue_id]), previous=before[queue_id]
                )
                for queue_id in sorted(found)
            ]
        )

    def _broker_status(self, address: str, _: Message, timeout_s: float) -> pb.BrokerStatusResponse:
        request = Request(RequestCode.GET_BROKER_RUNTIME_INFO, "brokerStatus", {})
        table = part(body_of(self._connections.call(address, request, timeout_s).body, address), "table", dict, address)
        return pb.BrokerStatusResponse(values={str(name): str(value) for name, value in sorted(table.items())})

    def _get_broker_config(self, address: str, _: Message, timeout_s: float) -> pb.GetBrokerConfigResponse:
        request = Request(RequestCode.GET_BROKER_CONFIG, "getBrokerConfig", {})
        lines = self._connections.call(address, request, timeout_s).body.decode(errors="replace").splitlines()
        pairs = [line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#")]
        return pb.GetBrokerConfigResponse(values=dict(pairs))

    def _query_msg_by_id(self, address: str, asked: pb.QueryMsgByIdRequest, timeout_s: float) -> pb.QueryMsgResponse:
        """Finds a message by the id that its producer made (UNIQ_KEY), which brokers index like a key, or by its
        offset message id."""
        topic, msg_id = asked.topic, asked.message_id
        found = self._query_msg_by_key(address, pb.QueryMsgByKeyRequest(topic=topic, key=msg_id, max_num=32), timeout_s)
        if found.records:
            return found
        try:
            _, _, log_offset = parse_offset_message_id(msg_id)
        except ValueError:
            raise NotFound(f"no message {msg_id} of topic {topic!r} at {address}", address=address) from None
        request = Request(
            RequestCode.VIEW_MESSAGE_BY_ID, f"message {msg_id}", {"offset": str(log_offset), "topic": topic}
        )
        return _found(self._connections.call(address, request, timeout_s))

    def _query_msg_by_key(self, address: str, asked: pb.QueryMsgByKeyRequest, timeout_s: float) -> pb.QueryMsgResponse:
        fields = {
            "topic": asked.topic,
            "key": asked.key,
            "maxNum": str(asked.max_num),
            "beginTimestamp": str(asked.begin_timestamp),
            "endTimestamp": str(asked.end_timestamp if asked.HasField("end_timestamp") else FAR),
        }
        request = Request(RequestCode.QUERY_MESSAGE, f"messages with key {asked.key!r}", fields)
        reply = self._connections.call(address, request, timeout_s, (ResponseCode.QUERY_NOT_FOUND,))
        return pb.QueryMsgResponse() if reply.header.code else _found(reply)

    @staticmethod
    def _entries(reply: Reply) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Returns the entries of a table that has an entry for each queue.  RocketMQ writes the queue, which is the
        key, as a JSON object."""
        table = part(body_of(reply.body, reply.address), "offsetTable", dict, reply.address)
        if not all(isinstance(key, tuple) and isinstance(value, dict) for key, value in table.items()):
            raise BadAnswer(f"{reply.address} sent a table of queues that cannot be read", address=reply.address)
        return [(dict(key), value) for key, value in table.items()]


def texts(value: Any) -> dict[str, str]:
    """Reads attributes in RocketMQ's JSON, where they may be absent or null."""
    return {str(name): str(one) for name, one in value.items()} if isinstance(value, dict) else {}


def changes_of(present: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Returns the changes from the present attributes to the wanted ones, in the form that RocketMQ's updateTopic
    takes.  Attributes that do not change are left out, because RocketMQ refuses some attributes even with their present
    value."""
    removed = [f"-{name}" for name in present if name not in wanted]
    return [*(f"+{name}={value}" for name, value in wanted.items() if present.get(name) != value), *removed]


def _found(reply: Reply) -> pb.QueryMsgResponse:
    """Returns the records of an answer, and counts them, because RocketMQ does not send their number."""
    try:
        count = len(Records.walk(reply.body))
    except RecordError as error:
        raise BadAnswer(f"{reply.address} sent damaged records: {error}", address=reply.address) from error
    return pb.QueryMsgResponse(records=bytes(reply.body), count=count)
