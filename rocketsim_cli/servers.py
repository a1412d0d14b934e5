"""`rocketsim namesrv`, `rocketsim broker` and `rocketsim up`: run servers."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from rocketsim_cli import cluster_directory
from rocketsim_cli.background import Background
from rocketsim_cli.cluster_directory import ClusterDirectory
from rocketsim_cli.console import announcement, console_for
from rocketsim_cli.end_signal import EndSignal
from rocketsim_cli.local_cluster import LocalCluster, free_port, pair_properties, remoting_port, starting_alone
from rocketsim_cli.tables import console
from rocketsim_cli.trouble import Trouble

ConfigFile = Annotated[
    Path, typer.Option("-c", "--config", help="A .properties file with RocketMQ's keys.", exists=True, dir_okay=False)
]

# The usual ports of RocketMQ's name server, brokers and proxy.
NAMESRV_PORT = 9876
BROKER_PORT = 10911
GRPC_PORT = 8081
# The remoting port of the first master, above the ports of 26 pairs.  It is the same at every start, because messages
# name the remoting port at which they were stored, and RocketMQ's tools ask for them there.
REMOTING_PORT = 10991


def namesrv(config: ConfigFile) -> None:
    """Run a name server in the foreground."""
    _serve("namesrv", config)


def broker(config: ConfigFile) -> None:
    """Run one broker, a master or a slave, in the foreground."""
    _serve("broker", config)


def _serve(command: str, config: Path) -> None:
    from broker_service.__main__ import main as serve

    raise typer.Exit(serve([command, "-c", str(config)]))


def up(
    pairs: Annotated[int, typer.Option(help="How many master/slave pairs to start.", min=1, max=26)] = 1,
    sync: Annotated[
        bool, typer.Option("--sync/--async", help="Start each master as SYNC_MASTER or as ASYNC_MASTER.")
    ] = True,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep stores and logs here. Default: a folder that is deleted at the end."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when the cluster is ready; `rocketsim down` ends it.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            help=f"The name server's port.  Default: {NAMESRV_PORT} if it is free.  0: any.", min=0, max=65535
        ),
    ] = None,
    topic: Annotated[str, typer.Option(help="The topic to create at the start.")] = "TopicTest",
    remoting: Annotated[
        bool, typer.Option("--remoting", help="Open ports for RocketMQ 4's clients, mqadmin and RocketMQ's dashboard.")
    ] = False,
) -> None:
    """Run a name server and broker pairs on this machine until Ctrl-C, or in the background."""
    with ExitStack() as parts:
        directory = _directory(parts, folder, detach)
        parts.enter_context(directory.locked())
        directory.wait_for_former_servers()
        if detach and folder is None:
            directory.clear()  # deletes the stores of a cluster that was killed
        background = Background(directory.log) if detach else None
        say = console().print
        end_signal = EndSignal()
        end_signal.listen()
        parts.callback(directory.forget)
        directory.save(cluster_directory.starting())
        try:
            with starting_alone(end_signal.sleep):
                namesrv_remoting_port = name_server_remoting_port(port) if remoting else -1
                name_server_port = _name_server_port(port, namesrv_remoting_port)
                grpc_ports = [free_port(GRPC_PORT + pair) for pair in range(pairs)]
                brokers = [
                    properties
                    for pair, grpc_port in enumerate(grpc_ports)
                    for properties in pair_properties(
                        pair,
                        sync=sync,
                        ports=(free_port(BROKER_PORT + 2 * pair), free_port(BROKER_PORT + 2 * pair + 1)),
                        grpc_port=grpc_port,
                        remoting_ports=_remoting_ports(pair) if remoting else (-1, -1),
                    )
                ]
                cluster = parts.enter_context(
                    LocalCluster(directory.folder, brokers, namesrv_remoting_port, name_server_port, end_signal.sleep)
                )
                cluster.start(say)
            _make_topic(cluster, topic)
            url = parts.enter_context(console_for(cluster))
            say(f"\n{announcement(url)}", markup=False)
            end = f"`{directory.command('down')}`" if detach else "Ctrl-C"
            say(_welcome(cluster, topic, grpc_ports[0], end), markup=False)
            if remoting:
                say(_welcome_of_remoting(f"127.0.0.1:{namesrv_remoting_port}"), markup=False)
            directory.save(cluster_directory.of(cluster, url))
            if background is not None:
                background.tell_ready()
            _watch(cluster, say, lambda: directory.save(cluster_directory.of(cluster, url)))
        except KeyboardInterrupt:
            say("stopping …")


def _directory(parts: ExitStack, folder: Path | None, detach: bool) -> ClusterDirectory:
    if folder is not None:
        return ClusterDirectory(folder)
    if detach:
        return ClusterDirectory.default()
    return ClusterDirectory(Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="rocketsim-"))))


def _remoting_ports(pair: int) -> tuple[int, int]:
    """Returns the remoting ports of a pair's master and slave.  The two ports below them are for their VIP channels."""
    master = REMOTING_PORT + 4 * pair
    return remoting_port(master), remoting_port(master + 1)


