"""`rocketsim demo`: sends live telemetry through two broker pairs into Spark, and kills a master meanwhile.

Spark forks, so it starts before this process opens its first gRPC channel.  The servers and the producer, which use
gRPC from the start, are separate processes.
"""

import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rocketsim_proto.extras import DISTRIBUTION, need

from rocketsim_cli.console import announcement, console_for
from rocketsim_cli.end_signal import EndSignal
from rocketsim_cli.local_cluster import LAPTOP, LocalCluster, ServerProcess, pair_properties
from rocketsim_cli.tables import console, show_json
from rocketsim_cli.trouble import Trouble

if TYPE_CHECKING:
    from rocketsim_cli.demo.report import DemoReport
    from rocketsim_cli.demo.screen import DemoState

TOPIC = "telemetry"
GROUP = "telemetry-windows"
QUEUES_PER_BROKER = 4
# Only a checkout of the repository has these configuration files.  An installed demo uses `pair_properties` instead.
CONF = Path(__file__).resolve().parents[2] / "conf" / "2m-2s-sync"
PHASE_S = 25.0
# Time limits, long enough for a busy machine: the first phase ends as soon as the query has read a message, and the
# last phase as soon as all messages are read and committed.
START_S = 180.0
DRAIN_S = 180.0
LOOK_EVERY_S = 0.25
SHOWN_KEYS = ("brokerRole", "flushDiskType", "slaveReadEnable")
ASK_EVERY_S = 1.0


def demo(
    rate: Annotated[float, typer.Option(help="Messages per second.", min=1)] = 300.0,
    seconds: Annotated[float, typer.Option(help="Length of each of the three phases.", min=5)] = PHASE_S,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep stores and logs here. Default: a folder that is deleted at the end."),
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", help="Write what happened, with charts, into this HTML file.", dir_okay=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and progress on standard error.")
    ] = False,
) -> None:
    """Run two broker pairs, live telemetry and Spark, kill a master, and report after about two minutes."""
    need("spark")
    from rocketsim_cli.demo.screen import open_screen, show_report

    if report_file is not None:
        _write(report_file, "")  # an unwritable file fails now, not after two minutes
    end_signal = EndSignal()
    end_signal.listen()
    out = console(stderr=as_json)
    screen = open_screen(out)
    try:
        with ExitStack() as parts:
            if folder is None:
                folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="rocketsim-demo-")))
            demo = Demo(folder.absolute(), rate, seconds, screen.event, screen.show, parts, end_signal)
            report = demo.run()
    finally:
        screen.close()
    if report_file is not None:
        from rocketsim_cli.demo.page import page

        _write(report_file, page(report, demo.history.moments, demo.history.events, _facts(rate, seconds)))
        out.print(f"report in {report_file}", markup=False)
    if as_json:
        show_json(report.as_json())
    else:
        show_report(out, report)
    raise typer.Exit(0 if report.ok else 1)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Trouble(f"--report {file}: {error.strerror}; name a file in a folder that may be written") from None


def _facts(rate: float, phase_s: float) -> dict[str, str]:
    """Returns versions and configuration, for the report."""
    from importlib import metadata

    from rocketsim_proto.records import kernels

    shared = [properties for properties in broker_files() if properties["brokerId"] == "0"]
    return {
        "RocketSim": f"{metadata.version(DISTRIBUTION)} (recordKernels={kernels.in_use()})",
        "PySpark": metadata.version("pyspark"),
        "Python": platform.python_version(),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "time": f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}",
        "messages per second": f"{rate:g}",
        "seconds of each phase": f"{phase_s:g}",
        "topic and group": f"{TOPIC} with {QUEUES_PER_BROKER} queues on each master, {GROUP}",
        **{
            f"master of {keys['brokerName']}": ", ".join(f"{key}={keys[key]}" for key in SHOWN_KEYS if key in keys)
            for keys in shared
        },
    }


