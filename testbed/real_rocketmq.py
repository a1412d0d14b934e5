"""Starts a real Apache RocketMQ on this machine, from Maven Central's jars, for tests and benchmarks.

    with running(tmp_path, version="5.1.4", pair=True) as rocketmq:
        rocketmq.name_server, rocketmq.address                  # host:port
        rocketmq.mqadmin("clusterList")                         # what it prints
        rocketmq.master.kill()                                  # SIGKILL
        rocketmq.master.start()                                 # the same configuration, store and port

The command `serve` runs RocketMQ until it is interrupted, and `mqadmin` asks any server with RocketMQ's own tool:

    python -m testbed.real_rocketmq serve [--version 5.5.0] [--pair] [--proxy]
    python -m testbed.real_rocketmq fetch [--version 5.5.0]
    python -m testbed.real_rocketmq mqadmin [--version 5.5.0] clusterList -n 127.0.0.1:9876

Needs Java 17 and Maven.  The jars are fetched once, into the user's cache directory.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.jars import cache_folder, fetch_jars

NEWEST = "5.5.0"
CLUSTER = "interop"
BROKER_NAME = "interop"
START_TIMEOUT_S = 180.0
COMMAND_TIMEOUT_S = 600
# The access keys of the administrator of `access`, with which brokers and tools sign their calls.
ACCESS_KEY, SECRET_KEY = "interop", "interop-secret"
# A user of `access` that may read all topics with all groups, and change nothing.  With ACL 2.0, `add_reader` creates
# this user.
READER_KEY, READER_SECRET = "interop-reader", "interop-reader-secret"
# Since 5.0 a SYNC_MASTER waits for its slave only with these keys.
WAITS_FOR_ITS_SLAVE = {"inSyncReplicas": 2, "totalReplicas": 2}
# The environment may have options for Spark's JVMs, which RocketMQ's JVMs must not get.
NO_OPTIONS = {"JDK_JAVA_OPTIONS": ""}
# RocketMQ maps files with internal classes, which Java 17 hides without these options.
OPENS = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util")),
]
_MAIN = "org.apache.rocketmq."
_POM = Path(__file__).with_suffix(".xml")


class RocketMQError(Exception):
    """A process of RocketMQ did not start, or ended with an error.  The error's message has the end of the process's
    output.
    """


def small_heaps() -> dict[str, str]:
    return {"namesrv": "128m", "master": "512m", "slave": "384m", "proxy": "384m"}


@dataclass(frozen=True)
class Jvms:
    """How the JVMs of the servers run.  The defaults use as little memory as tests allow.

    - `launch` starts the command of a server, and takes the options of Popen.
    - `stops_cleanly`: at the end of the context, the servers get SIGTERM and write all files.  Otherwise they are
      killed.
    """

    heaps: Mapping[str, str] = field(default_factory=small_heaps)
    options: tuple[str, ...] = ("-XX:+UseSerialGC",)
    launch: "Callable[..., subprocess.Popen[bytes]]" = subprocess.Popen
    stops_cleanly: bool = True


def rocketmq_jars(version: str = NEWEST, *, proxy: bool = False) -> Path:
    """Returns the directory with the jars of RocketMQ's servers and tools, with `proxy` also those of its proxy.

    Maven Central has 5.1.4 and later versions, but no broker of 4.x and no proxy of 5.1.4.  A version that was built
    from its source is found, too, once `mvn install` has put it into Maven's local repository.
    """
    properties = {"rocketmq.version": version}
    if proxy:
        return fetch_jars(_POM, f"rocketmq-{version}-with-proxy", **properties, proxy="true")
    return fetch_jars(_POM, f"rocketmq-{version}-with-tools", **properties)


def client_jars(version: str = NEWEST) -> Path:
    """Returns the directory with the jars of RocketMQ's Java client and mqadmin, which Maven Central has of 4.x, too.
    The directory of a version of 4.x has no servers.
    """
    if not is_version_4(version):
        return rocketmq_jars(version)
    return fetch_jars(_POM, f"rocketmq-{version}-client", **{"rocketmq.version": version, "client.only": "true"})


def is_fetched(version: str) -> bool:
    """Returns True if the jars of a version that Maven Central lacks are in the cache.

    Build the source of 4.9.8 once as follows; `python -m testbed.real_rocketmq fetch --version 4.9.8` then copies them:

        mvn install -pl broker,namesrv,tools -am -Dmaven.test.skip -Drat.skip -Dcheckstyle.skip
            -Dmaven.compiler.source=8 -Dmaven.compiler.target=8
    """
    return (cache_folder(f"rocketmq-{version}-with-tools") / "complete").exists()


def is_version_4(version: str) -> bool:
    return version.startswith("4.")


def free_port() -> int:
    """Returns a port that is free, as are the ports two below and one above it, which RocketMQ also opens."""
    while True:
        with ExitStack() as sockets:
            first = sockets.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for neighbour in (port - 2, port + 1):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", neighbour))
            except OSError:
                continue
            return port


def java(
    jars: Path, home: Path, heap: str, *main: str, options: tuple[str, ...] = Jvms.options, classes: Path | None = None
) -> list[str]:
    """Returns the command that runs a main class or source file with RocketMQ's jars, and with the compiled `classes`.
    The program writes logs below `home`.
    """
    settings = [*options, f"-Xms{heap}", f"-Xmx{heap}", f"-Duser.home={home}"]
    settings += ["-Drocketmq.client.logUseSlf4j=false"]
    # With its own limits, RocketMQ would delete files or refuse sends on a machine whose disk is nearly full.
    settings += [f"-Drocketmq.broker.diskSpace{name}Ratio=0.99" for name in ("WarningLevel", "CleanForcibly")]
    class_path = f"{jars}/*" if classes is None else f"{classes}:{jars}/*"
    return ["java", *settings, *OPENS, "-cp", class_path, *main]


def run_java(jars: Path, home: Path, heap: str, *main: str) -> str:
    """Runs a main class and returns what it prints.  Raises RocketMQError if the program ends with an error."""
    answer = subprocess.run(java(jars, home, heap, *main), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    if answer.returncode:
        raise RocketMQError(f"{' '.join(main)} ended with {answer.returncode}\n{answer.stderr[-4000:]}")
    return answer.stdout


def mqadmin(home: Path, *words: str, version: str = NEWEST) -> str:
    """Returns what mqadmin prints for a command.  The command's words name the servers to ask, as in `-n NAME_SERVER`
    or `-b BROKER`.

    If a command fails, mqadmin prints a stack trace and ends with status 0, and this function raises RocketMQError.
    """
    jars = client_jars(version)
    write_logging(home, version)
    command = java(jars, home, "64m", _MAIN + "tools.command.MQAdminStartup", *words)
    environment = {**os.environ, "ROCKETMQ_HOME": str(home)}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, env=environment)
    if answer.returncode or "Exception" in answer.stdout + answer.stderr:
        raise RocketMQError(f"mqadmin {' '.join(words)}: {answer.stdout[-2000:]}{answer.stderr[-4000:]}")
    return answer.stdout


class JavaServer:
    """A server in a JVM of its own, which can be started again with the same files."""

    def __init__(self, name: str, port: int, work: Path, command: list[str], jvms: Jvms) -> None:
        self.name = name
        self.port = port
        self._work = work
        self._command = command
        self._jvms = jvms
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the JVM, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Starts the JVM; returns the seconds until its port accepts connections."""
        begun = time.perf_counter()
        environment = {**os.environ, **NO_OPTIONS, "ROCKETMQ_HOME": str(self._work)}
        output = self._work / f"{self.name}.out"
        streams: dict[str, Any] = {"stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        with output.open("ab") as log:
            self._process = self._jvms.launch(self._command, stdout=log, env=environment, cwd=self._work, **streams)
        if not accepts_connections(self._process, self.port, START_TIMEOUT_S):
            self.kill()
            raise RocketMQError(f"nothing accepts on port {self.port}\n{output.read_text(errors='replace')[-4000:]}")
        return time.perf_counter() - begun

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, if the JVM runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Stops or kills the JVM, as its `Jvms` say."""
        if self._jvms.stops_cleanly:
            self.stop()
        else:
            self.kill()

    def stop(self) -> None:
        """Sends SIGTERM, and then SIGKILL if the process does not end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass(frozen=True)
class RocketMQ:
    """A running name server and broker, with a slave and a proxy if they were asked for."""

    version: str
    jars: Path
    work: Path
    jvms: Jvms
    name_server: str
    master: JavaServer
    slave: JavaServer | None = None
    proxy: JavaServer | None = None  # its port is for gRPC
    proxy_remoting: str = ""  # host:port, or empty without a proxy

    @property
    def address(self) -> str:
        """Returns the address of the master, `host:port`."""
        return self.master.address

    def run(self, *main: str, heap: str = "512m", version: str | None = None) -> str:
        """Runs a program with RocketMQ's jars and returns its output.  By default the program uses the jars of the
        servers' version.
        """
        return run_java(rocketmq_jars(version) if version else self.jars, self.work, heap, *main)

    def mqadmin(self, *words: str) -> str:
        """Returns what mqadmin prints for a command.  The name server is added unless the words name a server."""
        where = () if {"-n", "-b"} & {*words} else ("-n", self.name_server)
        return mqadmin(self.work, *words, *where, version=self.version)

    def wait_registered(self) -> None:
        """Waits until the name server knows the broker and the broker reports its state.  A broker reports its state
        only some seconds after its port accepts connections.
        """
        until = time.monotonic() + START_TIMEOUT_S
        failure: RocketMQError | None = None
        while time.monotonic() < until:
            try:
                if BROKER_NAME in self.mqadmin("clusterList"):
                    return
            except RocketMQError as error:  # a broker of 4.9.8 cannot report its state in its first second
                failure = error
        raise RocketMQError(f"{self.name_server} does not list the broker after {START_TIMEOUT_S:.0f} s") from failure

    def add_reader(self) -> None:
        """Creates the user READER_KEY with ACL 2.0.  With ACL 1.0 this user exists from the start."""
        if not has_users(self.version):
            return
        self.mqadmin("createUser", "-b", self.address, "-u", READER_KEY, "-p", READER_SECRET, "-t", "Normal")
        whom = ("-b", self.address, "-s", f"User:{READER_KEY}", "-d", "Allow")
        self.mqadmin("createAcl", *whom, "-r", "Topic:*", "-a", "Sub,Get")
        self.mqadmin("updateAcl", *whom, "-r", "Group:*", "-a", "Sub")


@contextmanager
def running(
    work: Path,
    *,
    version: str = NEWEST,
    store: Path | None = None,
    pair: bool = False,
    sync: bool = False,
    proxy: bool = False,
    access: bool = False,
    tls: Path | None = None,
    client_ca: Path | None = None,
    settings: Mapping[str, object] | None = None,
    jvms: Jvms | None = None,
) -> Iterator[RocketMQ]:
    """Starts the servers, and ends all processes at the end of the context.

    - `sync`: the master is a SYNC_MASTER that waits for its slave.
    - `store`: the directory that the master serves and changes, so pass a copy.  The default is a new, empty directory.
    - `access`: calls must be signed with ACCESS_KEY and SECRET_KEY (RocketMQ's ACL 2.0, before 5.3.0 its ACL 1.0).
    - `tls`: a folder with server.pem and server.key, for servers that take TLS as well as plaintext.
    - `client_ca`: a client that speaks TLS needs a certificate of this CA.
    - `settings`: further keys of the brokers.
    """
    jars = rocketmq_jars(version)
    work.mkdir(parents=True, exist_ok=True)
    write_logging(work, version)
    tls_options = _tls_options(work, tls, client_ca)
    jvms = jvms or Jvms()
    role = "SYNC_MASTER" if sync else "ASYNC_MASTER"

    def server(name: str, port: int, main: str, keys: Mapping[str, object]) -> JavaServer:
        config = work / f"{name}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        words = (*tls_options, _MAIN + main, "-c", str(config))
        return JavaServer(name, port, work, java(jars, work, jvms.heaps[name], *words, options=jvms.options), jvms)

    def broker(name: str, broker_id: int, directory: Path) -> JavaServer:
        port = free_port()
        keys: dict[str, object] = {
            "brokerClusterName": CLUSTER,
            "brokerName": BROKER_NAME,
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else role,
            "listenPort": port,
            "haListenPort": port + 1,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": name_server,
            "storePathRootDir": directory,
            "storePathCommitLog": directory / "commitlog",
            "autoCreateTopicEnable": "false",
            "timerWheelEnable": "false",
            "fileReservedTime": 1_000_000,  # the messages may be of any age
            "diskMaxUsedSpaceRatio": 95,
            **_file_sizes(directory),
            **(_access(work, version) if access else {}),
            **(WAITS_FOR_ITS_SLAVE if sync else {}),
            **(settings or {}),
        }
        return server(name, port, "broker.BrokerStartup", keys)

    with ExitStack() as stack:

        def started(one: JavaServer) -> JavaServer:
            stack.callback(one.end)
            one.start()
            return one

        port = free_port()
        name_server = f"127.0.0.1:{port}"
        keys = {"listenPort": port, "kvConfigPath": work / "kvConfig.json"}
        started(server("namesrv", port, "namesrv.NamesrvStartup", keys))
        master = started(broker("master", 0, store or work / "store"))
        slave = started(broker("slave", 1, work / "slave-store")) if pair else None
        found = RocketMQ(version, jars, work, jvms, name_server, master, slave)
        yield stack.enter_context(proxy_of(found)) if proxy else found


@contextmanager
def proxy_of(rocketmq: RocketMQ) -> Iterator[RocketMQ]:
    """Starts a proxy once the broker is registered, because a proxy without a broker ends at once."""
    rocketmq.wait_registered()
    remoting = free_port()
    one = _proxy(rocketmq, remoting)
    try:
        one.start()
        yield replace(rocketmq, proxy=one, proxy_remoting=f"127.0.0.1:{remoting}")
    finally:
        one.end()


def write_logging(home: Path, version: str) -> None:
    """Writes the logging configuration, without which servers and tools of 4.x do not start."""
    if is_version_4(version):
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker", "tools"):
            (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>")


def has_users(version: str) -> bool:
    """Returns True if access control is ACL 2.0, whose users commands create.  ACL 1.0 reads its users from a file."""
    return tuple(map(int, version.split("."))) >= (5, 3)


def _access(work: Path, version: str) -> dict[str, object]:
    """Writes the files of access control, and returns the keys of a broker that turn it on."""
    conf = work / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    (conf / "tools.yml").write_text("".join(f"{name}: {value}\n" for name, value in keys.items()))
    if not has_users(version):
        reader = {"accessKey": READER_KEY, "secretKey": READER_SECRET}
        rights = {"defaultTopicPerm": "SUB", "defaultGroupPerm": "SUB"}
        # The file is YAML, and JSON is YAML, too.
        accounts = {"accounts": [{**keys, "admin": True}, {**reader, "admin": False, **rights}]}
        (conf / "plain_acl.yml").write_text(json.dumps(accounts))
        return {"aclEnable": "true"}
    providers = _MAIN + "auth.{0}.provider.Local{1}MetadataProvider"
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationMetadataProvider": providers.format("authentication", "Authentication"),
        "authorizationMetadataProvider": providers.format("authorization", "Authorization"),
        "initAuthenticationUser": json.dumps({"username": ACCESS_KEY, "password": SECRET_KEY}),
        "innerClientAuthenticationCredentials": json.dumps(keys),
    }


def _tls_options(work: Path, tls: Path | None, client_ca: Path | None) -> list[str]:
    if tls is None:
        return []
    keys = {"test.mode.enable": "false", "server.certPath": tls / "server.pem", "server.keyPath": tls / "server.key"}
    if client_ca is not None:
        keys |= {"server.need.client.auth": "require", "server.authClient": "true", "server.trustCertPath": client_ca}
    config = work / "tls.properties"
    config.write_text("".join(f"tls.{key}={value}\n" for key, value in keys.items()))
    return ["-Dtls.server.mode=permissive", f"-Dtls.config.file={config}"]


def _proxy(rocketmq: RocketMQ, remoting_port: int) -> JavaServer:
    port = free_port()
    config = rocketmq.work / "conf" / "rmq-proxy.json"
    config.parent.mkdir(exist_ok=True)
    keys = {
        "rocketMQClusterName": CLUSTER,
        "namesrvAddr": rocketmq.name_server,
        "proxyMode": "CLUSTER",
        "grpcServerPort": port,
        "remotingListenPort": remoting_port,
        "localServeAddr": "127.0.0.1",
    }
    config.write_text(json.dumps(keys))
    jvms, main = rocketmq.jvms, (_MAIN + "proxy.ProxyStartup", "-pc", str(config))
    jars = rocketmq_jars(rocketmq.version, proxy=True)
    command = java(jars, rocketmq.work, jvms.heaps["proxy"], *main, options=jvms.options)
    return JavaServer("proxy", port, rocketmq.work, command, jvms)


def _file_sizes(store: Path) -> dict[str, int]:
    """Returns the sizes of a store's files as keys, since RocketMQ refuses files of another size than configured.

    Index files have four times as many entries as slots.
    """
    sizes = {}
    for key, pattern in {
        "mappedFileSizeCommitLog": "commitlog/*",
        "mappedFileSizeConsumeQueue": "consumequeue/*/*/*",
    }.items():
        first = next((path for path in store.glob(pattern) if path.name.isdigit()), None)
        if first is not None:
            sizes[key] = first.stat().st_size
    index = next((path for path in (store / "index").glob("*") if path.name.isdigit()), None)
    if index is not None:
        slots = (index.stat().st_size - 40) // (4 + 4 * 20)
        sizes |= {"maxHashSlotNum": slots, "maxIndexNum": 4 * slots}
    return sizes


def accepts_connections(process: "subprocess.Popen[bytes]", port: int, timeout_s: float) -> bool:
    """Returns True once the process accepts connections, and False after the timeout or when the process has ended."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return True
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
        break
    return False


def copy_store(store: Path, target: Path, *, whole: bool = False) -> Path:
    """Copies a store as sparse files.  Unless `whole`, the copy lacks files of our brokers that RocketMQ ignores."""
    target.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--sparse=always", f"{store}/.", str(target)], check=True)
    if not whole:
        shutil.rmtree(target / "rocketsim", ignore_errors=True)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve")
    server.add_argument("--pair", action="store_true")
    server.add_argument("--proxy", action="store_true")
    fetch = commands.add_parser("fetch")
    tool = commands.add_parser("mqadmin")
    for command in (server, fetch, tool):
        command.add_argument("--version", default=NEWEST)
    tool.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.command == "fetch":
        print(rocketmq_jars(arguments.version))
        return 0
    with tempfile.TemporaryDirectory(prefix="real-rocketmq-") as directory:
        work = Path(directory)
        if arguments.command == "mqadmin":
            try:
                print(mqadmin(work, *arguments.words, version=arguments.version), end="")
            except RocketMQError as error:
                print(error, file=sys.stderr)
                return 1
            return 0
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            serve(work, arguments.version, pair=arguments.pair, proxy=arguments.proxy)
    return 0


def serve(work: Path, version: str, *, pair: bool, proxy: bool) -> None:
    """Runs the servers until the process is interrupted."""
    settings = {"autoCreateTopicEnable": "true"}
    with running(work, version=version, pair=pair, proxy=proxy, settings=settings) as found:
        print(f"name server {found.name_server}, master {found.address}", flush=True)
        if found.slave is not None:
            print(f"slave {found.slave.address}", flush=True)
        if found.proxy is not None:
            print(f"proxy {found.proxy.address}, for remoting {found.proxy_remoting}", flush=True)
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
