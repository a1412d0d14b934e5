"""The rights that calls of this project's own services need: who may make them, and for which actions and resources.

`RIGHTS` has the right of every method of a broker, except for operators' commands, which declare their rights in
`admin/`.  `NAMESRV_RIGHTS` has the right of every method of a name server.  A call of a method that has no right in
these tables is refused.  A call that RocketMQ 5 also has needs the same rights here.  Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from rocketsim_proto.reserved import (
    DISCARDED_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    INTERNAL_PREFIX,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)

from broker_service.access.policies import Action
from broker_service.access.resources import ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ALL_NAMES = "*"  # a `Need` with this name requires a policy for all names; no topic or group can have this name
OF_GROUPS = (RETRY_PREFIX, DLQ_PREFIX)
# The broker's own topics in which it keeps messages of all topics.  The topics with INTERNAL_PREFIX (timers,
# deliveries) also contain messages of all topics.
OF_ALL_TOPICS = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC))


class Caller(Enum):
    ANYBODY = "anybody"
    USER = "user"  # a user with the needed policies
    SUPER_USER = "super user"  # for calls that change users and policies; no policy can allow these calls
    BROKER = "broker"  # the brokers' own user, for calls that return secrets or that only a broker makes


class Need(NamedTuple):
    """A requirement of a call: its user must have the right to one of these actions on one resource.

    For a cluster, the name is empty, and the gate uses its own cluster's name.  With `by_name`, only a policy for this
    exact name is enough.
    """

    kind: ResourceType
    name: str
    actions: tuple[Action, ...]
    by_name: bool = False


Needs = Callable[[Any], Iterable[Need]]
CheckTopic = Callable[[str], None]  # raises AccessDenied if the caller has no right to the topic
Method = TypeVar("Method", bound=Callable[..., Any])


class Right(NamedTuple):
    """The right to make a call: which callers may make it, and what a user needs for it.

    `needs` is called for each message of a stream of requests.  `waits` says that a call may wait long for its answer.
    `finds` says that the call finds a record whose topic the request may leave out, so that the handler has to check
    the record's own topic (`topic_check`).
    """

    caller: Caller
    needs: Needs | None = None
    waits: bool = False
    finds: bool = False


def of_topic(name: str, *actions: Action) -> Need:
    """Makes the `Need` of one of these actions on a topic.

    A retry or dead letter topic belongs to its group, so a call for it needs the right to the group.  A topic that
    keeps messages of all topics needs a policy for exactly its name, because it would otherwise show the messages of a
    topic even to a user with rights for all topics except this one.
    """
    for prefix in OF_GROUPS:
        if name.startswith(prefix):
            return Need(GROUP, name.removeprefix(prefix).partition("+")[0], actions)
    is_of_all = name in OF_ALL_TOPICS or name.startswith(INTERNAL_PREFIX)
    return Need(TOPIC, name or ALL_NAMES, actions, by_name=is_of_all)


def of_group(name: str, *actions: Action) -> Need:
    return Need(GROUP, name or ALL_NAMES, actions)


def of_cluster(*actions: Action) -> Need:
    return Need(CLUSTER, "", actions)


def of_clients(group: str) -> Need:
    """Makes the `Need` of a call that shows the connected clients of a group."""
    return of_group(group, *GET)


def of_bounds(topic: str) -> Need:
    """Makes the `Need` of a call that asks where a topic's queues begin and end.

    Producers also make such a call: without a name server, its answer tells them a topic's queues.
    """
    return of_topic(topic, *PUB, *READ)


def topic_check(check: Callable[[Need], None], *actions: Action) -> CheckTopic:
    """Makes the check of the topic of a record that a call has found.

    A request without a topic is admitted with a policy for all topics.  This does not mean that the user has the right
    to each topic: another policy may deny one topic, retry and dead letter topics need the right to their group, and
    topics with messages of all topics need a policy for exactly their name.  Handlers therefore check the topic of the
    record before they show it, copy it or end its transaction.
    """
    return lambda topic: check(of_topic(topic, *actions))


def user(needs: Needs, *, waits: bool = False, finds: bool = False) -> Right:
    return Right(Caller.USER, needs, waits, finds)


def needs(right: Right) -> Callable[[Method], Method]:
    """Decorates a servicer's method with the right that a call of this method needs."""

    def declared(method: Method) -> Method:
        method.right = right  # type: ignore[attr-defined]
        return method

    return declared


