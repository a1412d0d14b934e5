"""P11 measures the time from a broker's restart with a full log until it serves clients, after three kinds of stop."""

import shutil
import time

from benchmarks import cluster, targets
from benchmarks.bench import Bench, Unavailable, must_be
from benchmarks.cluster import BROKER, OurCluster
from benchmarks.contest import Contestant, Sample
from benchmarks.figures import Missing
from benchmarks.peers import rocketmq
from rocketsim_client import MessageQueue, RocketSimError

BODY = 1024
LOOK_S = 0.005
LIMIT_S = 600.0
TOPIC = "recovery"
ENDS = {
    "stop": "after SIGTERM",
    "kill": "after SIGKILL",
    "scan": "after SIGKILL, without checkpoint",
}


def run(bench: Bench) -> None:
    count = bench.plan.pick(1_750_000, 400_000, 20_000)  # 2 GiB of log
    one = bench.enter(cluster.running(bench, "master"))
    one.fill(TOPIC, count, BODY)
    # The log's end is used, because log files are preallocated and their sizes do not show the amount of data.
    (status,) = one.admin.ha_status(broker_addr=one.master.address)
    size = status.commit_log_max_offset
    every: dict[str, Contestant | Missing] = {f"ours {how}": ours(one, how, count) for how in ENDS}
    every["ours rebuild"] = rebuild(one, count, size)
    peers = bench.peer("RocketMQ", lambda: theirs(bench, count))
    every |= peers_missing(peers) if isinstance(peers, Missing) else peers
    results = bench.contest(every, plan=bench.plan.again())  # each restart is cold
    for how, words in ENDS.items():
        bench.report(
            f"restart with {size / 2**30:.1f} GiB, {words}: until it serves",
            "s",
            results.series(f"ours {how}", "seconds"),
            "RocketMQ",
            results.series(f"RocketMQ {how}", "seconds"),
            targets.RESTART_WITHOUT_CHECKPOINT if how == "scan" else targets.RESTART,
            by_amount=True,
        )
    beside = "RocketMQ rebuild" in every
    bench.report(
        "consume queues deleted: log read to make them again, with the start",
        "MB/s",
        results.series("ours rebuild"),
        "RocketMQ" if beside else "",
        results.series("RocketMQ rebuild") if beside else None,
        targets.REBUILD,
        by_amount=True,
    )


def ours(one: OurCluster, how: str, count: int) -> Contestant:
    def restart() -> Sample:
        if how == "stop":
            one.master.stop()
        else:
            one.master.kill()
        if how == "scan":
            (one.master.store / "checkpoint").unlink()
            (one.master.store / "rocketsim" / "flushed").unlink(missing_ok=True)
        return {"seconds": until_it_serves(one, TOPIC, count)}

    return restart


def rebuild(one: OurCluster, count: int, size: int) -> Contestant:
    def run() -> Sample:
        one.master.stop()
        shutil.rmtree(one.master.store / "consumequeue")
        return {"rate": size / until_it_serves(one, TOPIC, count) / 1e6}

    return run


def until_it_serves(one: OurCluster, topic: str, count: int) -> float:
    """Starts a broker that was ended, and returns the seconds until it tells a client the ends of a topic's queues."""
    begun = time.perf_counter()
    one.master.launch()
    queues = [MessageQueue(topic, BROKER, number) for number in range(4)]
    reads = one.admin.cluster.transport.reads
    address = f"127.0.0.1:{one.master.keys['listenPort']}"
    while time.perf_counter() < begun + LIMIT_S:
        if one.master.address_path.exists():
            try:
                bounds = reads.queue_bounds(address, topic, [queue.queue_id for queue in queues], 2.0)
                seconds = time.perf_counter() - begun
                must_be("messages after a restart", sum(found.max_offset for found in bounds.values()), count)
                one.await_writable()
                return seconds
            except RocketSimError:
                pass
        time.sleep(LOOK_S)
    raise TimeoutError(f"the broker does not serve after {LIMIT_S} s: {one.master.log()[-1000:]}")


def peers_missing(why: Missing) -> dict[str, Contestant | Missing]:
    return {f"RocketMQ {how}": why for how in (*ENDS, "rebuild")}


def theirs(bench: Bench, count: int) -> dict[str, Contestant | Missing]:
    folder = bench.folder / "rocketmq"
    peer = bench.peer("RocketMQ", lambda: bench.enter(rocketmq.running(folder)))
    if isinstance(peer, Missing):
        return peers_missing(peer)
    peer.topic(TOPIC)
    peer.ask("fill", topic=TOPIC, size=BODY, count=count)

    def restart(how: str) -> Sample:
        with peer.awake():
            if how == "stop":
                peer.master.stop()
            else:
                peer.master.kill()
            if how == "scan":
                (folder / "store" / "checkpoint").unlink()
            return {"seconds": peer.master.start()}

    size = peer.ask("ha", broker=peer.address)["end"]

    def made_again() -> Sample:
        with peer.awake():
            peer.master.stop()
            shutil.rmtree(folder / "store" / "consumequeue")
            begun = time.perf_counter()
            peer.master.start()
            found = peer.ask("count", topic=TOPIC, until=count)["messages"]
            if found != count:
                raise Unavailable(f"RocketMQ has {found} messages of {count} after a restart")
            return {"rate": size / (time.perf_counter() - begun) / 1e6}

    every: dict[str, Contestant | Missing] = {
        f"RocketMQ {how}": lambda how=how: restart(how)  # type: ignore[misc]
        for how in ENDS
    }
    # The target of a rebuild is an absolute rate, so a quick run leaves out RocketMQ's rebuild, which takes 90 s.
    if bench.plan.pick(True, False, True):
        every["RocketMQ rebuild"] = made_again
    return every
