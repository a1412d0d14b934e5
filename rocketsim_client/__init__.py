# isort: skip_file
"""The names that an application imports: producer, consumers, admin client, their values and errors.

A name's module is imported at the first use of the name, because Spark's driver starts a process for every stream and
waits for its imports.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketsim_client.admin import (
        Admin as Admin,
    )
    from rocketsim_client.admin_model import (
        AclInfo as AclInfo,
        AclPolicy as AclPolicy,
        ChangedAt as ChangedAt,
        ClusterMember as ClusterMember,
        ConsumeProgress as ConsumeProgress,
        Forfeit as Forfeit,
        GroupClient as GroupClient,
        HaCut as HaCut,
        HaEpoch as HaEpoch,
        HaSlave as HaSlave,
        HaStatus as HaStatus,
        Promotion as Promotion,
        ResetOffset as ResetOffset,
        SlavesLeft as SlavesLeft,
        SubscriptionGroupConfig as SubscriptionGroupConfig,
        TopicConfig as TopicConfig,
        TopicStatus as TopicStatus,
        UserInfo as UserInfo,
    )
    from rocketsim_client.cluster import (
        Cluster as Cluster,
    )
    from rocketsim_client.pull_consumer import PullConsumer as PullConsumer, PullResult as PullResult
    from rocketsim_client.connection import (
        Connection as Connection,
    )
    from rocketsim_client.errors import (
        AccessDenied as AccessDenied,
        BadAnswer as BadAnswer,
        BrokerNotExist as BrokerNotExist,
        BrokerRefused as BrokerRefused,
        BrokerUnavailable as BrokerUnavailable,
        CallTimeout as CallTimeout,
        ClientClosed as ClientClosed,
        CommitFailed as CommitFailed,
        ExpressionInvalid as ExpressionInvalid,
        GroupNotExist as GroupNotExist,
        InvalidParameter as InvalidParameter,
        InvalidReceiptHandle as InvalidReceiptHandle,
        MasterNotExist as MasterNotExist,
        MessageIllegal as MessageIllegal,
        NameServerUnavailable as NameServerUnavailable,
        NoPermission as NoPermission,
        NoRoute as NoRoute,
        NotFound as NotFound,
        NotSupported as NotSupported,
        OffsetIllegal as OffsetIllegal,
        QueueNotExist as QueueNotExist,
        RowIllegal as RowIllegal,
        RocketSimError as RocketSimError,
        SendFailed as SendFailed,
        ServiceNotAvailable as ServiceNotAvailable,
        SpoolFailed as SpoolFailed,
        SpoolUnusable as SpoolUnusable,
        StoreDamaged as StoreDamaged,
        SystemBusy as SystemBusy,
        TlsFailed as TlsFailed,
        TooNew as TooNew,
        TopicNotExist as TopicNotExist,
        Unreachable as Unreachable,
    )
    from rocketsim_client.expression import (
        SqlExpression as SqlExpression,
    )
    from rocketsim_client.consuming.consumer import Consumer as Consumer
    from rocketsim_client.message_view import (
        FoundMessages as FoundMessages,
        Messages as Messages,
        MessageView as MessageView,
    )
    from rocketsim_client.model import (
        BatchPart as BatchPart,
        CommitResult as CommitResult,
        CommitStatus as CommitStatus,
        GetMessageStatus as GetMessageStatus,
        LogEpoch as LogEpoch,
        Message as Message,
        MessageQueue as MessageQueue,
        OffsetRange as OffsetRange,
        ProducerStats as ProducerStats,
        PullFrame as PullFrame,
        PullStatus as PullStatus,
        QueueBounds as QueueBounds,
        QueueRange as QueueRange,
        Segment as Segment,
        SendResult as SendResult,
        SendResults as SendResults,
        SendStatus as SendStatus,
        SpoolStatus as SpoolStatus,
    )
    from rocketsim_client.producer import (
        Producer as Producer,
    )
    from rocketsim_client.received_message import (
        ReceivedMessage as ReceivedMessage,
    )
    from rocketsim_client.sending.transactions import (
        Transaction as Transaction,
    )
    from rocketsim_client.route import (
        BrokerData as BrokerData,
        QueueData as QueueData,
        TopicRoute as TopicRoute,
    )

# Without this handler Python would print the warnings of applications that do not configure logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_MODULES = {  # name -> its module
    "AccessDenied": "errors",
    "AclInfo": "admin_model",
    "AclPolicy": "admin_model",
    "Admin": "admin",
    "BadAnswer": "errors",
    "BatchPart": "model",
    "BrokerData": "route",
    "BrokerNotExist": "errors",
    "BrokerRefused": "errors",
    "BrokerUnavailable": "errors",
    "CallTimeout": "errors",
    "ChangedAt": "admin_model",
    "ClientClosed": "errors",
    "Cluster": "cluster",
    "ClusterMember": "admin_model",
    "CommitFailed": "errors",
    "CommitResult": "model",
    "CommitStatus": "model",
    "ConsumeProgress": "admin_model",
    "Connection": "connection",
    "Consumer": "consuming.consumer",
    "ExpressionInvalid": "errors",
    "Forfeit": "admin_model",
    "FoundMessages": "message_view",
    "GetMessageStatus": "model",
    "GroupClient": "admin_model",
    "GroupNotExist": "errors",
    "HaCut": "admin_model",
    "HaEpoch": "admin_model",
    "HaSlave": "admin_model",
    "HaStatus": "admin_model",
    "InvalidParameter": "errors",
    "InvalidReceiptHandle": "errors",
    "LogEpoch": "model",
    "MasterNotExist": "errors",
    "Message": "model",
    "MessageIllegal": "errors",
    "MessageQueue": "model",
    "MessageView": "message_view",
    "Messages": "message_view",
    "NameServerUnavailable": "errors",
    "NoPermission": "errors",
    "NoRoute": "errors",
    "NotFound": "errors",
    "NotSupported": "errors",
    "OffsetIllegal": "errors",
    "OffsetRange": "model",
    "Producer": "producer",
    "ProducerStats": "model",
    "Promotion": "admin_model",
    "PullConsumer": "pull_consumer",
    "PullFrame": "model",
    "PullResult": "pull_consumer",
    "PullStatus": "model",
    "QueueBounds": "model",
    "QueueData": "route",
    "QueueNotExist": "errors",
    "RowIllegal": "errors",
    "QueueRange": "model",
    "ReceivedMessage": "received_message",
    "ResetOffset": "admin_model",
    "RocketSimError": "errors",
    "Segment": "model",
    "SendFailed": "errors",
    "SendResult": "model",
    "SendResults": "model",
    "SendStatus": "model",
    "ServiceNotAvailable": "errors",
    "SlavesLeft": "admin_model",
    "SpoolFailed": "errors",
    "SpoolStatus": "model",
    "SpoolUnusable": "errors",
    "SqlExpression": "expression",
    "StoreDamaged": "errors",
    "SubscriptionGroupConfig": "admin_model",
    "SystemBusy": "errors",
    "TlsFailed": "errors",
    "TooNew": "errors",
    "TopicConfig": "admin_model",
    "TopicNotExist": "errors",
    "TopicRoute": "route",
    "TopicStatus": "admin_model",
    "Transaction": "sending.transactions",
    "Unreachable": "errors",
    "UserInfo": "admin_model",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # later uses of the name do not call this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