def broker_files() -> list[dict[str, str]]:
    """Returns the configuration of two synchronous pairs: the files in conf/, changed to small store files and free
    ports.
    """
    import javaproperties

    files = CONF.glob("broker-*.properties")
    here = {**LAPTOP, "listenPort": "0"}
    given = [{**javaproperties.loads(file.read_text(encoding="utf-8")), **here} for file in files]
    if not given:
        given = [properties for pair in range(2) for properties in pair_properties(pair, sync=True)]
    return sorted(given, key=lambda properties: (properties["brokerName"], properties["brokerId"]))


class Demo:
    """Runs the demo.  `parts` is an ExitStack that ends everything which the demo has started, in reverse order, also
    after an interrupt.
    """

    def __init__(
        self,
        folder: Path,
        rate: float,
        phase_s: float,
        tell: Callable[[str], None],
        show: "Callable[[DemoState], None]",
        parts: ExitStack,
        end_signal: EndSignal,
    ) -> None:
        from rocketsim_cli.demo.history import History

        self.history = History()
        self._folder = folder
        self._rate = rate
        self._phase_s = phase_s
        self._say = tell
        self._show = show
        self._parts = parts
        self._end_signal = end_signal
        self._started = time.monotonic()
        self._asked = 0.0

    def run(self) -> "DemoReport":
        self._start()
        self._watch("the query starts", START_S, until=lambda: self._query.read() > 0)
        self._watch("both pairs serve", self._phase_s)
        victim = self._cluster.masters[0]
        self._outage(victim)
        self._watch("both pairs serve again", self._phase_s)
        return self._account(victim)

    def _tell(self, text: str, *, is_marked: bool = False) -> None:
        """Shows an event and keeps it for the report. If `is_marked`, the charts of the report show the event, too."""
        self._say(text)
        self.history.note(text, is_marked=is_marked)

    def _start(self) -> None:
        from rocketsim_cli.demo.offsets import DemoOffsets
        from rocketsim_cli.demo.producer import ProducerProcess
        from rocketsim_cli.demo.query import TelemetryQuery, start_spark
        from rocketsim_cli.readiness import open_admin

        self._tell("starting a name server, two broker pairs and Spark")
        self._cluster = self._parts.enter_context(
            LocalCluster(self._folder, broker_files(), sleep=self._end_signal.sleep)
        )
        servers = Starting(lambda: self._cluster.start(self._tell))
        # Waits for the thread, so that it starts no server while others are being stopped.
        self._parts.callback(servers.join)
        spark = start_spark(self._folder)
        self._parts.callback(spark.stop)
        self._end_signal.listen()  # Spark has replaced the signal handlers, so they are set again
        self._end_signal.check()
        servers.wait()
        url = self._parts.enter_context(console_for(self._cluster))
        self._say(announcement(url))
        admin = self._parts.enter_context(open_admin(self._cluster))
        for master in self._cluster.masters:
            admin.update_topic(
                TOPIC,
                read_queue_nums=QUEUES_PER_BROKER,
                write_queue_nums=QUEUES_PER_BROKER,
                broker_addr=master.address,
            )
        self._offsets = self._parts.enter_context(DemoOffsets(self._cluster.brokers, GROUP, TOPIC))
        name_server = self._cluster.name_server
        self._producer = self._parts.enter_context(ProducerProcess(name_server, TOPIC, self._rate, self._folder))
        self._query = TelemetryQuery(spark, name_server, TOPIC, GROUP, self._folder / "checkpoint")
        self._parts.callback(self._query.stop)
        self._tell(f"Spark is up; {self._rate:.0f} readings a second are on their way", is_marked=True)

    def _outage(self, victim: ServerProcess) -> None:
        """Kills a master and starts it again.  While the master is away, only its slave serves messages."""
        self._cluster.kill(victim)
        self._tell(f"SIGKILL: {victim.name}, the master on {victim.address}, is gone", is_marked=True)
        killed_s = self.history.now_s()
        served_before = self._query.served()[victim.broker_name, 1]
        committed_before = self._offsets.committed_on_slave(victim.broker_name)
        phase = f"{victim.name} is down"
        self._watch(phase, self._phase_s)

        def handed_over() -> bool:
            """Returns True once the slave has served messages and taken commits.  On a busy machine one micro-batch may
            take longer than the phase.
            """
            served = self._query.served()[victim.broker_name, 1]
            return served > served_before and self._offsets.committed_on_slave(victim.broker_name) > committed_before

        # The user may have started the master in the console.
        self._watch(phase, START_S, until=lambda: victim.is_running() or handed_over())
        served = self._query.served()[victim.broker_name, 1] - served_before
        self._handed_over = self._offsets.committed_on_slave(victim.broker_name) - committed_before
        self._tell(f"meanwhile its slave served {served} messages, and {self._handed_over} were committed to the slave")
        self._cluster.start_again(victim)
        self._tell(f"{victim.name} is back on {victim.address}", is_marked=True)
        self._outage_s = killed_s, self.history.now_s()

    def _account(self, victim: ServerProcess) -> "DemoReport":
        from rocketsim_cli.demo.report import DemoReport

        for broker in self._cluster.brokers:
            self._cluster.start_again(broker)  # a user may have killed this broker in the console
        sent = self._producer.finish()
        self._tell("the producer has stopped; the query reads what is left")
        acknowledged = self._producer.acknowledged_ids()

        def drained() -> bool:
            return acknowledged <= set(self._query.ids()) and self._offsets.are_at_the_end()

        in_time = self._watch("draining", DRAIN_S, until=drained)
        self._note_moved_reads(victim)
        if in_time:
            self.history.note("everything is read and committed on master and slave", is_marked=True)
        return DemoReport.make(
            sent=sent.sent,
            statuses=sent.statuses,
            sent_again=sent.sent_again,
            last_error=sent.last_error,
            read=self._query.read(),
            acknowledged_ids=acknowledged,
            counted_ids=self._query.ids(),
            progress=self._offsets.progress(),
            served=self._query.served(),
            killed_broker=victim.broker_name,
            committed_to_slave=self._handed_over,
            trouble=() if in_time else [f"not everything was read and committed within {DRAIN_S:.0f} s"],
        )

    def _note_moved_reads(self, victim: ServerProcess) -> None:
        from rocketsim_cli.demo.history import Event, first_reads

        name = victim.broker_name
        texts = f"reads of {name} move to its slave", f"reads of {name} are back at its master"
        for broker_id, since_s, text in zip((1, 0), self._outage_s, texts, strict=True):
            at_s = first_reads(self.history.moments, (name, broker_id), since_s)
            if at_s is not None:
                self.history.events.append(Event(at_s, text, is_marked=True))

    def _watch(self, phase: str, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Shows the progress. Returns True as soon as `until` holds, or False after `seconds`."""
        from rocketsim_cli.demo.query import summarize
        from rocketsim_cli.demo.screen import DemoState

        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if failure := self._query.failure():
                raise Trouble(f"the query has failed: {failure}; with --dir DIR, DIR/spark.log says more")
            if failure := self._producer.failure():
                raise Trouble(f"the producer has failed: {failure}")
            if time.monotonic() - self._asked > ASK_EVERY_S:
                self._asked = time.monotonic()
                self._offsets.ask()
            state = DemoState(
                elapsed_s=time.monotonic() - self._started,
                phase=phase,
                servers=[(server.name, server.address, server.is_running()) for server in self._cluster.brokers],
                producer=self._producer.newest(),
                read=self._query.read(),
                summaries=summarize(self._query.rows()),
                served=self._query.served(),
                progress=self._offsets.progress(),
            )
            self._show(state)
            self.history.record(state)
            if until():
                return True
            self._end_signal.sleep(LOOK_EVERY_S)
        return False


class Starting:
    """Runs a slow call in a thread.  `wait` waits until the call has ended, and raises the call's error."""

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._start()
        except BaseException as error:
            self._error = error

    def join(self) -> None:
        self._thread.join()

    def wait(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error
