"""RemotingGuard: access control for the port that speaks RocketMQ's remoting protocol.

Clients sign each request with RocketMQ's access key and secret key, in fields of the request.  The remoting port knows
the same users as all other ports.  A request needs the rights that the same call of RocketSim's own protocol needs
(`REMOTING_RIGHTS`).
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from rocketsim_proto.remoting import loose_json, send_fields
from rocketsim_proto.remoting.codes import RequestCode

from broker_service.access.gate import Gate
from broker_service.access.policies import Action
from broker_service.access.refusals import Refusals
from broker_service.access.rights import (
    ANYBODY,
    GET,
    LISTING,
    PUB,
    READ,
    SUB,
    SUPER_USER,
    Caller,
    CheckTopic,
    Need,
    Right,
    of_bounds,
    of_clients,
    of_cluster,
    of_group,
    of_topic,
    topic_check,
    user,
)
from broker_service.errors import AccessDenied
from broker_service.runtime.remoting.calls import Request

logger = logging.getLogger(__name__)

SERVICE = "/rocketmq.Remoting/"


def _topic(request: Request, name: str = "topic") -> str:
    return request.text(name, "")


def _group(request: Request) -> str:
    return request.text("consumerGroup", "")


def _sends(request: Request) -> list[Need]:
    return [of_topic(send_fields.topic_of(request.header.code, request.fields), *PUB)]


def _of_group_and_topic(*actions: Action, waits: bool = False, finds: bool = False) -> Right:
    def needs(request: Request) -> list[Need]:
        return [of_group(_group(request), *actions), of_topic(_topic(request), *actions)]

    return user(needs, waits=waits, finds=finds)


def _progress(request: Request) -> list[Need]:
    topic = _topic(request)
    return [of_group(_group(request), *GET), *([of_topic(topic, *READ)] if topic else [])]


def _reset(request: Request) -> list[Need]:
    return [of_group(request.text("group", ""), Action.UPDATE), of_topic(_topic(request), Action.UPDATE)]


def _in_body(request: Request) -> Mapping[str, Any]:
    """Returns the JSON object of the body, or an empty object if the body has no JSON object, because the call's
    handler refuses empty objects.
    """
    try:
        found = loose_json.loads(request.body)
    except loose_json.LooseJsonError:
        return {}
    return found if isinstance(found, dict) else {}


def _heartbeat(request: Request) -> Iterable[Need]:
    """Yields the `Need` for each group with which the client consumes, and for each topic of these groups."""
    for group in _objects(_in_body(request), "consumerDataSet"):
        yield of_group(str(group.get("groupName") or ""), *SUB)
        for subscription in _objects(group, "subscriptionDataSet"):
            yield of_topic(str(subscription.get("topic") or ""), *SUB)


def _locks(request: Request) -> list[Need]:
    """Returns the `Need` for the group, and for each topic of the queues, as RocketMQ 5 asks them."""
    body = _in_body(request)
    topics = sorted({str(queue.get("topic") or "") for queue in _objects(body, "mqSet")})
    return [of_group(str(body.get("consumerGroup") or ""), *SUB), *(of_topic(topic, *SUB) for topic in topics)]


def _objects(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    listed = found.get(name)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


_READS_TOPIC = user(lambda request: [of_topic(_topic(request), *READ)])
_LISTS_TOPICS = user(lambda request: [of_topic("", *LISTING)])
_LISTS_GROUPS = user(lambda request: [of_group("", *LISTING)])
_READS_BOUNDS = user(lambda request: [of_bounds(_topic(request))])
_READS_GROUP = user(lambda request: [of_group(_group(request), *READ)])
_READS_CLUSTER = user(lambda request: [of_cluster(*GET)])

REMOTING_RIGHTS: Mapping[RequestCode, Right] = {
    RequestCode.SEND_MESSAGE: user(_sends),
    RequestCode.SEND_MESSAGE_V2: user(_sends),
    RequestCode.SEND_BATCH_MESSAGE: user(_sends),
    # The handlers of requests with `finds` check the topic of the record that they find.  A request without a topic, as
    # clients and tools before RocketMQ 5 send it, also needs the right for all topics.
    RequestCode.END_TRANSACTION: user(lambda request: [of_topic(_topic(request), *PUB)], finds=True),
    RequestCode.PULL_MESSAGE: _of_group_and_topic(*SUB, waits=True),
    RequestCode.LITE_PULL_MESSAGE: _of_group_and_topic(*SUB, waits=True),
    RequestCode.QUERY_MESSAGE: _READS_TOPIC,
    RequestCode.VIEW_MESSAGE_BY_ID: user(lambda request: [of_topic(_topic(request), *READ)], finds=True),
    RequestCode.QUERY_CONSUMER_OFFSET: _of_group_and_topic(*READ),
    RequestCode.UPDATE_CONSUMER_OFFSET: _of_group_and_topic(*SUB, Action.UPDATE),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _READS_TOPIC,
    RequestCode.GET_MAX_OFFSET: _READS_BOUNDS,
    RequestCode.GET_MIN_OFFSET: _READS_BOUNDS,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _READS_TOPIC,
    RequestCode.HEART_BEAT: user(_heartbeat),
    RequestCode.UNREGISTER_CLIENT: user(lambda request: [of_group(name, *SUB)] if (name := _group(request)) else []),
    RequestCode.CONSUMER_SEND_MSG_BACK: user(
        lambda request: [of_group(request.text("group", ""), *SUB), of_topic(_topic(request, "originTopic"), *SUB)],
        finds=True,
    ),
    RequestCode.LOCK_BATCH_MQ: user(_locks),
    RequestCode.UNLOCK_BATCH_MQ: user(_locks),
    RequestCode.CHECK_CLIENT_CONFIG: user(lambda request: []),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _READS_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: user(lambda request: [of_clients(_group(request))]),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _LISTS_TOPICS,
    RequestCode.GET_CONSUMER_RUNNING_INFO: user(lambda request: [of_clients(_group(request))], waits=True),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _of_group_and_topic(*SUB, waits=True, finds=True),
    RequestCode.UPDATE_AND_CREATE_TOPIC: user(lambda request: [of_topic(_topic(request), Action.CREATE)]),
    RequestCode.DELETE_TOPIC_IN_BROKER: user(lambda request: [of_topic(_topic(request), Action.DELETE)]),
    RequestCode.GET_ALL_TOPIC_CONFIG: _LISTS_TOPICS,
    RequestCode.GET_TOPIC_CONFIG: _READS_TOPIC,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _LISTS_TOPICS,
    RequestCode.GET_TOPIC_STATS_INFO: _READS_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: user(
        lambda request: [of_group(str(_in_body(request).get("groupName") or ""), Action.CREATE)]
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: user(
        lambda request: [of_group(request.text("groupName", ""), Action.DELETE)]
    ),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _LISTS_GROUPS,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: user(lambda request: [of_group(request.text("group", ""), *READ)]),
    RequestCode.GET_CONSUME_STATS: user(_progress),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _READS_TOPIC,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: user(lambda request: [of_group(request.text("group", ""), *READ)]),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: user(_reset),
    RequestCode.GET_BROKER_RUNTIME_INFO: _READS_CLUSTER,
    RequestCode.GET_BROKER_CONFIG: _READS_CLUSTER,
    RequestCode.UPDATE_BROKER_CONFIG: user(lambda request: [of_cluster(Action.UPDATE)]),
    RequestCode.GET_BROKER_HA_STATUS: _READS_CLUSTER,
    RequestCode.VIEW_BROKER_STATS_DATA: _READS_CLUSTER,
    RequestCode.AUTH_CREATE_USER: SUPER_USER,
    RequestCode.AUTH_UPDATE_USER: SUPER_USER,
    RequestCode.AUTH_DELETE_USER: SUPER_USER,
    RequestCode.AUTH_GET_USER: SUPER_USER,
    RequestCode.AUTH_LIST_USER: SUPER_USER,
    RequestCode.AUTH_CREATE_ACL: SUPER_USER,
    RequestCode.AUTH_UPDATE_ACL: SUPER_USER,
    RequestCode.AUTH_DELETE_ACL: SUPER_USER,
    RequestCode.AUTH_GET_ACL: SUPER_USER,
    RequestCode.AUTH_LIST_ACL: SUPER_USER,
}

NAMESRV_REMOTING_RIGHTS: Mapping[RequestCode, Right] = {
    # Everybody may read routes, as in `NAMESRV_RIGHTS`.
    RequestCode.GET_ROUTEINFO_BY_TOPIC: ANYBODY,
    RequestCode.GET_BROKER_CLUSTER_INFO: ANYBODY,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: ANYBODY,
    RequestCode.GET_TOPICS_BY_CLUSTER: ANYBODY,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: ANYBODY,
    RequestCode.GET_BROKER_MEMBER_GROUP: ANYBODY,
    RequestCode.GET_KVLIST_BY_NAMESPACE: ANYBODY,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: SUPER_USER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: SUPER_USER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: SUPER_USER,
    RequestCode.DELETE_KV_CONFIG: SUPER_USER,
}


def by_method(rights: Mapping[RequestCode, Right]) -> dict[str, Right]:
    """Returns the rights of each method.  A method is the name by which access checks, logs and metrics know a call."""
    return {method_of(code): right for code, right in rights.items()}


def method_of(code: RequestCode) -> str:
    return f"{SERVICE}{code.name}"


class RemotingGuard:
    """Admits requests by the rights in `gate`, which are the rights that `by_method` returns."""

    def __init__(self, gate: Gate, refusals: Refusals) -> None:
        self._gate = gate
        self._refusals = refusals
        self._changes = 0

    def changed(self, _: str) -> None:
        """Starts a new check of all open requests; called when users or policies have changed."""
        self._changes += 1

    def admit(self, request: Request) -> None:
        changes = self._changes
        self._check(request)
        request.admitted_after = changes

    def require(self, request: Request, need: Need) -> None:
        self._check(request, Right(Caller.USER, lambda _: (need,)))

    def check_again(self, request: Request) -> None:
        if request.admitted_after != self._changes:
            self.admit(request)

    def _check(self, request: Request, right: Right | None = None) -> None:
        """Checks the signature, and `right` or else the right of the request's code.  Counts a refusal."""
        method = method_of(RequestCode(request.header.code))
        try:
            self._check_right(method, request, self._gate.right_of(method) if right is None else right)
        except AccessDenied as error:
            address = self._gate.address(request.connection.peer)
            for line in self._refusals.refused(error, method, address, self._gate.now_s):
                logger.warning("%s", line)
            raise

    def _check_right(self, method: str, request: Request, right: Right) -> None:
        if right.caller is Caller.ANYBODY:
            return
        found = self._gate.remoting_caller(request.header, request.body)
        self._gate.check(found, method, right, request.connection.peer, request)
        request.user = found.username


def request_topic_check(request: Request, *actions: Action) -> CheckTopic:
    """Makes the check of the topic of a record that a request has found.  Without access control, it does nothing."""

    def check(need: Need) -> None:
        if request.guard is not None:
            request.guard.require(request, need)

    return topic_check(check, *actions)
