"""Every call of a client ends, whatever is killed, frozen or cut meanwhile, and waits no longer than its time-outs
(I12).

The waits are counted in the time-outs that a call gives its servers, not in time, so that the machine may be busy.

ROCKETSIM_SOAK_S=600 ROCKETSIM_SEED=7 ./run test --long tests/cluster/test_every_call_ends.py
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from rocketsim_client import Cluster, Message, MessageQueue, Producer, PullConsumer
from rocketsim_client.errors import CallTimeout, RocketSimError
from rocketsim_client.transport.own.channels import Channels
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from tests.support.tcp_proxy import FROM_CLIENT, FROM_SERVER, TcpProxy

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SEED = int(os.environ.get("ROCKETSIM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
SOAK_S = float(os.environ.get("ROCKETSIM_SOAK_S", "60"))
TIMEOUT_S = 2.0
# A call other than a send gives the whole timeout to each question, and asks at most for the route at both brokers, one
# broker, the route again, the other broker, the route again.
ASKED = 8
SUSPEND_S = 5.0
EARLY_S = 0.1  # A deadline may pass so much before its time, and another attempt gets the rest.


class Silence:
    """Adds up, for each thread, the timeouts of calls that got no answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._of_thread = threading.local()
        call = Channels.call

        def counted(channels, address, stub_type, method, request, timeout_s):
            try:
                return call(channels, address, stub_type, method, request, timeout_s)
            except CallTimeout:
                self._of_thread.sum_s = self.sum_s() + timeout_s
                raise

        monkeypatch.setattr(Channels, "call", counted)

    def sum_s(self) -> float:
        return getattr(self._of_thread, "sum_s", 0.0)


class Caller:
    """Makes one call again and again in a thread of its own, and notes how each call ended and which ones waited for
    more than `most_s` of timeouts.
    """

    def __init__(self, name: str, silence: Silence, most_s: float, call: Callable[[], object]) -> None:
        self.name = name
        self.outcomes: Counter[str] = Counter()
        self.too_much: list[str] = []
        self.longest_s = 0.0
        self._silence = silence
        self._most_s = most_s
        self._call = call
        self._began: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            before_s = self._silence.sum_s()
            self._began = began = time.monotonic()
            try:
                self._call()
                outcome = "ok"
            except RocketSimError as error:
                outcome = type(error).__name__
            took_s, self._began = time.monotonic() - began, None
            waited_s = self._silence.sum_s() - before_s
            self.outcomes[outcome] += 1
            self.longest_s = max(self.longest_s, took_s)
            if waited_s > self._most_s:
                self.too_much.append(f"{outcome} after timeouts of {waited_s:.1f} s in {took_s:.1f} s")
            self._stop.wait(0.01)

    def hangs_for_s(self) -> float:
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PROCESS_PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} hangs (seed {SEED})"


def test_every_call_of_a_client_ends_whatever_dies_freezes_or_is_cut(processes, namesrv, alone, monkeypatch):
    print(f"seed {SEED} (ROCKETSIM_SEED), {SOAK_S:.0f} s (ROCKETSIM_SOAK_S)")
    chance = random.Random(SEED)
    silence = Silence(monkeypatch)
    keys = {"haHousekeepingInterval": 3_000, "haSendHeartbeatInterval": 500, "slaveTimeout": 500}
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER", **keys)
    alone(master).update_topic("T", 1)
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    with TcpProxy(lambda: master.address) as to_master, TcpProxy(lambda: slave.address) as to_slave:
        at = {"broker-a": {0: to_master.address, 1: to_slave.address}}
        queue = MessageQueue("T", "broker-a", 0)
        with (
            Cluster("", brokers=at, range_streams=False) as wired,  # a Unix socket does not go through the proxy
            Producer(cluster=wired, group="p", timeout_s=TIMEOUT_S) as producer,
            Producer(name_server=namesrv.address, group="p", timeout_s=TIMEOUT_S) as routed,
            PullConsumer(brokers=at, group="c", timeout_s=TIMEOUT_S) as consumer,
            PullConsumer(name_server=namesrv.address, group="c", timeout_s=TIMEOUT_S) as routed_consumer,
        ):
            once, several = TIMEOUT_S + EARLY_S, ASKED * TIMEOUT_S + EARLY_S
            callers = [
                Caller("send", silence, once, lambda: producer.send(Message("T", b"x" * 100))),
                Caller("send, routed", silence, once, lambda: routed.send(Message("T", b"x" * 100))),
                Caller("pull", silence, several, lambda: consumer.pull(queue, 0)),
                Caller(
                    "pull, held",
                    silence,
                    2 * several + SUSPEND_S,
                    lambda: consumer.pull(queue, consumer.max_offset(queue), suspend=SUSPEND_S),
                ),
                Caller("pull, routed", silence, several, lambda: routed_consumer.pull(queue, 0)),
                Caller("bounds", silence, several, lambda: consumer.max_offset(queue)),
                Caller("search", silence, several, lambda: consumer.search_offset(queue, 1)),
                Caller("commit", silence, several, lambda: consumer.commit(queue, 1)),
                Caller("committed", silence, several, lambda: routed_consumer.committed(queue)),
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
                time.sleep(chance.random() * 8)  # the length of the fault; the test waits for no event here
                {"kill": victim.start, "freeze": victim.thaw, "cut": wire.heal}[act]()
                for caller in callers:
                    assert caller.hangs_for_s() < PROCESS_PATIENCE_S, (
                        f"{caller.name} hangs after {events[-3:]} (seed {SEED})"
                    )
                time.sleep(chance.random() * 2)
            before = {caller: caller.outcomes["ok"] for caller in callers}
            wait_until(
                lambda: all(caller.outcomes["ok"] > before[caller] for caller in callers),
                "every call is answered again",
            )
            for caller in callers:
                caller.stop()
        print(
            f"{len(events)} events: "
            + "; ".join(f"{one.name} {dict(one.outcomes)}, at most {one.longest_s:.1f} s" for one in callers)
        )
        too_much = {caller.name: caller.too_much[:5] for caller in callers if caller.too_much}
        assert not too_much, f"{too_much} (seed {SEED}, {events})"
