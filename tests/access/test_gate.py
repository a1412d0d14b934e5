"""Every call needs the rights that RocketMQ 5 asks for it, and no call has been forgotten."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto import (
    admin_pb2,
    broker_pb2,
    consumption_pb2,
    message_pb2,
    metadata_pb2,
    namesrv_pb2,
    replication_pb2,
    transactions_pb2,
)
from rocketsim_proto.bytes_field import Received
from rocketsim_proto.reserved import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, STATE_TOPIC, TIMER_TOPIC

from broker_service.access.decision import Policies
from broker_service.access.gate import Gate, source_of
from broker_service.access.policies import Action, Decision, Policy
from broker_service.access.resources import ResourceType
from broker_service.access.rights import NAMESRV_RIGHTS, Caller, of_topic
from broker_service.access.source_networks import address_of
from broker_service.access.users import User
from broker_service.errors import AccessDenied
from broker_service.node.access_control import BROKER_RIGHTS
from broker_service.runtime.server import MethodTable
from broker_service.wire.v2.rights import V2_RIGHTS
from tests.support.brokers import running
from tests.support.known_users import KnownUsers, Midnight

NORMAL = User("n", "sk")
BROKERS = User("brokers", "sk", "Super")
PEER = "ipv4:127.0.0.1:4711"
V2 = "/apache.rocketmq.v2.MessagingService/"
BROKER, ADMIN = "/rocketsim.Broker/", "/rocketsim.Admin/"


def gate(*policies: str, rights: Any = None, authorizes: bool = True) -> Gate:
    """Makes a gate for user n, whose policies are given like `Topic:x Pub,Sub`."""
    parsed = [Policy.parse(resource, actions.split(",")) for resource, actions in map(str.split, policies)]
    return Gate(
        {**BROKER_RIGHTS, **V2_RIGHTS} if rights is None else rights,
        KnownUsers({"n": NORMAL}, Policies(parsed) if authorizes else None, brokers_user=BROKERS),
        Midnight(),
    )


def check(method: str, request: Any, *policies: str, user: User = NORMAL) -> None:
    guard = gate(*policies)
    guard.check(user, method, guard.right_of(method), PEER, request)


def methods_of(*services: Any) -> set[str]:
    return {f"/{service.full_name}/{name}" for service in services for name in service.methods_by_name}


def test_every_method_of_every_service_has_its_rights() -> None:
    """A new call must be added to the table of rights: until then it is refused."""
    files = broker_pb2, consumption_pb2, transactions_pb2, replication_pb2, admin_pb2, health_pb2
    served = methods_of(*(service for file in files for service in file.DESCRIPTOR.services_by_name.values()))
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    assert {*served, reflection} - BROKER_RIGHTS.keys() == set()
    assert {path for path in BROKER_RIGHTS if "rocketsim" in path} == {path for path in served if "rocketsim" in path}
    assert V2_RIGHTS.keys() == methods_of(*s.DESCRIPTOR.services_by_name.values())
    names = methods_of(*namesrv_pb2.DESCRIPTOR.services_by_name.values())
    assert {path for path in NAMESRV_RIGHTS if "rocketsim" in path} == names


async def test_every_method_that_a_broker_serves_has_its_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method has rights even if its service is registered with the server by hand."""
    served: set[str] = set()
    server = type(grpc.aio.server())
    for added_to in (server, MethodTable):
        real = added_to.add_registered_method_handlers

        def record(self: Any, service: str, handlers: Any, real: Any = real) -> Any:
            served.update(f"/{service}/{method}" for method in handlers)
            return real(self, service, handlers)

        monkeypatch.setattr(added_to, "add_registered_method_handlers", record)
    async with running(tmp_path, grpc_server_port=0):
        assert {f"{BROKER}Send", f"{V2}SendMessage", "/grpc.health.v1.Health/Check"} <= served
        assert served - {*BROKER_RIGHTS, *V2_RIGHTS} == set()


def topic(name: str) -> d.Resource:
    return d.Resource(name=name)


def queue(name: str) -> d.MessageQueue:
    return d.MessageQueue(topic=topic(name))


def settings(**parts: Any) -> s.TelemetryCommand:
    return s.TelemetryCommand(settings=d.Settings(**parts))


G = {"group": d.Resource(name="g")}
RANGES = [broker_pb2.PullRangeRequest.Range(topic=name) for name in ("t", "u")]


