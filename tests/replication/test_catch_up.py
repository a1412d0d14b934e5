import pytest

from broker_service.replication.catch_up import LogState, plan
from broker_service.replication.epochs import EpochList
from broker_service.replication.refusals import KEEP_THE_RIGHT_LOG


def log(first, end, *epochs):
    return LogState(EpochList.of(*epochs), first, end)


M = (100, 0)


@pytest.mark.parametrize(
    "master, slave, expected",
    [
        pytest.param(log(0, 900, M), log(0, 0), "resume at 0: new slave", id="new slave, whole log"),
        pytest.param(log(400, 900, M), log(0, 0), "start over at 400: new slave", id="new slave, trimmed master"),
        pytest.param(log(0, 900, M), log(0, 900, M), "resume at 900: in step", id="in step"),
        pytest.param(log(0, 900, M), log(0, 300, M), "resume at 300: in step", id="behind"),
        pytest.param(log(200, 900, M), log(100, 300, M), "resume at 300: in step", id="behind, both trimmed"),
        pytest.param(
            log(400, 900, M),
            log(0, 300, M),
            "start over at 400: 300 is older than everything the master still has",
            id="behind the master's retention",
        ),
        pytest.param(
            log(0, 800, M),
            log(0, 900, M),
            "refill at 900: the master lost [800, 900) of epoch 100",
            id="master lost a tail",
        ),
        pytest.param(
            log(0, 900, M, (201, 700)), log(0, 800, M), "cut at 700: epoch 201 forked off at 700", id="forked off"
        ),
        pytest.param(
            log(0, 900, M, (300, 700)),
            log(0, 950, M, (200, 800)),
            "cut at 700: epoch 300 forked off at 700",
            id="a promoted slave that was replaced",
        ),
        pytest.param(
            log(0, 900, M, (201, 700)),
            log(750, 800, M),
            "start over at 0: forked off at 700, before either log's minimum",
            id="forked off before its minimum",
        ),
        pytest.param(
            log(0, 900, M),
            log(0, 900, M, (201, 900)),
            "fence at 900: epoch 201 is newer than this master's 100",
            id="newer slave",
        ),
        pytest.param(
            log(0, 0),
            log(0, 900, M),
            "fence at 900: epoch 100 is newer than this master's 0",
            id="master lost its disk",
        ),
        pytest.param(
            log(0, 900, (300, 0)),
            log(0, 900, M),
            f"refuse at 900: no epoch in common: the log of another broker? {KEEP_THE_RIGHT_LOG}",
            id="strangers",
        ),
        pytest.param(
            log(0, 900, M, (200, 100)),
            log(0, 900, M, (200, 200)),
            f"refuse at 900: another history of epoch 200: {KEEP_THE_RIGHT_LOG}",
            id="one epoch, two histories",
        ),
        pytest.param(
            log(0, 900, M, (200, 100, 7)),
            log(0, 900, M, (200, 100, 8)),
            "cut at 100: epoch 200 forked off at 100",
            id="one number that two brokers began with",
        ),
        pytest.param(
            log(0, 800, (100, 0, 7)),
            log(0, 900, (100, 0, 8)),
            f"refuse at 900: no epoch in common: the log of another broker? {KEEP_THE_RIGHT_LOG}",
            id="a master that lost its disk and began anew",
        ),
        pytest.param(
            log(0, 800, (100, 0, 7)),
            log(0, 900, (100, 0)),
            "refill at 900: the master lost [800, 900) of epoch 100",
            id="a slave that knows no ids",
        ),
        pytest.param(
            log(0, 100, M),
            log(200, 900, M),
            "refuse at 900: the master ends at 100, before the slave's minimum: stop the master and promote the slave",
            id="master lost too much",
        ),
    ],
)
def test_how_a_slave_catches_up(master, slave, expected):
    assert str(plan(master, slave, takes_writes=False)) == expected


def test_a_master_that_writes_is_never_refilled():
    refused = plan(log(0, 800, M), log(0, 900, M), takes_writes=True)
    ahead = "ahead of the master's end 800 in the epoch that it writes"
    assert str(refused) == f"refuse at 900: {ahead}: {KEEP_THE_RIGHT_LOG}"


@pytest.mark.parametrize("first, end", [(-1, 5), (6, 5)])
def test_a_log_that_cannot_be_is_refused(first, end):
    with pytest.raises(ValueError, match="a log from"):
        log(first, end)
