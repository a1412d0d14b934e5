"""P7 and P8 measure, in one run for RocketSim and RocketMQ, what it costs to wait for the slave or for the disk."""

from collections.abc import Mapping
from dataclasses import replace

from benchmarks import cluster, targets
from benchmarks.bench import Bench
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Results, Sample
from benchmarks.driver import python_driver
from benchmarks.figures import Missing, Series
from benchmarks.peers import rocketmq
from benchmarks.peers.rocketmq import RocketMqPeer
from benchmarks.sends import java_sends, our_sends
from benchmarks.targets import Target


def replication(bench: Bench) -> None:
    """P7 compares the rate of SYNC_MASTER with that of ASYNC_MASTER."""
    ours = {sync: our_pair(bench, sync=sync) for sync in (False, True)}
    theirs = {sync: their_pair(bench, sync=sync) for sync in (False, True)}
    words = ("SYNC_MASTER ÷ ASYNC_MASTER", "ASYNC_MASTER")
    compare(bench, ours, theirs, words, {64: targets.SYNC_64, 4096: targets.SYNC_4096}, targets.ASYNC_OWN)


def disk(bench: Bench) -> None:
    """P8 compares the rate of SYNC_FLUSH with that of ASYNC_FLUSH."""
    ours = {flush: our_pair(bench, flush=flush) for flush in (False, True)}
    theirs = {flush: their_pair(bench, flush=flush) for flush in (False, True)}
    words = ("SYNC_FLUSH ÷ ASYNC_FLUSH", "ASYNC_FLUSH")
    compare(bench, ours, theirs, words, {64: targets.FLUSH_64, 4096: targets.FLUSH_4096})
    raw = bench.enter(python_driver("raw writes", "benchmarks.raw", bench.folder / "raw.log"))
    megabytes = bench.plan.pick(256, 64, 4)
    results = bench.contest(
        {
            "pwrite 1 MiB": lambda: raw.ask("write", folder=bench.folder, megabytes=megabytes, block=1 << 20, sync=0),
            "pwrite 1 MiB + fdatasync": lambda: raw.ask(
                "write", folder=bench.folder, megabytes=megabytes, block=1 << 20, sync=1
            ),
            "pwrite 64 KiB + fdatasync": lambda: raw.ask(
                "write", folder=bench.folder, megabytes=megabytes, block=64 << 10, sync=1
            ),
        },
        "raw",
    )
    for name in ("pwrite 1 MiB", "pwrite 1 MiB + fdatasync", "pwrite 64 KiB + fdatasync"):
        series = results.series(name, "bytes_rate")
        if isinstance(series, Series):
            bench.report(f"raw {name}", "MB/s", Series.of(value / 1e6 for value in series.values))


def our_pair(bench: Bench, *, sync: bool = False, flush: bool = False) -> OurCluster:
    title = f"ours-{'sync' if sync else 'async'}-{'flush' if flush else 'cache'}"
    module = "benchmarks.counting_broker" if flush else "broker_service"
    return bench.enter(cluster.running(bench, title, pair=True, module=module, keys=cluster.modes(sync, flush)))


def their_pair(bench: Bench, *, sync: bool = False, flush: bool = False) -> RocketMqPeer | Missing:
    folder = bench.folder / f"rocketmq-{'sync' if sync else 'async'}-{'flush' if flush else 'cache'}"
    return bench.peer("RocketMQ", lambda: bench.enter(rocketmq.running(folder, pair=True, sync=sync, flush=flush)))


def compare(
    bench: Bench,
    ours: Mapping[bool, OurCluster],
    theirs: Mapping[bool, RocketMqPeer | Missing],
    words: tuple[str, str],
    wanted: Mapping[int, Target],
    wanted_usual: Mapping[int, Target] | None = None,
) -> None:
    """Compares the rates of two clusters, of which the one under `True` waits for the slave or the disk."""
    # Many short rounds measure a ratio near 1 better than few long ones.
    duration = bench.plan.pick(2, 1, 1)
    plan = replace(bench.plan, rounds=bench.plan.pick(8, 3, 1))
    what, usual = words
    for size in bench.plan.sizes:
        every: dict[str, Contestant | Missing] = {}
        for waits in (False, True):
            topic = ours[waits].topic(f"ratio{size}")
            given = {"size": size, "seconds": duration}
            every[f"64 {waits}"] = counted(ours[waits], our_sends(ours[waits], "send", topic, threads=64, **given))
            every[f"4096 {waits}"] = counted(
                ours[waits], our_sends(ours[waits], "send_async", topic, window=4096, **given)
            )
            every[f"Java {waits}"] = java_sends(bench, theirs[waits], topic, threads=64, **given)
        results = bench.contest(every, f"{size} B,", plan)
        plan = plan.again()
        reference = ratio(results, "Java")
        for window, target in wanted.items():
            how = "64 threads" if window == 64 else "send_async"
            name = f"{size} B, {window:,} in flight ({how})"
            bench.report(
                f"{what}, {name}", "", ratio(results, str(window)), "RocketMQ's ratio, 64 threads", reference, target
            )
            bench.report(
                f"{usual}, {name}",
                "msgs/s",
                results.series(f"{window} False"),
                "RocketMQ's, 64 threads",
                results.series("Java False"),
                (wanted_usual or {}).get(window),
            )
            if "FLUSH" in what:
                bench.report(
                    f"messages a fdatasync, {name}",
                    "",
                    results.series(f"{window} True", "a_sync"),
                    target=targets.MESSAGES_PER_SYNC,
                )


def ratio(results: Results, name: str) -> Series | Missing:
    waits, usual = results.series(f"{name} True"), results.series(f"{name} False")
    if isinstance(waits, Missing):
        return waits
    return usual if isinstance(usual, Missing) else waits.over(usual)


def counted(ours: OurCluster, contestant: Contestant) -> Contestant:
    """Adds `a_sync` to each sample, which is the number of messages that the master has stored per fdatasync."""
    if ours.master.module == "broker_service":
        return contestant

    def run() -> Sample:
        before = ours.syncs()
        sample = contestant()
        return {**sample, "a_sync": sample["messages"] / max(1, ours.syncs() - before)}

    return run