@pytest.mark.parametrize(
    ("method", "request_", "policies"),
    [
        # the rights that RocketMQ's proxy asks of version 5 clients
        (V2 + "SendMessage", s.SendMessageRequest(messages=[d.Message(topic=topic("t"))]), ["Topic:t Pub"]),
        (
            V2 + "SendMessage",
            s.SendMessageRequest(messages=[d.Message(topic=topic("t")), d.Message(topic=topic("u"))]),
            ["Topic:t Pub", "Topic:u Pub"],
        ),
        (V2 + "RecallMessage", s.RecallMessageRequest(topic=topic("t")), ["Topic:t Pub"]),
        (V2 + "EndTransaction", s.EndTransactionRequest(topic=topic("t")), ["Topic:t Pub"]),
        (
            V2 + "ReceiveMessage",
            s.ReceiveMessageRequest(message_queue=queue("t"), **G),
            ["Topic:t Sub", "Group:g Sub"],
        ),
        (V2 + "AckMessage", s.AckMessageRequest(topic=topic("t"), **G), ["Topic:t Sub", "Group:g Sub"]),
        (
            V2 + "ForwardMessageToDeadLetterQueue",
            s.ForwardMessageToDeadLetterQueueRequest(topic=topic("t"), **G),
            ["Topic:t Sub", "Group:g Sub"],
        ),
        (V2 + "QueryAssignment", s.QueryAssignmentRequest(topic=topic("t"), **G), ["Topic:t Sub", "Group:g Sub"]),
        (
            V2 + "ChangeInvisibleDuration",
            s.ChangeInvisibleDurationRequest(topic=topic("t"), **G),
            ["Topic:t Sub", "Group:g Sub"],
        ),
        (
            V2 + "SyncLiteSubscription",
            s.SyncLiteSubscriptionRequest(topic=topic("t"), **G),
            ["Topic:t Sub", "Group:g Sub"],
        ),
        (V2 + "PullMessage", s.PullMessageRequest(message_queue=queue("t"), **G), ["Topic:t Sub", "Group:g Sub"]),
        (V2 + "UpdateOffset", s.UpdateOffsetRequest(message_queue=queue("t"), **G), ["Topic:t Sub", "Group:g Sub"]),
        (V2 + "Heartbeat", s.HeartbeatRequest(**G), ["Group:g Sub"]),
        (V2 + "NotifyClientTermination", s.NotifyClientTerminationRequest(**G), ["Group:g Sub"]),
        (V2 + "GetOffset", s.GetOffsetRequest(message_queue=queue("t"), **G), ["Topic:t Get", "Group:g Sub"]),
        (V2 + "QueryOffset", s.QueryOffsetRequest(message_queue=queue("t")), ["Topic:t Sub"]),
        *(
            (V2 + "QueryRoute", s.QueryRouteRequest(topic=topic("t")), [f"Topic:t {action}"])
            for action in ("Pub", "Sub", "Get")
        ),
        (V2 + "Telemetry", settings(publishing=d.Publishing(topics=[topic("t")])), ["Topic:t Pub"]),
        (
            V2 + "Telemetry",
            settings(
                subscription=d.Subscription(subscriptions=[d.SubscriptionEntry(topic=topic("t"))], group=G["group"])
            ),
            ["Topic:t Sub", "Group:g Sub"],
        ),
        # our own
        (BROKER + "Send", Received(memoryview(b""), broker_pb2.SendRequest(topic="t")), ["Topic:t Pub"]),
        (BROKER + "Pull", broker_pb2.PullRequest(topic="t", consumer_group="g"), ["Topic:t Sub", "Group:g Sub"]),
        (
            BROKER + "PullRange",
            broker_pb2.PullRangeRequest(ranges=RANGES, consumer_group="g"),
            ["Topic:t Sub", "Topic:u Sub", "Group:g Sub"],
        ),
        (BROKER + "PullRange", broker_pb2.PullRangeRequest(ranges=RANGES), ["Topic:t Sub", "Topic:u Sub"]),
        (
            BROKER + "CommitOffsets",
            broker_pb2.CommitOffsetsRequest(
                consumer_group="g", entries=[broker_pb2.CommitOffsetsRequest.Entry(topic="t")]
            ),
            ["Topic:t Sub", "Group:g Update"],
        ),
        (
            BROKER + "QueryOffsets",
            broker_pb2.QueryOffsetsRequest(consumer_group="g", queues=[message_pb2.QueueId(topic="t")]),
            ["Topic:t Sub", "Group:g Get"],
        ),
        *(
            (f"/rocketsim.Consumption/{name}", request(topic="t", consumer_group="g"), ["Topic:t Sub", "Group:g Sub"])
            for name, request in {
                "Pop": consumption_pb2.PopRequest,
                "Ack": consumption_pb2.AckRequest,
                "ChangeInvisible": consumption_pb2.ChangeInvisibleRequest,
            }.items()
        ),
        *(
            (f"/rocketsim.Transactions/{name}", request, ["Topic:t Pub"])
            for name, request in {
                "Prepare": transactions_pb2.PrepareRequest(topic="t"),
                "End": transactions_pb2.EndRequest(topic="t"),
            }.items()
        ),
        (
            "/rocketsim.Transactions/Check",
            transactions_pb2.CheckRequest(topics=["t", "u", "t"]),
            ["Topic:t Pub", "Topic:u Pub"],
        ),
        (BROKER + "QueueBounds", broker_pb2.QueueBoundsRequest(topic="t"), ["Topic:t Get"]),
        (
            BROKER + "QueueBounds",
            broker_pb2.QueueBoundsRequest(topic="t", consumer_group="g"),
            ["Topic:t Pub", "Group:g Sub"],
        ),
        (BROKER + "WaitForRecords", broker_pb2.WaitForRecordsRequest(topic="t"), ["Topic:t Sub"]),
        (BROKER + "SearchOffsets", broker_pb2.SearchOffsetsRequest(topic="t"), ["Topic:t Sub"]),
        (
            ADMIN + "UpdateTopic",
            admin_pb2.UpdateTopicRequest(topic=metadata_pb2.TopicConfig(topic_name="t")),
            ["Topic:t Create"],
        ),
        (ADMIN + "DeleteTopic", admin_pb2.DeleteTopicRequest(topic="t"), ["Topic:t Delete"]),
        (ADMIN + "ListTopics", admin_pb2.ListTopicsRequest(), ["Topic:* List"]),
        (ADMIN + "ListSubGroups", admin_pb2.ListSubGroupsRequest(), ["Group:* Get"]),
        (ADMIN + "QueryMsgById", admin_pb2.QueryMsgByIdRequest(), ["Topic:* Get"]),
        (
            ADMIN + "ResetOffsetByTime",
            admin_pb2.ResetOffsetByTimeRequest(topic="t", group="g"),
            ["Topic:t Update", "Group:g Update"],
        ),
        (ADMIN + "UpdateBrokerConfig", admin_pb2.UpdateBrokerConfigRequest(), ["Cluster:north Update"]),
        (ADMIN + "BrokerStatus", admin_pb2.BrokerStatusRequest(), ["Cluster:nor* Get"]),
    ],
)
def test_a_call_needs_each_of_its_rights(method: str, request_: Any, policies: list[str]) -> None:
    check(method, request_, *policies)
    check(method, request_, "Topic:* All", "Group:* All", "Cluster:* All")
    check(method, request_, user=User("s", "sk", "Super"))
    for missing in policies:
        resource, action = missing.split()
        with pytest.raises(AccessDenied) as refused:
            check(method, request_, *(policy for policy in policies if policy != missing))
        said = str(refused.value)
        name = "Cluster:north" if resource.startswith("Cluster") else resource
        assert said.startswith(
            f"User:n has no permission to access {name} from 127.0.0.1, no matched policies. Action: "
        )
        assert action in said
        with pytest.raises(AccessDenied):  # the user has only the right on another topic or group
            other = "Topic:other" if resource.startswith("Topic") else "Group:other"
            check(method, request_, *(policy for policy in policies if policy != missing), f"{other} {action}")


