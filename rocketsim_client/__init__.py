"""What an application imports: producer, pull consumer, admin, and their words."""

from rocketsim_client.admin import Admin
from rocketsim_client.admin_model import SubscriptionGroupConfig, TopicConfig
from rocketsim_client.cluster import Cluster
from rocketsim_client.consumer import PullConsumer, PullResult
from rocketsim_client.errors import RocketSimError, SendFailed
from rocketsim_client.message_view import MessageView
from rocketsim_client.model import (
    Message,
    MessageQueue,
    PullStatus,
    QueueBounds,
    QueueRange,
    SendResult,
    SendStatus,
)
from rocketsim_client.producer import Producer

__all__ = [
    "Admin",
    "Cluster",
    "Message",
    "MessageQueue",
    "MessageView",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "QueueBounds",
    "QueueRange",
    "RocketSimError",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "SubscriptionGroupConfig",
    "TopicConfig",
]
