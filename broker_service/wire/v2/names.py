"""Pure functions that check names of topics and groups as RocketMQ's proxy does.

As in the proxy, the namespace of a resource is ignored.  The namespace's length is limited, because answers repeat it
for each queue and message.
"""

from functools import lru_cache

from rocketmq_v2 import definition_pb2 as pb

from broker_service.errors import RocketSimError
from broker_service.names import (
    check_group_name,
    check_topic_name,
    is_internal_group,
    is_internal_topic,
)
from broker_service.wire.v2.status import Refused

MAX_NAMESPACE = 255
_REMEMBERED = 4096  # number of valid names whose check is cached


def topic_of(resource: pb.Resource) -> str:
    """Returns the topic's name.  Raises Refused for names that users may not use; %RETRY% and %DLQ% are allowed."""
    _check_namespace(resource)
    return _topic(resource.name)


@lru_cache(maxsize=_REMEMBERED)
def _topic(name: str) -> str:
    try:
        check_topic_name(name)
    except RocketSimError as error:
        raise Refused(pb.ILLEGAL_TOPIC, str(error)) from error
    if is_internal_topic(name):
        raise Refused(pb.ILLEGAL_TOPIC, f"cannot access system topic: {name}")
    return name


def group_of(resource: pb.Resource) -> str:
    _check_namespace(resource)
    return _group(resource.name)


@lru_cache(maxsize=_REMEMBERED)
def _group(name: str) -> str:
    try:
        check_group_name(name)
    except RocketSimError as error:
        raise Refused(pb.ILLEGAL_CONSUMER_GROUP, str(error)) from error
    if is_internal_group(name):
        raise Refused(pb.ILLEGAL_CONSUMER_GROUP, f"cannot use system consumer group: {name}")
    return name


def _check_namespace(resource: pb.Resource) -> None:
    if len(resource.resource_namespace) > MAX_NAMESPACE:
        raise Refused(
            pb.BAD_REQUEST,
            f"a namespace has {len(resource.resource_namespace)} characters; at most {MAX_NAMESPACE} are allowed",
        )


def check_broker(asked: str, own: str) -> None:
    """Raises Refused if a call names another broker, because its client has an old route.  An empty name means any
    broker.
    """
    if asked not in ("", own):
        raise Refused(pb.BAD_REQUEST, f"this is broker {own}, not {asked}; query the route again")


def topic_not_found(topic: str) -> Refused:
    """Returns the refusal in RocketMQ's words, because the clients' own tests expect them."""
    return Refused(pb.TOPIC_NOT_FOUND, f"CODE: 17  DESC: No topic route info in name server for the topic: {topic}")
