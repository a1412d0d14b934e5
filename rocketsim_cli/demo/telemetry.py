"""The demo's live input: measurements of this machine, sent as messages.

`Telemetry` takes readings with psutil.  The program `python -m rocketsim_cli.demo.telemetry` sends the readings until
SIGTERM.  The program is a separate process, because Spark forks the demo's own process, and a process with gRPC
channels should not be forked.
"""

import argparse
import itertools
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from rocketsim_client import SendResult

REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured value, for example kind `cpu`, source `cpu0`, 12.5 percent."""

    kind: str
    source: str
    unit: str
    value: float

    def body(self) -> bytes:
        return json.dumps({"source": self.source, "unit": self.unit, "value": round(self.value, 3)}).encode()


class Telemetry:
    """Yields readings of every kind in turn, without end.  A rate, such as disk MB/s, is computed from two readings of
    the same counter.
    """

    def __init__(self) -> None:
        self._counters: dict[str, tuple[float, float]] = {}
        self._pids: Iterator[int] = iter(())

    def readings(self) -> Iterator[Reading]:
        for turn in itertools.count():
            cores = psutil.cpu_percent(percpu=True)
            core = turn % len(cores)
            yield Reading("cpu", f"cpu{core}", "%", cores[core])
            yield Reading("memory", "ram", "%", psutil.virtual_memory().percent)
            disk = psutil.disk_io_counters()
            yield self._rate("disk", "all disks", float(disk.read_bytes + disk.write_bytes) if disk else 0.0)
            network = psutil.net_io_counters()
            yield self._rate("network", "all interfaces", float(network.bytes_sent + network.bytes_recv))
            yield self._process()

    def _rate(self, kind: str, source: str, counted: float) -> Reading:
        now = time.monotonic()
        before, since = self._counters.get(kind, (counted, now))
        self._counters[kind] = (counted, now)
        return Reading(kind, source, "MB/s", (counted - before) / max(now - since, 1e-6) / 1e6)

    def _process(self) -> Reading:
        """Returns the memory use of one process, and at the next call that of the next process.  Processes that have
        ended are skipped.
        """
        while True:
            pid = next(self._pids, None)
            if pid is None:
                self._pids = iter(psutil.pids())
                continue
            try:
                process = psutil.Process(pid)
                return Reading("process", f"{pid} {process.name()}", "MB", process.memory_info().rss / 1e6)
            except psutil.Error:
                continue


class Tally:
    """Counts the results of sends, and writes the ids of stored messages to a file as soon as they are known."""

    def __init__(self, ids: IO[str]) -> None:
        self._lock = threading.Lock()
        self._ids = ids
        self.sent = 0
        self.unfinished = 0
        self.statuses: Counter[str] = Counter()
        self.brokers: Counter[str] = Counter()
        self.last_error = ""

    def began(self) -> None:
        with self._lock:
            self.sent += 1
            self.unfinished += 1

    def refused(self, error: Exception) -> None:
        with self._lock:
            self.unfinished -= 1
            self.statuses["FAILED"] += 1
            self.last_error = str(error)

    def ended(self, future: "Future[SendResult]") -> None:
        try:
            result = future.result()
        except Exception as error:  # Every kind of error is counted in the report.
            self.refused(error)
            return
        with self._lock:
            self.unfinished -= 1
            self.statuses[result.send_status.name] += 1
            self.brokers[result.message_queue.broker_name] += 1
            self._ids.write(result.msg_id + "\n")

    def report(self, sent_again: int) -> str:
        with self._lock:
            return json.dumps(
                {
                    "sent": self.sent,
                    "unfinished": self.unfinished,
                    "sentAgain": sent_again,
                    "statuses": dict(self.statuses),
                    "brokers": dict(self.brokers),
                    "lastError": self.last_error,
                }
            )


def send_telemetry(name_server: str, topic: str, rate: float, ids: IO[str], stop: threading.Event) -> None:
    """Sends `rate` readings per second until `stop` is set.  Prints a JSON report twice a second, and a last report
    when all sends are answered.
    """
    from rocketsim_client import Message, Producer
    from rocketsim_client.errors import RocketSimError

    tally = Tally(ids)
    producer = Producer(
        name_server=name_server,
        group="telemetry",
        # On a busy machine an answer can take longer than the usual 3 s, which must not make the demo fail.
        timeout_s=10,
        # The demo is over soon, so the producer must use a restarted master earlier than with the default of 30 s.
        poll_interval_s=3,
    )
    with producer:
        readings = Telemetry().readings()
        started = reported = time.monotonic()
        while not stop.is_set():
            now = time.monotonic()
            for _ in range(int((now - started) * rate) - tally.sent):
                reading = next(readings)
                message = Message(topic, reading.body(), tags=reading.kind, keys=reading.source.split()[0])
                tally.began()
                try:
                    producer.send_async(message).add_done_callback(tally.ended)
                except RocketSimError as error:
                    tally.refused(error)
            if now - reported >= REPORT_EVERY_S:
                reported = now
                print(tally.report(producer.stats.sent_again), flush=True)
            stop.wait(0.01)
    ids.flush()
    print(tally.report(producer.stats.sent_again), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rocketsim_cli.demo.telemetry")
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, required=True, help="messages per second")
    parser.add_argument("--ids", required=True, help="file for the ids of stored messages, one id on each line")
    arguments = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with open(arguments.ids, "w", encoding="ascii") as ids:
        send_telemetry(arguments.name_server, arguments.topic, arguments.rate, ids, stop)


if __name__ == "__main__":
    main()