def name_server_remoting_port(port: int | None) -> int:
    """Returns the port on which the name server serves the remoting protocol, which is not `port`, the one that the
    user has chosen for gRPC.
    """
    found = free_port(NAMESRV_PORT)
    return found if found != port else free_port(found + 1)


def _name_server_port(wanted: int | None, remoting_port: int) -> int:
    """Returns the port on which the name server serves gRPC.  With `--remoting`, the usual port is kept for the
    remoting protocol, because RocketMQ's tools expect it there, and gRPC gets the next port.
    """
    if wanted is None:
        return free_port(NAMESRV_PORT + (remoting_port == NAMESRV_PORT))
    if wanted and free_port(wanted) != wanted:
        raise Trouble(f"--port {wanted}: another process listens there; name another port, or 0 for any free one")
    return wanted


def _watch(cluster: LocalCluster, say: Callable[..., None], save: Callable[[], None]) -> NoReturn:
    """Tells the user once when a server has ended, and rewrites `cluster.json` when the console has started a broker
    again.

    `cluster.json` is written only while all servers run, because it has to name running processes.
    """
    ended: set[str] = set()
    saved = [server.pid for server in cluster.servers]
    while True:
        pids = [server.pid for server in cluster.servers]
        if pids != saved and all(server.is_running() for server in cluster.servers):
            save()
            saved = pids
        for server in cluster.servers:
            if server.is_running():
                ended.discard(server.name)
            elif server.name not in ended:
                ended.add(server.name)
                say(
                    f"{server.name} has ended with status {server.exit_status()}: {server.last_words()} "
                    f"(log: {server.log_path})",
                    markup=False,
                )
        cluster.sleep(0.5)


def _make_topic(cluster: LocalCluster, topic: str) -> None:
    from rocketsim_cli.readiness import open_admin

    with open_admin(cluster) as admin:
        for server in cluster.masters:
            admin.update_topic(topic, read_queue_nums=4, write_queue_nums=4, broker_addr=server.address)


def _welcome(cluster: LocalCluster, topic: str, grpc_port: int, end: str) -> str:
    name_server = cluster.name_server
    return f"""
The cluster is up: name server {name_server}, logs and stores in {cluster.folder}. {end} ends it.

  export NAMESRV_ADDR={name_server}      # in place of -n
  rocketsim produce -n {name_server} -t {topic} hello
  rocketsim consume -n {name_server} -t {topic} -g people
  rocketsim admin clusterList -n {name_server}

RocketMQ 5's clients: endpoints 127.0.0.1:{grpc_port} (docs/clients.md).  Ordered messages need a FIFO topic:

  rocketsim admin updateTopic -n {name_server} -c DefaultCluster -t Orders -a +message.type=FIFO

Paste into pyspark, or a script:

{snippet(name_server, topic)}"""


def _welcome_of_remoting(name_server: str) -> str:
    return f"""
RocketMQ 4's clients, mqadmin and RocketMQ's dashboard: name server {name_server} (docs/clients.md)

  mqadmin clusterList -n {name_server}
"""


def snippet(name_server: str, topic: str) -> str:
    """Returns PySpark code that a user can paste and run while the cluster runs."""
    return f"""import os, sys
from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need this Python, too
spark = SparkSession.builder.master("local[2]").getOrCreate()
messages = (
    spark.readStream.format("rocketsim")
    .option("nameServer", "{name_server}")
    .option("subscribe", "{topic}")
    .option("group", "spark")
    .option("startingOffsets", "earliest")
    .load()
)
texts = messages.selectExpr("brokerName", "queueId", "queueOffset", "cast(body AS string) AS text")
texts.writeStream.format("console").start().awaitTermination()
"""
