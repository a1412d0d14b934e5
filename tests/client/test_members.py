"""The client chooses which broker of a name to ask (table D5), and avoids addresses that have just failed."""

import pytest

from rocketsim_client.routing.members import Member, candidates, find_broker_address
from rocketsim_client.transport.unreachable import SILENT_FOR_S, UNREACHABLE_FOR_S, UnreachableAddresses

BOTH = {0: "m", 1: "s1"}


@pytest.mark.parametrize(
    ("addresses", "broker_id", "only_this", "expected"),
    [
        pytest.param(BOTH, 0, False, Member(0, "m", False), id="master"),
        pytest.param(BOTH, 1, False, Member(1, "s1", True), id="exact slave"),
        pytest.param({0: "m", 2: "s2"}, 1, False, Member(2, "s2", True), id="next slave id"),
        pytest.param({0: "m", 3: "s3"}, 1, False, Member(0, "m", False), id="no next id: the lowest"),
        pytest.param({1: "s1", 2: "s2"}, 0, False, Member(1, "s1", True), id="master gone: the lowest slave"),
        pytest.param({1: "s1"}, 0, True, None, id="only the master"),
        pytest.param({0: "m", 2: "s2"}, 1, True, Member(2, "s2", True), id="only this, yet the next id counts"),
        pytest.param({}, 0, False, None, id="nobody"),
    ],
)
def test_find_broker_address_follows_table_d5(addresses, broker_id, only_this, expected):
    assert find_broker_address(addresses, broker_id, only_this) == expected


def test_the_others_follow_by_id_and_those_that_failed_come_last():
    addresses = {0: "m", 1: "s1", 2: "s2"}
    assert [member.address for member in candidates(addresses, 1)] == ["s1", "m", "s2"]
    assert [member.address for member in candidates(addresses, 0, frozenset({"m"}))] == ["s1", "s2", "m"]
    assert [member.address for member in candidates(addresses, 0, frozenset(addresses.values()))] == ["m", "s1", "s2"]


def test_a_refused_connection_is_forgotten_sooner_than_a_silent_address():
    unreachable = UnreachableAddresses()
    unreachable.failed("refused", 100.0, silent=False)
    unreachable.failed("silent", 100.0, silent=True)
    assert unreachable.current(100.0) == {"refused", "silent"}
    assert unreachable.current(100.0 + UNREACHABLE_FOR_S) == {"silent"}
    assert unreachable.current(100.0 + SILENT_FOR_S) == frozenset()


def test_an_answer_clears_the_address():
    unreachable = UnreachableAddresses()
    unreachable.failed("m", 100.0, silent=True)
    unreachable.answered("m")
    assert unreachable.current(100.0) == frozenset()
