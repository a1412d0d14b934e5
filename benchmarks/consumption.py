"""P16 measures what pending work (timers, deliveries under way, groups) costs a broker, and how log files with pending
timers expire.

Two brokers store the same messages, but only one of them has pending work.  If both brokers cost the same, pending work
costs nothing before it is due.  There are no peers to compare with.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple
from urllib.request import urlopen

import psutil
from rocketsim_proto.records.record import Record, encode, encode_host
from rocketsim_proto.reserved import TIMER_TOPIC

from benchmarks import cluster, targets
from benchmarks.bench import Bench, must_be
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Sample
from benchmarks.figures import Missing, Series
from benchmarks.memory import anonymous_mib
from benchmarks.recovery import until_it_serves
from benchmarks.targets import Target
from broker_service.state.timer_record import waiting_record
from broker_service.store.batch import Batch
from broker_service.store.config import StoreConfig
from broker_service.store.message_store import MessageStore
from testbed.polling import wait_until
from testbed.real_rocketmq import free_port

SIZE = 100
QUEUES = 4
THREADS = 8
WORK, DUE = "work", "due"  # the topic for pops, and the topic for timers that come due during a run
# Due times that lie so far in the future that no timer comes due in a run.
FAR_MS, SPREAD_MS = 2 * 86_400_000, 40_000_000
TIMERS_AT_ONCE = 2_000
SENDS_A_SECOND = 500  # a low estimate, so that timers come due only after all of them are sent
KEYS = {"maxUnderWayPerGroup": 200_000}
TIMERS = "rocketsim_timers"
FILE = 8 << 20
EXPIRED_S = 1800.0


class Pending(NamedTuple):
    """A kind of pending work.

    `load` makes the pending work on a broker, and `check` raises unless the broker has this work.  `other` stores as
    many messages on the other broker, without the pending work.
    """

    topic: str
    what: str
    each: str
    number: int
    bytes_each: Target
    load: Callable[[OurCluster], object]
    other: Callable[[OurCluster], object]
    check: Callable[[OurCluster], None]


def run(bench: Bench) -> None:
    every = [timers(bench), deliveries(bench), groups(bench)]
    each = [[one] for one in every]
    for some in bench.plan.pick(each, each, [every]):
        with bench.section():
            brokers = {name: started(bench, f"{some[0].topic}-{name}") for name in ("without", "with")}
            for pending in some:
                compare(bench, brokers, pending)
    with bench.section():
        retention(bench)


def timers(bench: Bench) -> Pending:
    count = bench.plan.pick(1_000_000, 100_000, 1_000)
    load, other = partial(store_timers, topic="timers", count=count), partial(fill, topic="timers", count=count)

    def check(one: OurCluster) -> None:
        await_metric(one, TIMERS, count)

    return Pending("timers", f"{count:,} timers", "a timer", count, targets.TIMER_BYTES, load, other, check)


def store_timers(one: OurCluster, topic: str, count: int) -> None:
    """Stops the broker and writes timers into its store, because sending each of them with a call would take
    minutes.
    """
    one.master.stop()
    file_size = int(str(one.master.keys["mappedFileSizeCommitLog"]))
    store = MessageStore.open(StoreConfig(root=one.master.store, mapped_file_size_commit_log=file_size), now_ms())
    host, first = encode_host("127.0.0.1", one.master.port), now_ms() + FAR_MS
    try:
        for at in range(0, count, TIMERS_AT_ONCE):
            records = []
            for number in range(at, min(at + TIMERS_AT_ONCE, count)):
                ids = {"UNIQ_KEY": f"{number:032X}"}
                message = Record(topic, b"x" * SIZE, born_timestamp=now_ms(), store_host=host, properties=ids)
                records.append(encode(waiting_record(message, first + number * SPREAD_MS // count, now_ms())))
            store.append(Batch.of_frame(bytearray(b"".join(records)), len(records)), TIMER_TOPIC, now_ms(), host)
    finally:
        store.close()
    one.master.start()
    one.await_writable()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fill(one: OurCluster, topic: str, count: int) -> None:
    one.load.ask("fill", topic=topic, count=count, size=SIZE)


def deliveries(bench: Bench) -> Pending:
    topic, group, count = "deliveries", "under-way", bench.plan.pick(100_000, 20_000, 640)
    other = partial(fill, topic=topic, count=count)

    def load(one: OurCluster) -> None:
        other(one)
        one.load.ask("pop", topic=topic, group=group, address=one.master.address, count=count)

    def check(one: OurCluster) -> None:
        must_be("messages under way", sum(each.diff for each in one.admin.consumer_progress(group)), count)

    what = f"{count:,} deliveries under way"
    return Pending(topic, what, "a delivery", count, targets.DELIVERY_BYTES, load, other, check)


def groups(bench: Bench) -> Pending:
    topic, count = "groups", bench.plan.pick(10_000, 1_000, 20)

    def other(one: OurCluster) -> None:
        for number in range(QUEUES):  # one into each queue
            one.load.ask("fill", topic=topic, count=1, size=SIZE, start=number)

    def load(one: OurCluster) -> None:
        other(one)
        one.load.ask("pop_groups", topic=topic, address=one.master.address, groups=count, count=QUEUES, threads=THREADS)

    def check(one: OurCluster) -> None:
        progress = [each for each in one.admin.consumer_progress(topic=topic) if each.group.startswith("popping-")]
        must_be("groups", len({each.group for each in progress}), count)
        must_be("messages that groups have not acknowledged", sum(each.diff for each in progress), 0)

    what = f"{count:,} groups, {QUEUES} queues"
    return Pending(topic, what, "a group", count, targets.GROUP_BYTES, load, other, check)


def started(bench: Bench, title: str) -> OurCluster:
    one = bench.enter(cluster.running(bench, title, keys=KEYS | {"metricsPort": free_port()}))
    one.fill(WORK, work(bench), SIZE, QUEUES)
    one.topic(DUE, QUEUES)
    return one


def work(bench: Bench) -> int:
    return bench.plan.pick(800_000, 300_000, 60_000)


def compare(bench: Bench, brokers: Mapping[str, OurCluster], pending: Pending) -> None:
    """Compares two brokers, of which one has the pending work: their rates, their memory, and how long they start."""
    for name, one in brokers.items():
        one.topic(pending.topic, QUEUES)
        bench.doing(f"{pending.what}: storing {'them' if name == 'with' else 'as many messages'}")
        (pending.load if name == "with" else pending.other)(one)
    of_rate = {name: partial(pops, bench, one) for name, one in brokers.items()}
    rates(bench, f"pops and acks beside {pending.what}", of_rate)
    if pending.topic == "timers":
        due = {name: partial(deliver, bench, one) for name, one in brokers.items()}
        rates(bench, f"timers delivered beside {pending.what}", due)
    starts(bench, pending, brokers)


def rates(bench: Bench, what: str, contestants: Mapping[str, Contestant]) -> None:
    results = bench.contest(contestants, f"{what},")
    mine, usual = results.series("with"), results.series("without")
    bench.report(what, "msgs/s", mine, "without", usual, targets.PENDING_RATE, by_amount=True)


def pops(bench: Bench, one: OurCluster) -> Sample:
    seconds = bench.plan.pick(3, 2, 1)
    return one.load.ask(
        "pop_ack", topic=WORK, group="rate", address=one.master.address, seconds=seconds, threads=THREADS
    )


def deliver(bench: Bench, one: OurCluster) -> Sample:
    """Measures the time from the second in which timers come due until all their messages are in the topic."""
    count = bench.plan.pick(5_000, 2_500, 500)
    after_s = 2 + count // SENDS_A_SECOND
    while (seconds := delivery_s(one, count, after_s)) is None:
        after_s *= 2  # try again, because the first timers came due before the last ones were sent
    return {"messages": count, "seconds": seconds, "rate": count / seconds}


def delivery_s(one: OurCluster, count: int, after_s: int) -> float | None:
    """Returns how long the broker takes to deliver timers that come due `after_s` seconds from now.

    Returns None if sending the timers takes longer than `after_s`.
    """
    before = one.count(DUE)
    due_s = one.load.ask("timers", topic=DUE, count=count, size=SIZE, after_s=after_s, spread_s=1)["first_s"]
    left_s = due_s - time.time()
    time.sleep(max(0.0, left_s))
    wait_until(lambda: one.count(DUE) == before + count, f"{count:,} timers to be delivered")
    return time.time() - due_s if left_s > 0 else None


def starts(bench: Bench, pending: Pending, brokers: Mapping[str, OurCluster]) -> None:
    results = bench.contest(
        {name: partial(start, one, work(bench)) for name, one in brokers.items()},
        f"starts with {pending.what},",
        bench.plan.again(),  # no warm-up is needed, because each start is cold
    )
    pending.check(brokers["with"])
    name = f"a start after SIGKILL with {pending.what}"
    for key, words in (("seconds", "until it serves"), ("cpu", "CPU")):
        mine, usual = results.series("with", key), results.series("without", key)
        bench.report(f"{name}: {words}", "s", mine, "without", usual, targets.PENDING_START, by_amount=True)
    used, usual = results.series("with", "mib"), results.series("without", "mib")
    bench.report(f"{name}: memory", "MiB", used, "without", usual)
    if not isinstance(used, Missing) and not isinstance(usual, Missing):
        more = Series.of([max(0.0, used.middle - usual.middle) * 2**20 / pending.number])
        words = f"{name}: memory {pending.each}"
        bench.report(words, "bytes", more, target=pending.bytes_each, by_amount=True)


def start(one: OurCluster, count: int) -> Sample:
    one.master.kill()
    seconds = until_it_serves(one, WORK, count)
    return {"seconds": seconds, "cpu": cpu_seconds(one), "mib": anonymous_mib(one.master.pid)}


def retention(bench: Bench) -> None:
    """Measures how log files with pending timers expire: the broker appends the timers again, and then deletes the
    files.
    """
    count = bench.plan.pick(100_000, 20_000, 1_000)
    hours = ";".join(map(str, range(24)))
    keys = {"mappedFileSizeCommitLog": FILE, "deleteWhen": hours, "metricsPort": free_port()}
    one = bench.enter(cluster.running(bench, "retention", keys=keys))
    one.topic("timers", QUEUES)
    begin = log(one, "Max")
    store_timers(one, "timers", count)
    end = log(one, "Max")
    one.fill("filler", (FILE >> 12) + 1, 4096)  # so many messages that the file with the last timers is full
    filled, used, begun = log(one, "Max"), cpu_seconds(one), time.perf_counter()
    bench.doing("expiring log files")
    one.admin.update_broker_config({"fileReservedTime": "0"}, broker_addr=one.master.address)
    wait_until(lambda: log(one, "Min") > end, "the log files with timers to expire", EXPIRED_S)
    name = f"retention with {count:,} timers"
    bench.report(f"{name}: until their files are gone", "s", Series.of([time.perf_counter() - begun]))
    bench.report(f"{name}: CPU", "µs a timer", Series.of([(cpu_seconds(one) - used) / count * 1e6]))
    appended, held = ((to - since) / 1e6 for since, to in ((filled, log(one, "Max")), (begin, end)))
    bench.report(f"{name}: log appended", "MB", Series.of([appended]), "log of the timers", Series.of([held]))
    await_metric(one, TIMERS, count)


def log(one: OurCluster, which: str) -> int:
    (status,) = one.admin.broker_status(broker_addr=one.master.address).values()
    return int(status[f"commitLog{which}Offset"])


def cpu_seconds(one: OurCluster) -> float:
    used = psutil.Process(one.master.pid).cpu_times()
    return used.user + used.system


def await_metric(one: OurCluster, name: str, wanted: int) -> None:
    """Waits until the metric has this value, because a metric may show an older state of the broker."""
    wait_until(lambda: metric(one, name) == wanted, f"{name} to be {wanted}")


def metric(one: OurCluster, name: str) -> int:
    with urlopen(f"http://127.0.0.1:{one.master.keys['metricsPort']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(f"{name} "))