def test_what_has_secrets_or_changes_rights_is_for_super_users_whatever_is_allowed() -> None:
    only = {path for path, right in BROKER_RIGHTS.items() if right.caller is Caller.SUPER_USER}
    assert {path.rpartition("/")[2] for path in only} == {
        *("CreateUser", "UpdateUser", "DeleteUser", "ListUsers", "CreateAcl", "UpdateAcl", "DeleteAcl", "ListAcls")
    }
    for path in only:
        for guard in (gate("Cluster:* All"), gate(authorizes=False)):
            with pytest.raises(AccessDenied, match="only super users"):
                guard.check(NORMAL, path, guard.right_of(path), PEER, None)
            guard.check(User("s", "sk", "Super"), path, guard.right_of(path), PEER, None)


def test_calls_that_answer_with_secrets_or_register_a_broker_are_for_brokers() -> None:
    rights = {**BROKER_RIGHTS, **NAMESRV_RIGHTS}
    only = {path for path, right in rights.items() if right.caller is Caller.BROKER}
    assert {path.rpartition("/")[2] for path in only} == {
        *("Replicate", "GetMetadata", "GetMember", "PromiseEpoch", "RegisterBroker")
    }
    for path in only:
        guard = gate("Cluster:* All", rights=rights)
        for user in (NORMAL, User("s", "sk", "Super"), User("brokers", "other", "Super")):
            with pytest.raises(AccessDenied, match="only brokers call"):
                guard.check(user, path, guard.right_of(path), PEER, None)
        guard.check(BROKERS, path, guard.right_of(path), PEER, None)


