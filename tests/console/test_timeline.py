"""The console derives the state of a pair, events and rates from two pictures of the cluster."""

from dataclasses import replace

import pytest

from rocketsim_client.admin_model import ClusterMember, HaCut, HaEpoch, HaSlave, HaStatus
from rocketsim_client.errors import AccessDenied, BrokerUnavailable
from rocketsim_console.picture import Broker, Picture, members_of
from rocketsim_console.rates import Rates
from rocketsim_console.timeline import cuts_of, epoch_words, epochs_of, events_between
from rocketsim_console.watch import Watch

MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


def master(address=MASTER, epoch=1, in_sync=True, writable=True, slave=SLAVE, why=""):
    slaves = [HaSlave(slave, 1, 100, 0, in_sync, 0, 100)] if slave else []
    ha = HaStatus(address, True, epoch, address, 100, 100, 100, slaves, "master line")
    status = {"brokerActive": str(writable).lower(), "notWritable": why}
    return Broker("broker-a", 0, address, "C", ha=ha, status=status)


def slave(address=SLAVE, epoch=1):
    ha = HaStatus(address, False, epoch, MASTER, 100, 100, 100, [], "slave line")
    return Broker("broker-a", 1, address, "C", ha=ha, status={"brokerActive": "false"})


def gone(address, registered=False):
    return Broker("broker-a", 0, address, "C", registered=registered, trouble="no answer")


@pytest.mark.parametrize(
    ("brokers", "level", "words"),
    [
        ((master(), slave()), "ok", "all slaves are in sync"),
        ((master(in_sync=False), slave()), "warning", "not in sync"),
        ((master(slave=""), slave()), "warning", "not in sync"),
        ((master(slave=""),), "warning", "no slave"),
        ((master(), gone(SLAVE)), "warning", f"{SLAVE} does not answer"),
        ((gone(MASTER), slave()), "critical", f"Consumers read from {SLAVE}"),
        ((gone(MASTER, registered=True), gone(SLAVE)), "critical", "No broker of this name answers"),
        ((master(writable=False, why="the disk is full"), slave()), "critical", "the disk is full"),
    ],
)
def test_how_a_pair_stands(brokers, level, words):
    (pair,) = Picture(0, brokers).pairs()
    assert pair.level == level and words in pair.summary


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ((), (master(), slave()), []),
        ((master(), slave()), (master(), slave()), []),
        ((master(), slave()), (gone(MASTER), slave()), ["gone"]),
        ((gone(MASTER), slave()), (master(epoch=2), slave()), ["back"]),
        ((gone(MASTER), slave()), (gone(MASTER), master(SLAVE, epoch=10**12, slave="")), ["promoted"]),
        ((master(), slave()), (master(in_sync=False), slave()), ["late"]),
        ((master(in_sync=False), slave()), (master(), slave()), ["in sync"]),
        ((master(),), (master(writable=False, why="fenced by epoch 2"),), ["fenced"]),
        ((master(writable=False),), (master(),), ["writable"]),
        ((master(epoch=1),), (master(epoch=2),), ["epoch"]),
        ((master(),), (master(), slave()), ["joined"]),
        ((master(),), (slave(MASTER),), ["replaced"]),
    ],
)
def test_what_has_happened(before, after, kinds):
    events = events_between(Picture(1, before), Picture(2, after))
    assert [event.kind for event in events] == kinds
    assert all(event.at_ms == 2 and event.pair == "broker-a" and event.text for event in events)


def test_a_cut_is_told_once_and_also_if_the_broker_was_away():
    cut = HaCut(40, 60, 1_700_000_000_000)
    before = replace(gone(SLAVE), cuts=())
    after = replace(slave(), cuts=(cut,))
    events = events_between(Picture(1, (before,)), Picture(2, (after,)))
    assert [(event.kind, event.weight) for event in events] == [("back", "good"), ("cut", "warning")]
    assert "60 bytes" in events[1].text and "offset 40" in events[1].text
    assert events_between(Picture(2, (after,)), Picture(3, (after,))) == []
    unknown = gone(SLAVE)  # the console has been started after the cut
    assert [event.kind for event in events_between(Picture(1, (unknown,)), Picture(2, (after,)))] == ["back"]
    (row,) = cuts_of(Picture(2, (after,)))
    assert (row["pair"], row["address"], row["start"], row["bytes"]) == ("broker-a", SLAVE, 40, 60)


