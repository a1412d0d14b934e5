"""Every call of a client ends within its timeout and a margin, whatever is killed, frozen or cut meanwhile (I12).

ROCKETSIM_SOAK_S=600 ROCKETSIM_SEED=7 ./run test --long tests/cluster/test_every_call_ends.py
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from rocketsim_client import Message, MessageQueue, Producer, PullConsumer
from rocketsim_client.errors import RocketSimError
from tests.support.polling import wait_until
from tests.support.tcp_proxy import FROM_CLIENT, FROM_SERVER, TcpProxy

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SEED = int(os.environ.get("ROCKETSIM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
SOAK_S = float(os.environ.get("ROCKETSIM_SOAK_S", "60"))
TIMEOUT_S = 2.0
# A call asks a broker, and where that does not answer the other one and the name server; each of them has the timeout.
ASKED = 3
SUSPEND_S = 5.0
MARGIN_S = 2.0  # of the machine: this test has many processes


class Caller:
    """Makes one call again and again in a thread of its own, and notes how each ended and what took too long."""

    def __init__(self, name: str, most_s: float, call: Callable[[], object]) -> None:
        self.name = name
        self.outcomes: Counter[str] = Counter()
        self.late: list[str] = []
        self._most_s = most_s
        self._call = call
        self._began: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._began = began = time.monotonic()
            try:
                self._call()
                outcome = "ok"
            except RocketSimError as error:
                outcome = type(error).__name__
            took_s, self._began = time.monotonic() - began, None
            self.outcomes[outcome] += 1
            if took_s > self._most_s:
                self.late.append(f"{outcome} after {took_s:.1f} s")
            self._stop.wait(0.01)

    def hangs_for_s(self) -> float:
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(self._most_s + MARGIN_S)
        assert not self._thread.is_alive(), f"{self.name} hangs (seed {SEED})"


def test_every_call_of_a_client_ends_whatever_dies_freezes_or_is_cut(processes, namesrv, alone):
    print(f"seed {SEED} (ROCKETSIM_SEED), {SOAK_S:.0f} s (ROCKETSIM_SOAK_S)")
    chance = random.Random(SEED)
    keys = {"haHousekeepingInterval": 3_000, "haSendHeartbeatInterval": 500, "slaveTimeout": 500}
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER", **keys)
    alone(master).update_topic("T", 1)
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    with TcpProxy(lambda: master.address) as to_master, TcpProxy(lambda: slave.address) as to_slave:
        at = {"broker-a": {0: to_master.address, 1: to_slave.address}}
        queue = MessageQueue("T", "broker-a", 0)
        with (
            Producer(brokers=at, group="p", timeout_s=TIMEOUT_S) as producer,
            Producer(name_server=namesrv.address, group="p", timeout_s=TIMEOUT_S) as routed,
            PullConsumer(brokers=at, group="c", timeout_s=TIMEOUT_S) as consumer,
            PullConsumer(name_server=namesrv.address, group="c", timeout_s=TIMEOUT_S) as routed_consumer,
        ):
            once, several = TIMEOUT_S + MARGIN_S, ASKED * TIMEOUT_S + MARGIN_S
            callers = [
                Caller("send", once, lambda: producer.send(Message("T", b"x" * 100))),
                Caller("send, routed", once, lambda: routed.send(Message("T", b"x" * 100))),
                Caller("pull", several, lambda: consumer.pull(queue, 0)),
                Caller(
                    "pull, held",
                    2 * several + SUSPEND_S,
                    lambda: consumer.pull(queue, consumer.max_offset(queue), suspend=SUSPEND_S),
                ),
                Caller("pull, routed", several, lambda: routed_consumer.pull(queue, 0)),
                Caller("bounds", several, lambda: consumer.max_offset(queue)),
                Caller("search", several, lambda: consumer.search_offset(queue, 1)),
                Caller("commit", several, lambda: consumer.commit(queue, 1)),
                Caller("committed", several, lambda: routed_consumer.committed(queue)),
            ]
            until = time.monotonic() + SOAK_S
            events: list[str] = []
            while time.monotonic() < until:
                victim = chance.choice([master, master, slave, namesrv])
                wire = chance.choice([to_master, to_slave])
                act = chance.choice(["kill", "freeze", "cut", "cut"])
                ways = chance.choice([(), (FROM_CLIENT,), (FROM_SERVER,)])
                events.append(f"cut {ways or 'both ways'}" if act == "cut" else f"{act} {victim.name}")
                {"kill": victim.kill, "freeze": victim.freeze, "cut": lambda: wire.cut(*ways)}[act]()  # noqa: B023
                time.sleep(chance.random() * 8)  # what the calls meet, not what they wait for
                {"kill": victim.start, "freeze": victim.thaw, "cut": wire.heal}[act]()
                for caller in callers:
                    assert caller.hangs_for_s() < several * 3, f"{caller.name} hangs after {events[-3:]} (seed {SEED})"
                time.sleep(chance.random() * 2)
            before = {caller: caller.outcomes["ok"] for caller in callers}
            wait_until(
                lambda: all(caller.outcomes["ok"] > before[caller] for caller in callers),
                "every call is answered again",
            )
            for caller in callers:
                caller.stop()
        print(f"{len(events)} events: " + "; ".join(f"{one.name} {dict(one.outcomes)}" for one in callers))
        late = {caller.name: caller.late[:5] for caller in callers if caller.late}
        assert not late, f"{late} (seed {SEED}, {events})"