def declared_rights(servicer: type) -> dict[str, Right]:
    """Returns the rights that methods of a servicer declare, by the method's name."""
    methods = {name: getattr(servicer, name) for name in dir(servicer)}
    return {name: method.right for name, method in methods.items() if hasattr(method, "right")}


ANYBODY = Right(Caller.ANYBODY)
SUPER_USER = Right(Caller.SUPER_USER)
BROKER = Right(Caller.BROKER)

PUB, SUB, GET = (Action.PUB,), (Action.SUB,), (Action.GET,)
READ = (Action.SUB, Action.GET)
LISTING = (Action.LIST, Action.GET)


def _pull(request: Any) -> list[Need]:
    return [of_group(request.consumer_group, *SUB), of_topic(request.topic, *SUB)]


def _pull_range(request: Any) -> list[Need]:
    """A read without a group needs no right for a group."""
    needs = [of_topic(topic, *SUB) for topic in sorted({one.topic for one in request.ranges})]
    return ([of_group(request.consumer_group, *SUB)] if request.consumer_group else []) + needs


def _commit(request: Any) -> list[Need]:
    actions = (Action.SUB, Action.UPDATE)
    topics = sorted({entry.topic for entry in request.entries})
    return [of_group(request.consumer_group, *actions), *(of_topic(topic, *actions) for topic in topics)]


def _query_offsets(request: Any) -> list[Need]:
    topics = sorted({queue.topic for queue in request.queues})
    return [of_group(request.consumer_group, *READ), *(of_topic(topic, *READ) for topic in topics)]


def _queue_bounds(request: Any) -> list[Need]:
    """A call with a group also returns how often the group has pulled."""
    needs = [of_group(request.consumer_group, *READ)] if request.consumer_group else []
    return [*needs, of_bounds(request.topic)]


_OF_A_BROKER: Mapping[str, Mapping[str, Right]] = {
    "rocketsim.Broker": {
        "Send": user(lambda received: [of_topic(received.message.topic, *PUB)]),
        "Pull": user(_pull, waits=True),
        "PullRange": user(_pull_range),
        "CommitOffsets": user(_commit),
        "QueryOffsets": user(_query_offsets),
        "QueueBounds": user(_queue_bounds),
        "WaitForRecords": user(lambda request: [of_topic(request.topic, *READ)], waits=True),
        "SearchOffsets": user(lambda request: [of_topic(request.topic, *READ)]),
    },
    "rocketsim.Consumption": {
        "Pop": user(_pull, waits=True),
        "Ack": user(_pull),
        "ChangeInvisible": user(_pull),
    },
    "rocketsim.Transactions": {
        "Prepare": user(lambda request: [of_topic(request.topic, *PUB)]),
        "End": user(lambda request: [of_topic(request.topic, *PUB)]),
        "Check": user(lambda request: [of_topic(topic, *PUB) for topic in sorted(set(request.topics))]),
    },
    "rocketsim.Replication": {
        "Replicate": BROKER,
        "GetMetadata": BROKER,
        "GetMember": BROKER,
        "PromiseEpoch": BROKER,
    },
}

_OF_A_NAME_SERVER: Mapping[str, Mapping[str, Right]] = {
    "rocketsim.NameServer": {
        "RegisterBroker": BROKER,
        # anybody, because a name server has no table of users; RocketMQ's name server checks no call at all
        "TopicRoute": ANYBODY,
        "TopicList": ANYBODY,
        "ClusterList": ANYBODY,
        "WipeWritePerm": SUPER_USER,
        "AddWritePerm": SUPER_USER,
    },
}

# Health checks and reflection tell only that a server is running, and which calls it has.
_OF_BOTH: Mapping[str, Mapping[str, Right]] = {
    "grpc.health.v1.Health": dict.fromkeys(("Check", "Watch", "List"), ANYBODY),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": ANYBODY},
}


def by_path(services: Mapping[str, Mapping[str, Right]]) -> dict[str, Right]:
    """Maps gRPC's name of each method, `/package.Service/Method`, to its right."""
    return {f"/{service}/{method}": right for service, rights in services.items() for method, right in rights.items()}


RIGHTS = by_path({**_OF_A_BROKER, **_OF_BOTH})
NAMESRV_RIGHTS = by_path({**_OF_A_NAME_SERVER, **_OF_BOTH})