def test_a_broker_that_is_away_keeps_its_cuts():
    cut = HaCut(40, 60, 1_700_000_000_000)
    cluster = Answering(cut)
    watch = Watch(cluster, now_ms=lambda: 1)
    watch.look()
    cluster.answers = False
    watch.look()
    (broker,) = watch.picture.brokers
    assert (broker.state, broker.cuts, len(watch.cuts())) == ("silent", [cut], 1)


class Answering:
    """A cluster of one master that has cut its log, and that may stop answering."""

    def __init__(self, cut):
        self.cut = cut
        self.answers = True

    def cluster_list(self):
        return [ClusterMember("C", "broker-a", 0, MASTER, 1)]

    def ha_status(self, *, broker_addr):
        if not self.answers:
            raise BrokerUnavailable("no answer")
        return [replace(master().ha, cuts=[self.cut])]

    def broker_status(self, *, broker_addr):
        return {broker_addr: {}}


def test_who_is_asked_stays_known_when_the_name_server_forgets_it():
    before = Picture(0, (master(), slave()))
    brokers = members_of([ClusterMember("C", "broker-a", 1, SLAVE, 1)], before)
    assert [(broker.address, broker.registered) for broker in brokers] == [(MASTER, False), (SLAVE, True)]
    assert gone(MASTER).state == "away" and gone(MASTER, registered=True).state == "silent"


def test_the_newest_master_that_takes_sends_is_the_master():
    (pair,) = Picture(0, (master(writable=False, epoch=1), master(SLAVE, epoch=2))).pairs()
    assert pair.master is not None and pair.master.address == SLAVE


def test_epochs_are_told_by_the_master_the_newest_first():
    epochs = [HaEpoch(1, 0), HaEpoch(2, 40), HaEpoch(10**12, 60)]
    old = master(epoch=2)
    new = master(SLAVE, epoch=10**12, slave="")
    new = replace(new, ha=replace(new.ha, epochs=epochs))
    (pair,) = Picture(0, (old, new)).pairs()
    rows = epochs_of(pair)
    assert [(row["start"], row["end"], row["promotion"]) for row in rows] == [
        (60, 100, True),
        (40, 60, False),
        (0, 40, False),
    ]
    assert {row["told_by"] for row in rows} == {SLAVE}
    (silent,) = Picture(0, (gone(MASTER),)).pairs()
    assert epochs_of(silent) == []


class Refusing:
    """Brokers that refuse the console's access keys; the name server answers."""

    def cluster_list(self):
        return [ClusterMember("C", "broker-a", 0, MASTER, 1)]

    def ha_status(self, *, broker_addr):
        raise AccessDenied("check signature failed. ")


def test_refused_access_keys_are_said():
    watch = Watch(Refusing(), now_ms=lambda: 1)
    watch.look()
    assert watch.overview()["trouble"] == "A broker refuses the console's access keys: check signature failed."


def test_rates_count_from_zero_after_a_restart():
    rates: Rates[str] = Rates()
    assert rates.per_second(10.0, {"a": 100}) == {"a": None}
    assert rates.per_second(12.0, {"a": 150, "b": 7}) == {"a": 25.0, "b": None}
    assert rates.per_second(14.0, {"a": 20}) == {"a": 10.0}
    assert rates.per_second(14.0, {"a": 30}) == {"a": None}


def test_an_epoch_in_words():
    assert epoch_words(7) == "7"
    assert epoch_words(2 * 10**12 + 5) == "2000000000005 (start 5 after promotion 2)"
