"""Tests QueryRoute, QueryAssignment, GetOffset and QueryOffset."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads.commits import CommitEntry
from broker_service.modes import BrokerRole
from broker_service.namesrv.route_table import Registration, TopicQueues
from broker_service.runtime.peer_call import PeerLost
from broker_service.wire.v2.route_answers import Queues, endpoints_of, message_queues
from broker_service.wire.v2.topic_routes import TopicRoutes
from testbed.polling import until
from tests.support.brokers import name_server, put, running
from tests.support.v2 import DIALLED, make_topics, message, receive, resource, v2_broker


def route_of(topic: str, endpoints: d.Endpoints = DIALLED) -> s.QueryRouteRequest:
    return s.QueryRouteRequest(topic=resource(topic), endpoints=endpoints)


async def test_the_queues_of_a_topic_at_the_endpoints_that_were_dialled(tmp_path: Path) -> None:
    """The route names the endpoints that the client has dialled.  With other endpoints, clients would go to an address
    that they cannot reach.
    """
    async with v2_broker(tmp_path) as (_, client):
        asked = route_of("M")
        asked.topic.resource_namespace = "space"
        answer = await client.QueryRoute(asked)
        assert (answer.status.code, answer.status.message) == (d.OK, "OK")
        assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
        for queue in answer.message_queues:
            assert queue.topic == asked.topic
            assert queue.permission == d.READ_WRITE
            assert (queue.broker.name, queue.broker.id, queue.broker.endpoints) == ("broker-a", 0, DIALLED)
            assert list(queue.accept_message_types) == [d.NORMAL, d.FIFO, d.DELAY, d.TRANSACTION]
        for topic, of_type in {"T": d.NORMAL, "F": d.FIFO, "D": d.DELAY, "X": d.TRANSACTION}.items():
            answer = await client.QueryRoute(route_of(topic))
            assert list(answer.message_queues[0].accept_message_types) == [of_type]


async def test_topics_of_rocketmqs_newer_types_say_so_and_are_sent_nothing(tmp_path: Path) -> None:
    """A store that RocketMQ has written may have topics of these types, although this broker's operators cannot make
    them.
    """
    async with v2_broker(tmp_path) as (node, client):
        for name, of_type, sent in (
            ("PRIORITY", d.PRIORITY, message("PRIORITY", priority=1)),
            ("LITE", d.LITE, message("LITE", lite_topic="l")),
        ):
            node.topics.put(TopicConfig(name, 1, 1, attributes={"message.type": name}), 0)
            (queue,) = (await client.QueryRoute(route_of(name))).message_queues
            assert list(queue.accept_message_types) == [of_type]
            assert (await client.send(sent)).status.code == d.UNSUPPORTED
            assert (await client.send(message(name))).status.code == d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_without_endpoints_it_is_the_advertised_address_and_a_scheme_is_always_there(tmp_path: Path) -> None:
    """Clients refuse endpoints without a scheme."""
    async with v2_broker(tmp_path) as (node, client):
        answer = await client.QueryRoute(route_of("T", d.Endpoints()))
        assert answer.message_queues[0].broker.endpoints == endpoints_of(node.v2_port.address)
        unspecified = d.Endpoints(addresses=[d.Address(host="10.0.0.1", port=1), d.Address(host="10.0.0.2", port=2)])
        answer = await client.QueryRoute(route_of("T", unspecified))
        told = answer.message_queues[0].broker.endpoints
        assert (told.scheme, list(told.addresses)) == (d.IPv4, list(unspecified.addresses))


@pytest.mark.parametrize(
    ("address", "scheme", "host"),
    [
        ("10.0.0.1:8081", d.IPv4, "10.0.0.1"),
        ("[::1]:8081", d.IPv6, "::1"),
        ("mq.example:8081", d.DOMAIN_NAME, "mq.example"),
    ],
)
def test_endpoints_of_an_address(address: str, scheme: d.AddressScheme, host: str) -> None:
    assert endpoints_of(address) == d.Endpoints(scheme=scheme, addresses=[d.Address(host=host, port=8081)])


@pytest.mark.parametrize(
    ("read", "write", "perm", "expected"),
    [
        (2, 2, 6, [d.READ_WRITE, d.READ_WRITE]),
        (3, 1, 6, [d.READ_WRITE, d.READ, d.READ]),
        (1, 2, 6, [d.READ_WRITE, d.WRITE]),
        (2, 2, 4, [d.READ, d.READ]),
        (2, 2, 7, [d.READ_WRITE, d.READ_WRITE]),
        (2, 2, 0, [d.NONE, d.NONE]),
        (0, 0, 6, [d.NONE]),
        (2, 0, 6, [d.READ, d.READ]),
    ],
)
def test_every_queue_says_what_it_is_for(read: int, write: int, perm: int, expected: list[d.Permission]) -> None:
    queues = Queues(broker_name="b", address="h:1", read_queue_nums=read, write_queue_nums=write, perm=perm)
    found = message_queues(resource("t"), [queues], "b", DIALLED)
    assert [queue.permission for queue in found] == expected


async def test_a_broker_that_may_only_be_read_says_so(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, broker_permission=4) as (_, client):
        answer = await client.QueryRoute(route_of("T"))
        assert {queue.permission for queue in answer.message_queues} == {d.READ}
        assert (await client.send(message())).status.code == d.FORBIDDEN


async def test_a_topic_without_queues_to_write_to_or_to_read_says_so(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.topics.update(TopicConfig("T", read_queue_nums=2, write_queue_nums=0), 0)
        sent = await client.send(message())
        assert (sent.status.code, sent.status.message) == (
            d.FORBIDDEN,
            "FORBIDDEN: no writable queue of topic T: its writeQueueNums is 0",
        )
        node.topics.update(TopicConfig("T", read_queue_nums=0, write_queue_nums=0), 0)
        asked = s.QueryAssignmentRequest(topic=resource("T"), group=resource("g"), endpoints=DIALLED)
        assert (await client.QueryAssignment(asked)).status.code == d.FORBIDDEN
        answers = [answer async for answer in client.ReceiveMessage(receive(poll_s=0))]
        assert answers[0].status.code == d.MESSAGE_NOT_FOUND


async def test_the_name_server_that_answered_last_is_asked_first(tmp_path: Path) -> None:
    gone, opened = "127.0.0.1:1", []

    def open_channel(address: str, options: Any = ()) -> grpc.aio.Channel:
        opened.append(address)
        return grpc.aio.insecure_channel(address, options)

    async with v2_broker(tmp_path) as (node, _), name_server() as names:
        node.broker.become(replace(node.broker.config, namesrv_addr=f"{gone};{names.address}"))
        routes = TopicRoutes(node.broker, open_channel, open_channel)
        for _ in range(2):
            await routes.queues_of("T", "h:1")
        # Another request to the dead name server would have opened another channel to it.
        assert opened == [gone, names.address]
        await routes.close()


async def test_a_topic_that_nobody_has_is_not_found_in_the_words_of_the_real_one(tmp_path: Path) -> None:
    text = "CODE: 17  DESC: No topic route info in name server for the topic: nope"
    async with name_server() as names, v2_broker(tmp_path, namesrv_addr=names.address) as (_, client):
        answers = (
            await client.QueryRoute(route_of("nope")),
            await client.QueryAssignment(s.QueryAssignmentRequest(topic=resource("nope"), group=resource("g"))),
        )
        for answer in answers:
            assert answer.status.code == d.TOPIC_NOT_FOUND and text in answer.status.message
        for bad in ("", "a b", "a\n", "a/b", "../a", "\x00", "\uff41", "t" * 128, "TBW102", "rmq_sys_wheel_timer"):
            assert (await client.QueryRoute(route_of(bad))).status.code == d.ILLEGAL_TOPIC


async def test_a_name_server_that_does_not_answer_is_asked_over_another_connection(tmp_path: Path) -> None:
    """Each new connection to the name server uses the certificates that are on the disk at that time."""
    opened: list[str] = []

    def open_channel(address: str, options: Any = ()) -> grpc.aio.Channel:
        opened.append(address)
        return grpc.aio.insecure_channel(address, options)

    async with v2_broker(tmp_path) as (node, _), name_server() as names:
        gone = "127.0.0.1:1"
        routes = TopicRoutes(node.broker, open_channel, open_channel)
        for _ in range(2):
            node.broker.become(replace(node.broker.config, namesrv_addr=gone))
            with pytest.raises(PeerLost):
                await routes.queues_of("elsewhere", "h:1")
            node.broker.become(replace(node.broker.config, namesrv_addr=names.address))
            await routes.queues_of("elsewhere", "h:1")
        assert opened == [gone, names.address, gone]
        await routes.close()


async def test_other_masters_are_listed_where_they_say_and_slaves_never(tmp_path: Path) -> None:
    """Go's client sends to every broker that the route lists, so the route must not list slaves."""
    async with (
        name_server() as names,
        v2_broker(tmp_path / "a", namesrv_addr=names.address) as (_, client),
        running(tmp_path / "b", broker_name="broker-b", namesrv_addr=names.address, grpc_server_port=0) as other,
        running(tmp_path / "c", broker_name="broker-c", namesrv_addr=names.address) as closed,
        running(
            tmp_path / "s", namesrv_addr=names.address, broker_role=BrokerRole.SLAVE, broker_id=1, grpc_server_port=0
        ) as slave,
    ):
        for node in (other, closed):
            make_topics(node)
        other.topics.update(TopicConfig("only-b", 1, 1, attributes={"message.type": "FIFO"}), 0)

        async def brokers_of(topic: str) -> dict[str, d.Endpoints]:
            answer = await client.QueryRoute(route_of(topic))
            return {queue.broker.name: queue.broker.endpoints for queue in answer.message_queues}

        expected = {"broker-a": DIALLED, "broker-b": endpoints_of(other.v2_port.address)}
        for name in ("broker-b", "broker-c"):
            await until(lambda name=name: "T" in names.table.live()[name].topics, "its topics at the name server")
        await until(lambda: len(names.table.members("broker-a")) == 2, "the slave at the name server")
        assert slave.v2_port.address == ""
        await until(lambda: names.table.route("only-b"), "the last topic at the name server")
        await until(lambda: names.table.live()["broker-b"].v2_address, "its port at the name server")
        assert await brokers_of("T") == expected
        of_d = {"cluster_name": "c", "broker_name": "broker-d", "topics": {"T": TopicQueues(4, 4, 6)}}
        never_silent = 2**62
        for broker_id, address in enumerate(("h:8081", "h:8082")):
            member = Registration(broker_id=broker_id, address=address, v2_address=address, **of_d)
            assert names.table.register(member, address, never_silent) == ""
        assert await brokers_of("T") == expected | {"broker-d": endpoints_of("h:8081")}
        names.table.connection_lost("h:8081")  # the master is gone, and a slave takes no calls of these clients
        assert await brokers_of("T") == expected
        assert [member.broker_id for member in names.table.members("broker-d")] == [1]
        answer = await client.QueryRoute(route_of("only-b"))
        assert [list(queue.accept_message_types) for queue in answer.message_queues] == [[d.FIFO]]
        assignments = await client.QueryAssignment(
            s.QueryAssignmentRequest(topic=resource("T"), group=resource("g"), endpoints=DIALLED)
        )
        assert {item.message_queue.broker.name for item in assignments.assignments} == {"broker-a", "broker-b"}


