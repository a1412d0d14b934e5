"""A broker's answer to a send has a meaning for each message."""

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto import admin_pb2
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.records import record

from rocketsim_client import Admin, Cluster, MessageQueue
from rocketsim_client.errors import BadAnswer
from rocketsim_client.transport.admin import command_name
from rocketsim_client.transport.own.admin import GrpcAdmin
from rocketsim_client.transport.own.answers import acknowledged

# the encoder counts small numbers one by one, and takes larger ones as columns
COUNTS = st.integers(1, 20) | st.integers(60, 70)


@given(st.data())
def test_offsets_of_a_queue_follow_each_other_and_records_of_a_run_lie_back_to_back(data: st.DataObject) -> None:
    count = data.draw(COUNTS)
    queue_ids = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    sizes = data.draw(st.lists(st.integers(91, 300), min_size=count, max_size=count))
    cut = data.draw(st.integers(1, count))
    runs = [(5000, cut), (90_000, count - cut)][: 1 + (cut < count)]
    answer = pb.SendResponse(
        queues=[
            pb.SendResponse.QueueAppend(queue_id=one, first_queue_offset=100 * one, count=queue_ids.count(one))
            for one in set(queue_ids)
        ],
        runs=[pb.SendResponse.LogRun(commit_log_offset=at, count=number) for at, number in runs],
    )
    result = acknowledged(answer, queue_ids, sizes, "here")
    assert list(result.queue_offsets) == [100 * one + queue_ids[:row].count(one) for row, one in enumerate(queue_ids)]
    first, second = sizes[:cut], sizes[cut:]
    expected = [5000 + sum(first[:row]) for row in range(cut)] + [
        90_000 + sum(second[:row]) for row in range(len(second))
    ]
    assert list(result.commit_log_offsets) == expected


@pytest.mark.parametrize("count", [2, 100])
@pytest.mark.parametrize("queues", [[(0, 1)], [(1, 2)], [(0, 3)]], ids=["too few", "another queue", "too many"])
def test_an_answer_that_does_not_fit_is_refused(count: int, queues: list[tuple[int, int]]) -> None:
    answer = pb.SendResponse(
        queues=[pb.SendResponse.QueueAppend(queue_id=one, count=number * count // 2) for one, number in queues],
        runs=[pb.SendResponse.LogRun(count=count)],
    )
    with pytest.raises(BadAnswer, match="here"):
        acknowledged(answer, [0] * count, [100] * count, "here")


@pytest.mark.parametrize("count", [0, 2])
def test_an_answer_with_another_number_of_records_than_it_says_is_refused(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = admin_pb2.QueryMsgResponse(records=record.encode(record.Record("T", b"body")), count=count)
    monkeypatch.setattr(GrpcAdmin, "command", lambda *_: answer)
    monkeypatch.setattr(Cluster, "ask_name", lambda _, name, call: call("h:1"))
    with Admin("h:1") as admin, pytest.raises(BadAnswer, match="damaged records"):
        admin.query_msg_by_offset(MessageQueue("T", "broker-a", 0), 0)


def test_each_command_has_a_request_of_its_own() -> None:
    """Each admin command is identified by the type of its request, so no two share a type."""
    methods = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods
    requests = {method.name: GetMessageClass(method.input_type)() for method in methods}
    assert {name: command_name(request) for name, request in requests.items()} == {name: name for name in requests}
