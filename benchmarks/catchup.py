"""P10 measures how fast an empty slave copies the complete log, and how far a slave is behind its master at half
load.
"""

import shutil
import subprocess
import time
from collections import deque

from benchmarks import cluster, targets
from benchmarks.bench import Bench, Unavailable, WrongResult
from benchmarks.cluster import BROKER, SIZES, OurCluster, verify_store
from benchmarks.contest import Contestant, Sample
from benchmarks.figures import Missing, percentile
from benchmarks.peers import rocketmq
from benchmarks.sampler import Sampler
from benchmarks.sends import java_rate
from testbed.processes import Processes

LOOK_S = 0.002
LIMIT_S = 600.0
BODY = 1024


def run(bench: Bench) -> None:
    count = bench.plan.pick(1_750_000, 250_000, 20_000)  # 2 GiB of log
    with bench.section():
        results = bench.contest(
            {"ours": ours(bench, count), "RocketMQ": bench.peer("RocketMQ", lambda: theirs(bench, count))},
            plan=bench.plan.again(),  # no warm-up is needed, because each run starts an empty slave
        )
    bench.report(
        f"catch-up of an empty slave, {count:,} x 1 KiB",
        "MB/s",
        results.series("ours"),
        "RocketMQ's slave that has the log's beginning",
        results.series("RocketMQ"),
        targets.CATCHUP,
        by_amount=True,
    )
    with bench.section():
        lag(bench)


# --- catch-up -------------------------------------------------------------------------------------------------------


def ours(bench: Bench, count: int) -> Contestant:
    one = bench.enter(cluster.running(bench, "master"))
    one.fill("catchup", count, BODY)
    processes = bench.enter(Processes(bench.folder / "slaves"))
    slave = processes.broker(BROKER, 1, one.name_server, **SIZES)

    def catch_up() -> Sample:
        """Measures the time from when the master first lists the slave until the slave has acknowledged everything."""
        slave.launch()
        first: tuple[float, int] | None = None
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            (status,) = one.admin.ha_status(broker_addr=one.master.address)
            now = time.perf_counter()
            if not slave.is_running():
                raise WrongResult(f"the slave ended: {slave.log()[-500:]}")
            for member in status.slaves:
                first = first or (now, member.ack_offset)
                if member.diff_bytes == 0:
                    copied = member.ack_offset - first[1]
                    sample = {"rate": copied / (now - first[0]) / 1e6, "bytes": copied}
                    slave.stop()
                    verify_store(slave.store)
                    shutil.rmtree(slave.store)
                    return sample
            time.sleep(LOOK_S)
        raise TimeoutError(f"the slave did not catch up in {LIMIT_S} s")

    return catch_up


def theirs(bench: Bench, count: int) -> Contestant | Missing:
    """Measures RocketMQ's slave.  An empty slave of RocketMQ copies only the newest file, so each run starts with a
    slave that already has 1,000 messages.
    """
    folder = bench.folder / "rocketmq"
    peer = bench.peer("RocketMQ", lambda: bench.enter(rocketmq.running(folder, pair=True)))
    if isinstance(peer, Missing):
        return peer
    slave = peer.slave
    assert slave is not None
    store, beginning = folder / "slave-store", folder / "beginning"
    peer.topic("catchup")
    peer.ask("fill", topic="catchup", size=BODY, count=1000)
    peer.await_slave()
    slave.stop()
    store.rename(beginning)
    peer.ask("fill", topic="catchup", size=BODY, count=count)

    def catch_up() -> Sample:
        # Sparse files must stay sparse, because writing their zeros to the disk would disturb the measurement.
        subprocess.run(["cp", "-a", "--sparse=always", beginning, store], check=True)
        with peer.awake():
            end = peer.ask("ha", broker=peer.address)["end"]
            slave.start()
            answer = peer.ask("await", broker=peer.address, offset=end)
            slave.kill()  # its store is not needed any more
        shutil.rmtree(store)
        # Our slave copies the whole log, so a slave that copies only a part cannot be compared.
        if answer["bytes"] < end / 2:
            raise Unavailable(
                f"RocketMQ's slave copied only {answer['bytes']:,} of {end:,} bytes while it was measured"
            )
        return {"rate": answer["bytes"] / answer["seconds"] / 1e6, "bytes": answer["bytes"]}

    return catch_up


# --- lag ------------------------------------------------------------------------------------------------------------


def lag(bench: Bench) -> None:
    """Measures how far the slave is behind at half of one sending process's full rate, with `send_async` or RocketMQ's
    64 threads.
    """
    every: dict[str, Contestant | Missing] = {
        "ours": our_lag(bench),
        "RocketMQ": bench.peer("RocketMQ", lambda: their_lag(bench)),
    }
    results = bench.contest(
        every, "lag,", bench.plan.again()
    )  # both contestants are already warm, because their full load was measured before
    bench.report(
        f"replication lag at half load, 1 KiB, a look every {LOOK_S * 1000:g} ms: p99",
        "ms",
        results.series("ours", "p99_ms"),
        "RocketMQ's pair at half of its own load",
        results.series("RocketMQ", "p99_ms"),
        targets.LAG,
    )


def our_lag(bench: Bench) -> Contestant:
    one = bench.enter(cluster.running(bench, "pair", pair=True))
    topic, duration = one.topic("lag"), lag_seconds(bench)
    full = max(
        one.load.ask("send_async", topic=topic, size=BODY, seconds=duration, window=4096)["rate"] for _ in range(2)
    )
    bench.note(f"half load, ours: {full / 2:,.0f} msgs/s")

    def half() -> Sample:
        with Lag(one) as watch:
            answer = one.load.ask("paced", topic=topic, size=BODY, rate=round(full / 2), seconds=duration)
        return {**answer, "p99_ms": percentile(watch.lags_ms, 0.99)}

    return half


def their_lag(bench: Bench) -> Contestant | Missing:
    folder = bench.folder / "rocketmq-pair"
    peer = bench.peer("RocketMQ", lambda: bench.enter(rocketmq.running(folder, pair=True)))
    if isinstance(peer, Missing):
        return peer
    duration = lag_seconds(bench)
    full = java_rate(bench, peer, "lag", size=BODY, threads=64)
    bench.note(f"half load, RocketMQ's: {full / 2:,.0f} msgs/s")
    given = {"size": BODY, "rate": round(full / 2), "seconds": duration, "threads": 64}
    return lambda: peer.ask("lag", topic="lag", broker=peer.address, **given)


def lag_seconds(bench: Bench) -> int:
    return bench.plan.pick(6, 2, 1)


class Lag(Sampler):
    """Measures the lag periodically: the time in seconds for which the slave has lacked bytes of the master's log.

    The lag is measured from the last sample whose log end the slave has reached, so it is never too small.
    """

    def __init__(self, one: OurCluster) -> None:
        super().__init__(LOOK_S)
        self._one = one
        # Samples (time, log end) whose log end the slave has not reached yet.
        self._behind: deque[tuple[float, int]] = deque()
        self._covered = time.perf_counter()
        self.lags_ms: list[float] = []

    def sample(self) -> None:
        (status,) = self._one.admin.ha_status(broker_addr=self._one.master.address)
        now = time.perf_counter()
        acked = max((slave.ack_offset for slave in status.slaves), default=0)
        self._behind.append((now, status.commit_log_max_offset))
        while self._behind and self._behind[0][1] <= acked:
            self._covered = self._behind.popleft()[0]
        self.lags_ms.append((now - self._covered) * 1000 if self._behind else 0.0)
