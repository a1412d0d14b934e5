"""What an application imports: producer, pull consumer, admin, and their words.

Each name brings its module when it is first asked for: Spark's driver starts a process for every stream, and waits for
what that imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketsim_client.admin import Admin
    from rocketsim_client.admin_model import SubscriptionGroupConfig, TopicConfig
    from rocketsim_client.cluster import Cluster
    from rocketsim_client.consumer import PullConsumer, PullResult
    from rocketsim_client.errors import RocketSimError, SendFailed
    from rocketsim_client.message_view import MessageView
    from rocketsim_client.model import (
        CommitStatus,
        Message,
        MessageQueue,
        PullStatus,
        QueueBounds,
        QueueRange,
        SendResult,
        SendStatus,
    )
    from rocketsim_client.producer import Producer

_MODULES = {  # where each name is
    "Admin": "admin",
    "Cluster": "cluster",
    "CommitStatus": "model",
    "Message": "model",
    "MessageQueue": "model",
    "MessageView": "message_view",
    "Producer": "producer",
    "PullConsumer": "consumer",
    "PullResult": "consumer",
    "PullStatus": "model",
    "QueueBounds": "model",
    "QueueRange": "model",
    "RocketSimError": "errors",
    "SendFailed": "errors",
    "SendResult": "model",
    "SendStatus": "model",
    "SubscriptionGroupConfig": "admin_model",
    "TopicConfig": "admin_model",
}

__all__ = [
    "Admin",
    "Cluster",
    "CommitStatus",
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


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # from now on without this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
