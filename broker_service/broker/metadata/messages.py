"""Converts topics, groups and offsets to protobuf messages and back.

Reading raises ValueError for values that no broker would send.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from rocketsim_proto import metadata_pb2

from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from broker_service.broker.metadata.access import AccessTables
from broker_service.broker.metadata.config_table import DataVersion, Tombstone
from broker_service.broker.metadata.consumer_offsets import Change
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import RocketSimError
from broker_service.names import check_group_name, check_topic_name
from broker_service.store.offset_journal import NO_OFFSET, LogPoint, OffsetEntry


def version_to_proto(version: DataVersion) -> metadata_pb2.DataVersion:
    return metadata_pb2.DataVersion(
        timestamp=version.timestamp, counter=version.counter, state_version=version.state_version
    )


def version_from_proto(version: metadata_pb2.DataVersion) -> DataVersion:
    return DataVersion(version.timestamp, version.counter, version.state_version)


def topic_to_proto(topic: TopicConfig) -> metadata_pb2.TopicConfig:
    return metadata_pb2.TopicConfig(**_values(TopicConfig, topic))


def topic_from_proto(topic: metadata_pb2.TopicConfig) -> TopicConfig:
    _check(check_topic_name, topic.topic_name)
    return TopicConfig(**{**_values(TopicConfig, topic), "attributes": dict(topic.attributes)})


def group_to_proto(group: SubscriptionGroup) -> metadata_pb2.SubscriptionGroupConfig:
    policy = json.dumps(dict(group.group_retry_policy)) if group.group_retry_policy else ""
    return metadata_pb2.SubscriptionGroupConfig(**{**_values(SubscriptionGroup, group), "group_retry_policy": policy})


def group_from_proto(group: metadata_pb2.SubscriptionGroupConfig) -> SubscriptionGroup:
    _check(check_group_name, group.group_name)
    mappings = {"attributes": dict(group.attributes), "group_retry_policy": retry_policy_from_proto(group)}
    return SubscriptionGroup(**{**_values(SubscriptionGroup, group), **mappings})


def _values(kind: type[TopicConfig | SubscriptionGroup], of: Any) -> dict[str, Any]:
    """Returns the fields of a topic or group as a dict; its dataclass and its protobuf message use the same names."""
    return {field.name: getattr(of, field.name) for field in fields(kind)}


def retry_policy_from_proto(group: metadata_pb2.SubscriptionGroupConfig) -> dict[str, Any]:
    """Reads a retry policy.  Raises ValueError if the text is not a JSON object."""
    if not group.group_retry_policy:
        return {}
    policy = json.loads(group.group_retry_policy)
    if not isinstance(policy, dict):
        raise ValueError(f"group {group.group_name}: groupRetryPolicy: {group.group_retry_policy} is not a JSON object")
    return policy


def user_to_proto(user: User) -> metadata_pb2.User:
    """Converts a user, with the password, so that the result must go only to slaves."""
    return metadata_pb2.User(
        username=user.username, password=user.password, user_type=user.user_type, user_status=user.user_status
    )


def user_from_proto(user: metadata_pb2.User) -> User:
    return User(user.username, user.password, user.user_type, user.user_status)


def acl_to_proto(acl: Acl) -> metadata_pb2.Acl:
    return metadata_pb2.Acl(
        subject=acl.subject,
        policies=[
            metadata_pb2.Acl.Policy(
                resource=str(policy.resource),
                actions=sorted(policy.actions),
                source_ips=policy.to_json()["sourceIps"],
                decision=policy.decision,
            )
            for policy in acl.parsed()
        ],
    )


def policies_from_proto(acl: metadata_pb2.Acl) -> tuple[Policy, ...]:
    return tuple(
        Policy.parse(policy.resource, policy.actions, policy.source_ips, policy.decision) for policy in acl.policies
    )


def acl_from_proto(acl: metadata_pb2.Acl) -> Acl:
    return Acl(acl.subject).with_policies(policies_from_proto(acl))


def access_to_proto(
    access: AccessTables,
    users: Iterable[str],
    deleted_users: Iterable[str],
    acls: Iterable[str],
    deleted: Iterable[str],
) -> metadata_pb2.Metadata:
    """Makes a Metadata message that has only the changes of access control: users by name and policies by subject."""
    return metadata_pb2.Metadata(
        users_version=version_to_proto(access.users.version),
        users=[user_to_proto(user) for name in users if (user := access.users.get(name))],
        deleted_users=deleted_users,
        acls_version=version_to_proto(access.acls.version),
        acls=[acl_to_proto(acl) for subject in acls if (acl := access.acls.get(subject))],
        deleted_acls=deleted,
    )


def floors_to_proto(tombstones: Mapping[str, Tombstone], topics: Iterable[str]) -> list[metadata_pb2.QueueFloor]:
    """Returns, for each of `topics` that was deleted before, the offsets at which the topic's queues continue."""
    return [
        metadata_pb2.QueueFloor(topic=name, queue_id=queue_id, next_offset=offset)
        for name in topics
        if name in tombstones
        for queue_id, offset in tombstones[name].queue_offsets.items()
    ]


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
    """Reads offsets.  Raises ValueError for values that no broker would send."""
    changes: dict[tuple[str, str], dict[int, OffsetEntry]] = {}
    for item in offsets:
        if (item.group, item.topic) not in changes:
            _check(check_group_name, item.group)
            _check(check_topic_name, item.topic)
        if item.generation < 0 or item.offset < NO_OFFSET or item.queue_id < 0:
            raise ValueError(
                f"consumer offset {item.offset} of generation {item.generation}, queue {item.queue_id} is invalid"
            )
        queues = changes.setdefault((item.group, item.topic), {})
        raised_at = LogPoint(item.epoch, item.epoch_id, item.log_offset)
        queues[item.queue_id] = OffsetEntry(item.generation, item.offset, raised_at)
    return [(group, topic, queues) for (group, topic), queues in changes.items()]


def _check(rule: Callable[[str], None], name: str) -> None:
    try:
        rule(name)
    except RocketSimError as error:
        raise ValueError(str(error)) from error
