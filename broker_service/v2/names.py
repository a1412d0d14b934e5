"""Names of topics and groups as RocketMQ's proxy checks them.  Pure.

A resource's namespace is ignored, as the proxy ignores it.
"""

from rocketmq_v2 import definition_pb2 as pb
from rocketsim_proto.reserved import SYSTEM_TOPICS

from broker_service.broker.metadata.names import check_group_name, check_topic_name
from broker_service.errors import RocketSimError
from broker_service.v2.status import Refused

SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def topic_of(resource: pb.Resource) -> str:
    """The topic's name; raises Refused unless users may have such a topic.  %RETRY% and %DLQ% topics may be read."""
    try:
        check_topic_name(resource.name)
    except RocketSimError as error:
        raise Refused(pb.ILLEGAL_TOPIC, str(error)) from error
    if resource.name in SYSTEM_TOPICS or resource.name.startswith(SYSTEM_TOPIC_PREFIX):
        raise Refused(pb.ILLEGAL_TOPIC, f"cannot access system topic: {resource.name}")
    return resource.name


def group_of(resource: pb.Resource) -> str:
    try:
        check_group_name(resource.name)
    except RocketSimError as error:
        raise Refused(pb.ILLEGAL_CONSUMER_GROUP, str(error)) from error
    if resource.name.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused(pb.ILLEGAL_CONSUMER_GROUP, f"cannot use system consumer group: {resource.name}")
    return resource.name


def topic_not_found(topic: str) -> Refused:
    """The refusal in the words of RocketMQ, which the clients' own tests look for."""
    return Refused(pb.TOPIC_NOT_FOUND, f"CODE: 17  DESC: No topic route info in name server for the topic: {topic}")
