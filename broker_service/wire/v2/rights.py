"""Lists the rights that each call of RocketMQ 5's clients needs, as in RocketMQ's proxy, and makes the answers to
refused calls.
"""

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.message import DecodeError
from rocketmq_v2 import service_pb2 as pb

from broker_service.access.policies import Action
from broker_service.access.rights import Need, Right, by_path, of_group, of_topic, user
from broker_service.errors import AccessDenied
from broker_service.wire.v2.status import status_of

_SERVICE = pb.DESCRIPTOR.services_by_name["MessagingService"]
_HEARTBEAT = f"/{_SERVICE.full_name}/Heartbeat"
_CHANGE_INVISIBLE = f"/{_SERVICE.full_name}/ChangeInvisibleDuration"


def _of_group_and_topic(request: Any, topic: Any, *actions: Action) -> list[Need]:
    return [of_group(request.group.name, *actions), of_topic(topic.name, *actions)]


def _consumes(request: Any) -> list[Need]:
    return _of_group_and_topic(request, request.topic, Action.SUB)


def _receives(request: Any) -> list[Need]:
    return _of_group_and_topic(request, request.message_queue.topic, Action.SUB)


def _of_its_group(request: Any) -> list[Need]:
    """Returns the right that a call needs for the consumer group in its request.  Producers have no group, so they need
    no right for a group.
    """
    return [of_group(request.group.name, Action.SUB)] if request.group.name else []


def _declares(command: pb.TelemetryCommand) -> Iterable[Need]:
    """Returns the rights that a client needs for the topics and the group in its settings."""
    settings = command.settings
    needs = [of_topic(topic.name, Action.PUB) for topic in settings.publishing.topics]
    needs += [of_topic(entry.topic.name, Action.SUB) for entry in settings.subscription.subscriptions]
    return needs + _of_its_group(settings.subscription)


_READ = (Action.SUB, Action.GET)

V2_RIGHTS: dict[str, Right] = by_path(
    {
        _SERVICE.full_name: {
            "QueryRoute": user(lambda request: [of_topic(request.topic.name, Action.PUB, *_READ)]),
            "Heartbeat": user(_of_its_group),
            "SendMessage": user(
                lambda request: [
                    of_topic(name, Action.PUB) for name in sorted({m.topic.name for m in request.messages})
                ]
            ),
            "QueryAssignment": user(_consumes),
            "ReceiveMessage": user(_receives),
            "AckMessage": user(_consumes),
            "ForwardMessageToDeadLetterQueue": user(_consumes),
            "PullMessage": user(_receives),
            "UpdateOffset": user(_receives),
            "GetOffset": user(lambda request: _of_group_and_topic(request, request.message_queue.topic, *_READ)),
            "QueryOffset": user(lambda request: [of_topic(request.message_queue.topic.name, *_READ)]),
            "EndTransaction": user(lambda request: [of_topic(request.topic.name, Action.PUB)]),
            "Telemetry": user(_declares),
            "NotifyClientTermination": user(_of_its_group),
            "ChangeInvisibleDuration": user(_consumes),
            "RecallMessage": user(lambda request: [of_topic(request.topic.name, Action.PUB)]),
            "SyncLiteSubscription": user(_consumes),
        }
    }
)


def refusal(method: str, error: AccessDenied, parse: Callable[[], Any]) -> Any:
    """Returns the answer to a refused call.  The answer contains nothing but a status.

    The answer of ChangeInvisibleDuration also repeats the receipt handle, because clients read it before they check the
    status.  `parse` returns the request or raises DecodeError.
    """
    name = _SERVICE.methods_by_name[method.rpartition("/")[2]].output_type.name
    if repeats(method):
        try:
            handle = parse().receipt_handle
        except DecodeError:  # no real client sends a request that cannot be parsed
            handle = ""
        return pb.ChangeInvisibleDurationResponse(status=status_of(error), receipt_handle=handle)
    return getattr(pb, name)(status=status_of(error))


def repeats(method: str) -> bool:
    """Returns True if the answer to a refused call of this method repeats a part of the request."""
    return method == _CHANGE_INVISIBLE


def is_free(method: str, headers: Any) -> bool:
    """Returns True if a call needs no rights: a heartbeat that has neither a signature nor a client id.

    Go's client sends a heartbeat without a client id when its stream has broken, and gives the stream up unless the
    answer is OK.  A heartbeat without a client id keeps no client connected, so anybody may send one.
    """
    return method == _HEARTBEAT and not any(name in ("authorization", "x-mq-client-id") for name, _ in headers)