def test_without_authorization_a_user_needs_no_rights() -> None:
    guard = gate(authorizes=False)
    request = admin_pb2.DeleteTopicRequest(topic="t")
    guard.check(NORMAL, ADMIN + "DeleteTopic", guard.right_of(ADMIN + "DeleteTopic"), PEER, request)


def test_a_denial_says_so() -> None:
    guard = Gate(
        BROKER_RIGHTS, KnownUsers(policies=Policies([Policy.parse("Topic:t", ["Pub"], [], "Deny")])), Midnight()
    )
    request = Received(memoryview(b""), broker_pb2.SendRequest(topic="t"))
    with pytest.raises(AccessDenied) as refused:
        guard.check(NORMAL, BROKER + "Send", guard.right_of(BROKER + "Send"), PEER, request)
    assert str(refused.value) == (
        "User:n has no permission to access Topic:t from 127.0.0.1, the decision is deny. Action: Pub."
    )


def test_a_method_that_is_not_known_is_refused() -> None:
    with pytest.raises(AccessDenied, match=r"has no rule for the call /rocketsim[.]Broker/New"):
        gate().right_of("/rocketsim.Broker/New")


def test_a_right_that_a_request_needs_often_is_checked_once() -> None:
    asked: list[str] = []

    class Asked(Policies):
        def decide(self, kind: Any, name: str, action: Any, source: Any, **others: Any) -> Decision | None:
            asked.append(name)
            return super().decide(kind, name, action, source, **others)

    policies = Asked([Policy.parse("Topic:t*", ["Sub"])])
    guard = Gate(V2_RIGHTS, KnownUsers(policies=policies), Midnight())
    entries = [d.SubscriptionEntry(topic=d.Resource(name="t1")) for _ in range(1000)]
    settings = d.Settings(subscription=d.Subscription(subscriptions=entries))
    right = guard.right_of(V2 + "Telemetry")
    guard.check(NORMAL, V2 + "Telemetry", right, PEER, s.TelemetryCommand(settings=settings))
    assert asked == ["t1"]


def test_retry_and_dead_letter_topics_belong_to_their_group() -> None:
    for name in ("%RETRY%g", "%RETRY%g+t", "%DLQ%g"):
        assert (str(of_topic(name).kind), of_topic(name).name) == ("Group", "g")
    request = broker_pb2.PullRequest(topic="%DLQ%g", consumer_group="h")
    check(BROKER + "Pull", request, "Group:g Sub", "Group:h Sub")
    with pytest.raises(AccessDenied, match="Group:g"):
        check(BROKER + "Pull", request, "Topic:* Sub", "Group:h Sub")


@pytest.mark.parametrize(
    "name", [SCHEDULE_TOPIC, TIMER_TOPIC, STATE_TOPIC, HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC, "rmq_sys_another"]
)
def test_where_messages_of_all_topics_wait_only_its_own_name_gives_a_right(name: str) -> None:
    request = broker_pb2.PullRequest(topic=name, consumer_group="g")
    check(BROKER + "Pull", request, f"Topic:{name} Sub", "Group:g Sub")
    for wider in ("Topic:* All", f"Topic:{name[:4]}* Sub"):
        with pytest.raises(AccessDenied, match=rf"Topic:{name} .* no matched policies with exactly this name"):
            check(BROKER + "Pull", request, wider, "Group:g Sub")
    policies = Policies([Policy.parse("Topic:*", ["Sub"], [], "Deny"), Policy.parse(f"Topic:{name}", ["Sub"])])
    assert policies.decide(ResourceType.TOPIC, name, Action.SUB, None, by_name=True) is Decision.ALLOW
    policies = Policies([Policy.parse("Topic:*", ["Sub"], [], "Deny")])
    assert policies.decide(ResourceType.TOPIC, name, Action.SUB, None, by_name=True) is Decision.DENY


def test_the_address_of_a_caller() -> None:
    assert source_of("ipv4:10.0.0.1:99") == address_of("10.0.0.1")
    assert source_of("ipv6:%5B::1%5D:99") == address_of("::1")
    assert source_of("ipv6:%5B::ffff:10.0.0.1%5D:99") == address_of("10.0.0.1")
    assert str(source_of("ipv6:%5Bfe80::1%25eth0%5D:99")) == "fe80::1"
    assert source_of("unix:") is None
