"""A change that goes to several brokers reaches each that accepts it, even if another one refuses; the error names the
brokers that refused.  tests/access tests changes of users and policies.
"""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rocketsim_cli.admin.groups import update_sub_group
from rocketsim_cli.admin.topics import update_topic
from rocketsim_client import Admin, SubscriptionGroupConfig, Unreachable
from rocketsim_client.admin import at_each
from rocketsim_client.admin_model import ClusterMember
from rocketsim_client.errors import BrokerNotExist, GroupNotExist, InvalidParameter, NotFound, TopicNotExist
from rocketsim_client.route import BrokerData, QueueData, TopicRoute
from testbed.polling import PATIENCE_S
from tests.support.broker_thread import BrokerThread, broker_thread

AWAY = "127.0.0.1:1"
PLAINTEXT: Any = SimpleNamespace(find_object=lambda _: None)  # the context of a command without TLS options


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with broker_thread(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def admin(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    """An Admin that sees two pairs, of which the first one does not answer."""
    masters = [
        ClusterMember("c", f"broker-{number}", 0, at, 1) for number, at in enumerate((AWAY, broker.node.address))
    ]
    monkeypatch.setattr(Admin, "cluster_list", lambda *_: masters)
    broker.make_topic("Old")
    broker.make_group("old")
    with Admin(broker.node.address) as made:
        yield made


def topics(broker: BrokerThread) -> set[str]:
    return set(broker.do(lambda: {*broker.node.topics.entries}))


def groups(broker: BrokerThread) -> set[str]:
    return set(broker.do(lambda: {*broker.node.groups.entries}))


CHANGES: dict[str, tuple[Callable[[Admin], object], Callable[[BrokerThread], bool]]] = {
    "updateTopic": (lambda admin: admin.update_topic("New"), lambda broker: "New" in topics(broker)),
    "deleteTopic": (lambda admin: admin.delete_topic("Old"), lambda broker: "Old" not in topics(broker)),
    "updateSubGroup": (
        lambda admin: admin.update_sub_group(SubscriptionGroupConfig(group_name="new")),
        lambda broker: "new" in groups(broker),
    ),
    "deleteSubGroup": (lambda admin: admin.delete_sub_group("old"), lambda broker: "old" not in groups(broker)),
    "updateBrokerConfig": (
        lambda admin: admin.update_broker_config({"slaveReadEnable": "true"}),
        lambda broker: broker.do(lambda: broker.node.broker.config.slave_read_enable),
    ),
    "rocketsim admin updateTopic": (
        lambda admin: update_topic(PLAINTEXT, "Typed", name_server="name-server:1"),
        lambda broker: "Typed" in topics(broker),
    ),
    "rocketsim admin updateSubGroup": (
        lambda admin: update_sub_group(PLAINTEXT, "typed", name_server="name-server:1"),
        lambda broker: "typed" in groups(broker),
    ),
}


@pytest.mark.parametrize("command", CHANGES)
def test_a_change_is_made_where_it_can_be(broker: BrokerThread, admin: Admin, command: str) -> None:
    change, is_made = CHANGES[command]
    with pytest.raises(Unreachable, match=rf"\(at {AWAY}; done at {broker.node.address}\)") as refused:
        change(admin)
    assert str(refused.value).count("(at ") == 1 and refused.value.address == AWAY
    assert is_made(broker)


def test_a_reset_is_done_where_there_is_a_master(
    broker: BrokerThread, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"broker-0": {1: AWAY}, "broker-1": {0: AWAY}, "broker-a": {0: broker.node.address}}
    route = TopicRoute(
        "Old",
        tuple(QueueData(name, 1, 1, 6) for name in names),
        {name: BrokerData("c", name, addresses) for name, addresses in names.items()},
    )
    monkeypatch.setattr(Admin, "topic_route", lambda *_: route)
    said = rf"no master.* \(at broker-0; refused at {AWAY}: .*not reachable.*; done at {broker.node.address}\)"
    with pytest.raises(BrokerNotExist, match=said):
        admin.reset_offset_by_time("old", "Old", -1)
    assert broker.do(lambda: broker.node.offsets.get("old", "Old", 0).offset) == 0
    (row,) = admin.reset_offset_by_time("old", "Old", -1, broker_name="broker-a")
    assert row.queue.broker_name == "broker-a"
    with pytest.raises(BrokerNotExist, match=r"can reset offsets$"):
        admin.reset_offset_by_time("old", "Old", -1, broker_name="broker-0")


def test_what_is_nowhere_is_an_error_and_what_is_at_one_is_not(
    broker: BrokerThread, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = broker.node.address
    monkeypatch.setattr(Admin, "masters", lambda *_: [at])
    with pytest.raises(TopicNotExist, match=f"'Nowhere' is not at {at}"):
        admin.delete_topic("Nowhere")
    with pytest.raises(GroupNotExist, match=f"'nobody' is not at {at}"):
        admin.delete_sub_group("nobody")
    assert admin.delete_topic("Old") == admin.delete_sub_group("old") == [at]


def test_one_that_is_asked_alone_is_not_named_a_second_time_and_absence_is_no_failure() -> None:
    def call(place: str) -> str:
        raise {"absent": NotFound, "wrong": InvalidParameter}[place](f"{place}!")

    with pytest.raises(InvalidParameter, match=r"^wrong!$"):
        at_each(["wrong"], call)
    with pytest.raises(InvalidParameter, match=r"^wrong! \(at wrong\)$"):
        at_each(["absent", "wrong"], call, NotFound)
    assert at_each(["absent"], call, NotFound) == {}


def test_a_broker_that_does_not_answer_costs_the_others_no_time():
    """The silent broker's call ends only after the other broker has answered."""
    other_has_answered = threading.Event()

    def call(place: str) -> str:
        if place == "silent":
            assert other_has_answered.wait(PATIENCE_S), "they are asked one after the other"
            raise Unreachable("no answer")
        other_has_answered.set()
        return "done"

    with pytest.raises(Unreachable, match="at silent; done at good"):
        at_each(["silent", "good"], call)