async def test_without_a_name_servers_word_its_own_queues_are_the_route_and_other_topics_an_error(
    tmp_path: Path,
) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.broker.become(replace(node.broker.config, namesrv_addr="127.0.0.1:1"))  # nobody is there
        assert (await client.QueryRoute(route_of("T"))).status.code == d.OK
        answer = await client.QueryRoute(route_of("elsewhere"))
        assert answer.status.code == d.PROXY_TIMEOUT and "127.0.0.1:1" in answer.status.message


async def test_a_push_consumer_gets_one_assignment_a_broker_and_one_a_queue_in_order(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.groups.update(SubscriptionGroup("ordered", consume_message_orderly=True), 0)

        async def assigned(group: str, topic: str = "T") -> s.QueryAssignmentResponse:
            request = s.QueryAssignmentRequest(topic=resource(topic), group=resource(group), endpoints=DIALLED)
            return await client.QueryAssignment(request)

        node.topics.update(TopicConfig("T", read_queue_nums=4, write_queue_nums=2), 0)
        answer = await assigned("new")
        (one,) = answer.assignments
        assert answer.status.code == d.OK and "new" not in node.groups.entries
        assert (one.message_queue.id, one.message_queue.permission) == (-1, d.READ_WRITE)
        assert one.message_queue.broker == d.Broker(name="broker-a", id=0, endpoints=DIALLED)
        assert [item.message_queue.id for item in (await assigned("ordered")).assignments] == [0, 1, 2, 3]
        for bad in ("", "a b", "a\n", "g" * 121, "CID_RMQ_SYS_x"):
            assert (await assigned(bad)).status.code == d.ILLEGAL_CONSUMER_GROUP
        node.topics.update(TopicConfig("W", 4, 4, perm=2), 0)
        answer = await assigned("new", "W")
        assert answer.status.code == d.FORBIDDEN and "no readable queue" in answer.status.message


async def test_offsets_of_a_queue_and_of_a_group(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        await put(node, "T", b"a", b"b", b"c", queue_id=1)
        queue = d.MessageQueue(topic=resource("T"), id=1, broker=d.Broker(name="broker-a"))

        async def query(policy: d.QueryOffsetPolicy, **more: Timestamp) -> tuple[d.Code, int]:
            answer = await client.QueryOffset(
                s.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy, **more)
            )
            return answer.status.code, answer.offset

        assert await query(d.BEGINNING) == (d.OK, 0)
        assert await query(d.END) == (d.OK, 3)
        assert await query(d.TIMESTAMP, timestamp=Timestamp(seconds=1)) == (d.OK, 0)
        assert await query(d.TIMESTAMP, timestamp=Timestamp(seconds=1 << 33)) == (d.OK, 3)
        assert await query(d.TIMESTAMP) == (d.BAD_REQUEST, 0)
        asked = s.GetOffsetRequest(group=resource("g"), message_queue=queue)
        assert (await client.GetOffset(asked)).status.code == d.OFFSET_NOT_FOUND
        node.commits.commit("g", [CommitEntry("T", 1, 2)])
        answer = await client.GetOffset(asked)
        assert (answer.status.code, answer.offset) == (d.OK, 2)
        queue.id = 4
        assert (await query(d.END))[0] == d.BAD_REQUEST
        queue.id, queue.broker.name = 1, "broker-z"
        assert (await query(d.END))[0] == d.BAD_REQUEST


async def test_calls_without_support_say_so_by_name(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        unary = (s.UpdateOffsetRequest(), s.SyncLiteSubscriptionRequest())
        for request in unary:
            name = type(request).__name__.removesuffix("Request")
            answer = await getattr(client, name)(request)
            assert answer.status == d.Status(code=d.UNSUPPORTED, message=f"UNSUPPORTED: {name} is not supported")
        (answer,) = [item async for item in client.PullMessage(s.PullMessageRequest())]
        assert answer.status.code == d.UNSUPPORTED
