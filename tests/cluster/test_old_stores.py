"""Stores of version 9157579 open with this version and continue without loss or repetition."""

import json

import pytest

from broker_service.store.offline.verification import Severity, verify
from rocketsim_client import Admin
from rocketsim_client.model import SendStatus
from testbed.polling import wait_until
from tests.cluster.old_stores import KEYS, QUEUES, UPGRADE, facts
from tests.support.archives import unpack

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("ended", ["clean", "crashed"])
def test_a_pair_of_9157579_goes_on(processes, namesrv, alone, ended):
    unpack(UPGRADE / f"{ended}.tar.xz", processes.folder)
    known = json.loads((UPGRADE / f"{ended}.json").read_text())
    # The configuration files still have the roles of the beginning, because only the stores know of the promotion.
    former = processes.broker("broker-a", 0, namesrv, **KEYS | {"brokerId": 1, "brokerRole": "SLAVE"})
    promoted = processes.broker("broker-a", 1, namesrv, **KEYS | {"brokerRole": "SLAVE"})
    for broker in (former, promoted):
        broker.launch()
    for broker in (former, promoted):
        broker.wait_until_ready()
    master = alone(promoted)
    assert master.ha_status().is_master
    master.update_topic("Many", QUEUES)  # waits until the master takes writes
    master.wait_for_slaves()
    for broker in (former, promoted):
        assert facts(alone(broker)) == known, broker.name
        wait_until(lambda broker=broker: alone(broker).bodies("Late"), "the message whose time has come")

    with Admin(name_server=namesrv.address) as admin:
        for key in ("first-77", "after-a-crash-7", "after-a-promotion-42"):
            (found,) = admin.query_msg_by_key("Many", key)
            assert found.body.decode().startswith(key.replace("-", " ") + " ")
    ends = master.bounds("Many")
    master.update_topic("Gone", 1)
    for queue, (_, end) in ends.items():
        sent = master.put("Many", b"today", queue_id=queue)
        assert sent.status == SendStatus.SEND_OK
        assert sent.queue_offsets[0] == end
    assert master.put("Gone", b"again").queue_offsets[0] == 2, "queue offsets are never used twice"
    master.commit("reader", "Many", {2: 53})
    master.wait_for_slaves()
    wait_until(lambda: alone(former).committed("reader", "Many", 2) == 53, "the commit is on the slave")
    for broker in (former, promoted):
        wait_until(lambda broker=broker: alone(broker).bodies("Gone") == [b"again"], f"{broker.name} has it again")
        assert len(alone(broker).messages("Many")) == len(known["messages"]["Many"]) + QUEUES
        assert alone(broker).bodies("Late") == [b"later"]
        assert broker.stop() == 0
        assert [finding for finding in verify(broker.store) if finding.severity is not Severity.WARNING] == []
