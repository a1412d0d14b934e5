"""The suggestion which broker to read from follows RocketMQ 4.9.8's tables D1 and D3, row by row."""

import pytest
from rocketsim_proto.model import GetMessageStatus

from broker_service.broker.reads.suggestion import PullCode, ReadPolicy, pull_code
from broker_service.modes import BrokerRole

MASTERS = [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER]
GROUP_BROKER_ID = 7
GROUP_SLOW = 9


def policy(role: BrokerRole, slave_read_enable: bool, offset_check_in_slave: bool = False) -> ReadPolicy:
    return ReadPolicy(
        role=role,
        slave_read_enable=slave_read_enable,
        offset_check_in_slave=offset_check_in_slave,
        group_broker_id=GROUP_BROKER_ID,
        group_when_slowly=GROUP_SLOW,
    )


D1 = [
    pytest.param("master", False, False, 0, id="| master | false | false | 0 |"),
    pytest.param("master", False, True, 0, id="| master | false | true | 0 |"),
    pytest.param("master", True, False, GROUP_BROKER_ID, id="| master | true | false | G.brokerId |"),
    pytest.param("master", True, True, GROUP_SLOW, id="| master | true | true | G.slow |"),
    pytest.param("slave", False, False, 0, id="| slave | false | false | 0 | data is still returned"),
    pytest.param("slave", False, True, 0, id="| slave | false | true | 0 | data is still returned"),
    pytest.param("slave", True, False, GROUP_BROKER_ID, id="| slave | true | false | G.brokerId |"),
    pytest.param("slave", True, True, GROUP_SLOW, id="| slave | true | true | G.slow |"),
]


@pytest.mark.parametrize(("role", "slave_read_enable", "from_slave", "suggestion"), D1)
def test_the_suggestion_and_the_code_are_table_d1s(
    role: str, slave_read_enable: bool, from_slave: bool, suggestion: int
) -> None:
    for broker_role in MASTERS if role == "master" else [BrokerRole.SLAVE]:
        answer = policy(broker_role, slave_read_enable).answer(GetMessageStatus.FOUND, 5, from_slave=from_slave)
        assert answer == (PullCode.SUCCESS, suggestion)  # the code comes "from status (D3)"


@pytest.mark.parametrize("slave_read_enable", [False, True])
def test_a_slave_turns_an_illegal_offset_into_a_retry_at_the_groups_broker(slave_read_enable: bool) -> None:
    # | slave, offsetCheckInSlave=false, and the status maps to PULL_OFFSET_MOVED | any | any | G.brokerId, overriding
    # the row above even when SRE=false | rewritten to PULL_RETRY_IMMEDIATELY (20) |
    slave = policy(BrokerRole.SLAVE, slave_read_enable)
    assert slave.answer(GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5, from_slave=False) == (
        PullCode.PULL_RETRY_IMMEDIATELY,
        GROUP_BROKER_ID,
    )


@pytest.mark.parametrize("role", MASTERS)
def test_a_master_says_that_the_offset_moved(role: BrokerRole) -> None:
    answer = policy(role, False).answer(GetMessageStatus.OFFSET_TOO_SMALL, 5, from_slave=False)
    assert answer == (PullCode.PULL_OFFSET_MOVED, 0)


def test_a_slave_with_offset_check_says_so_too() -> None:
    slave = policy(BrokerRole.SLAVE, False, offset_check_in_slave=True)
    assert slave.answer(GetMessageStatus.OFFSET_TOO_SMALL, 5, from_slave=False) == (PullCode.PULL_OFFSET_MOVED, 0)


def test_the_default_group_goes_back_to_the_master_and_to_broker_1_when_slow() -> None:
    # "G.brokerId (default 0) and G.slow = whichBrokerWhenConsumeSlowly (default 1)"
    default = ReadPolicy(role=BrokerRole.SLAVE, slave_read_enable=True)
    assert default.suggested_broker_id(from_slave=False) == 0
    assert default.suggested_broker_id(from_slave=True) == 1


D3 = [
    pytest.param(GetMessageStatus.FOUND, 3, 0, id="FOUND | SUCCESS 0"),
    pytest.param(GetMessageStatus.NO_MATCHED_MESSAGE, 3, 20, id="NO_MATCHED_MESSAGE | PULL_RETRY_IMMEDIATELY 20"),
    pytest.param(GetMessageStatus.MESSAGE_WAS_REMOVING, 3, 20, id="MESSAGE_WAS_REMOVING | 20"),
    pytest.param(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 3, 21, id="NO_MATCHED_LOGIC_QUEUE | 21 if request≠0"),
    pytest.param(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 19, id="NO_MATCHED_LOGIC_QUEUE | else 19"),
    pytest.param(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 3, 21, id="NO_MESSAGE_IN_QUEUE | 21 if request≠0"),
    pytest.param(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 19, id="NO_MESSAGE_IN_QUEUE | else 19"),
    pytest.param(GetMessageStatus.OFFSET_TOO_SMALL, 3, 21, id="OFFSET_TOO_SMALL | PULL_OFFSET_MOVED 21"),
    pytest.param(GetMessageStatus.OFFSET_OVERFLOW_ONE, 3, 19, id="OFFSET_OVERFLOW_ONE | PULL_NOT_FOUND 19"),
    pytest.param(GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3, 21, id="OFFSET_OVERFLOW_BADLY | 21"),
    pytest.param(GetMessageStatus.OFFSET_FOUND_NULL, 3, 19, id="OFFSET_FOUND_NULL | 19"),
]


@pytest.mark.parametrize(("status", "requested", "code"), D3)
def test_the_code_is_table_d3s(status: GetMessageStatus, requested: int, code: int) -> None:
    assert pull_code(status, requested) == code


def test_every_status_has_a_code() -> None:
    assert all(isinstance(pull_code(status, 1), PullCode) for status in GetMessageStatus)
