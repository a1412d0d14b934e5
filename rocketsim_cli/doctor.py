"""`rocketsim doctor`: checks what the commands and Spark need, and says how to get what is missing.

Each check prints one line.  All checks run even if some fail, because the failures together often show their common
cause.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rocketsim_proto import version
from rocketsim_proto.extras import DISTRIBUTION, command_for

from rocketsim_cli.admin.session import camel
from rocketsim_cli.connection import connection_to, options_of
from rocketsim_cli.options import AsJson, OptionalNameServer, OptionalTopic
from rocketsim_cli.tables import note, show_rows
from rocketsim_cli.trouble import EXIT_TROUBLE, WrongCommandLine, explain

if TYPE_CHECKING:
    from rocketsim_client import Admin
    from rocketsim_client.errors import AccessDenied

JAVA = 17  # the oldest version that Spark 4 supports
JAVA_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.  `advice` says what to do after a failed check, or what could be better after a good
    check.
    """

    check: str
    ok: bool
    found: str
    advice: str = ""


def doctor(
    context: typer.Context,
    name_server: OptionalNameServer = None,
    topic: OptionalTopic = None,
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark, and read the list of brokers with it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this installation and, with -n, whether the cluster answers.

    The exit status is 0 if every check is ok, and 1 otherwise.
    """
    if name_server is None and (topic or spark):
        raise WrongCommandLine(f"{'-t' if topic else '--spark'} needs the cluster's name server: -n, or NAMESRV_ADDR")
    findings = list(of_installation())
    if name_server is not None:
        if spark:  # the first check, because Spark must start before this process opens connections
            note("Spark starts and reads the list of brokers, which takes some seconds", as_json=as_json)
            findings.append(of_spark(source_options({"name_server": name_server, **options_of(name_server, context)})))
        findings += of_cluster(context, name_server, topic)
    columns = ["check", "ok", "found", "advice"]
    show_rows(columns, [{**asdict(one), "advice": one.advice or None} for one in findings], as_json=as_json)
    raise typer.Exit(0 if all(one.ok for one in findings) else EXIT_TROUBLE)


# --- this machine -----------------------------------------------------------------------------------------------------


def of_installation() -> Iterator[Finding]:
    from importlib import metadata  # imported here, because the import takes a tenth of a command's start-up time

    from rocketsim_proto.records import kernels

    yield Finding("python", True, f"{sys.version.split()[0]}, {sys.executable}")
    yield of_packages(metadata.requires(DISTRIBUTION) or [], installed_version)
    codec = kernels.in_use()
    yield Finding("recordKernels", True, codec, "" if codec == "compiled" else kernels.ADVICE)
    if installed_version("pyspark") is None:
        yield Finding("spark", True, "pyspark is not installed", f"for Spark: {command_for('spark')}")
        return
    yield of_java(java_version())
    yield of_workers(os.environ.get("PYSPARK_PYTHON"), shutil.which("python3"), sys.executable)


def installed_version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def of_packages(requirements: Iterable[str], installed: Callable[[str], str | None]) -> Finding:
    """Compares the installed packages with the distribution's requirements (`name>=version`).  A package that only an
    extra requires is left out if it is not installed.
    """
    wrong = []
    for requirement in requirements:
        matched = re.match(r"([\w-]+)>=([\d.]+)", requirement)
        if matched is None:
            continue
        name, oldest = matched.groups()
        version = installed(name)
        if version is None and "extra ==" not in requirement:
            wrong.append(f"{name} is missing")
        elif version is not None and _numbers(version) < _numbers(oldest):
            wrong.append(f"{name} {version} is older than {oldest}")
    if wrong:
        return Finding("packages", False, "; ".join(wrong), "install rocketsim with pip again, which brings them")
    return Finding("packages", True, f"rocketsim {installed('rocketsim')}")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def java_version() -> str | None:
    """Returns what `java -version` prints, or None without Java.  JAVA_HOME is preferred to the PATH, as in Spark."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None


def of_java(said: str | None) -> Finding:
    advice = f"Spark needs Java {JAVA} or newer: install it, and set JAVA_HOME if it is not on the PATH"
    if said is None:
        return Finding("java", False, "no java on the PATH or in JAVA_HOME", advice)
    matched = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if matched is None:
        return Finding("java", False, said.strip().splitlines()[0] if said.strip() else "it says nothing", advice)
    version = int(matched[2] or 0) if matched[1] == "1" else int(matched[1])  # "1.8.0_292" is 8
    return Finding("java", version >= JAVA, str(version), "" if version >= JAVA else advice)


def of_workers(pyspark_python: str | None, python3: str | None, executable: str) -> Finding:
    """Checks the Python that Spark starts for its workers, which is PYSPARK_PYTHON or else `python3` on the PATH."""
    worker = pyspark_python or python3
    if worker is not None and (found := shutil.which(worker)) and _same_environment(found, executable):
        return Finding("pysparkPython", True, worker)
    advice = f"export PYSPARK_PYTHON={executable}"
    return Finding("pysparkPython", False, f"Spark's workers would be {worker or 'no Python at all'}", advice)


def _same_environment(python: str, other: str) -> bool:
    """Returns True if both Pythons are in the same directory.

    Links are not followed: in a virtual environment, `python` is a link to a Python that does not have the
    environment's packages.
    """
    return os.path.dirname(os.path.abspath(python)) == os.path.dirname(os.path.abspath(other))


def source_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Turns keyword arguments of the client into options of the Spark source (`tls_ca` into `tlsCa`).

    Empty options are left out, and so is the protocol `auto`, which is the default.
    """
    return {
        camel(name): str(value).lower() if value is True else str(value)
        for name, value in options.items()
        if value not in (None, "", False, "auto")
    }


def of_spark(options: Mapping[str, str]) -> Finding:
    """Reads the view `brokers` with Spark.  An active Spark session is used and left open; otherwise a session is
    started and stopped again.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        return Finding("sparkReads", False, str(error), command_for("spark"))
    before = SparkSession.getActiveSession()
    try:
        session = before or SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        try:
            rows = session.read.format("rocketsim").options(view="brokers", **options).load().collect()
        finally:
            if before is None:
                session.stop()
    except Exception as error:  # the errors of Spark and Py4J have no common class
        advice = "see the other checks; docs/spark-clusters.md lists what Spark needs"
        said = str(error).strip() or type(error).__name__
        return Finding("sparkReads", False, said.splitlines()[0], advice)
    return Finding("sparkReads", bool(rows), f"{len(rows)} brokers", "" if rows else "start a broker")


# --- the cluster ------------------------------------------------------------------------------------------------------


def of_cluster(context: typer.Context, name_server: str, topic: str | None) -> Iterator[Finding]:
    from rocketsim_client import Admin
    from rocketsim_client.errors import AccessDenied

    try:
        admin = Admin(connection_to(name_server, context))
    except Exception as error:
        yield _failed("nameServer", error)
        return
    with admin:
        members = yield from _members(admin, name_server)
        for member in members:
            try:
                status = admin.broker_status(broker_addr=member)[member]
            except AccessDenied as error:
                yield _without_the_right(f"broker {member}", "it answers, and knows these keys", error)
            except Exception as error:
                yield _failed(f"broker {member}", error)
            else:
                yield of_broker(member, status)
        if topic is not None and members:
            yield _of_topic(admin, topic)


def _members(admin: "Admin", name_server: str) -> Generator[Finding, None, list[str]]:
    """Yields the finding about the name server, and returns the addresses of the registered brokers."""
    try:
        members = sorted(member.address for member in admin.cluster_list())
    except Exception as error:
        yield _failed("nameServer", error)
        return []
    advice = "" if members else f"start a broker with namesrvAddr={name_server}"
    yield Finding("nameServer", bool(members), f"{name_server}, {len(members)} brokers", advice)
    return members


def of_broker(address: str, status: Mapping[str, str]) -> Finding:
    reason, its_version = status.get("notWritable", ""), status.get("brokerVersionDesc", "")
    parts = status.get("brokerRole"), its_version, reason and f"takes no sends: {reason}"
    differs = its_version.startswith(f"{version.PRODUCT} ") and its_version != version.described()
    advice = f"this machine has {version.described()}: docs/upgrade.md says what works together" if differs else ""
    return Finding(f"broker {address}", not reason, ", ".join(filter(None, parts)) or "it answers", advice)


def _of_topic(admin: "Admin", topic: str) -> Finding:
    from rocketsim_client.errors import AccessDenied

    check = f"topic {topic}"
    try:
        route = admin.topic_route(topic)
        readable, writable = len(route.readable_queues()), len(route.writable_queues())
        found = f"{readable} queues to read, {writable} to write"
        admin.cluster.bounds(topic)  # needs the right to send or to read
        try:
            admin.cluster.search(topic, dict.fromkeys(route.readable_queues(), 0))  # needs the right to read
        except AccessDenied as error:
            return _without_the_right(check, f"{found}; these keys may send, and not read", error)
    except Exception as error:
        return _failed(check, error)
    return Finding(check, readable > 0, found)


def _without_the_right(check: str, found: str, error: "AccessDenied") -> Finding:
    """Makes a Finding for keys that are right, but lack a right that not every program needs.  If the server does not
    know the keys, the check has failed.
    """
    return Finding(check, True, found, str(error)) if "has no permission" in str(error) else _failed(check, error)


def _failed(check: str, error: Exception) -> Finding:
    """Makes a Finding of an error.  The first sentence of the error's text says what was found, and the rest is the
    advice.
    """
    line = explain(error)
    if line is None:
        raise error
    found, _, advice = line.partition(". ")
    return Finding(check, False, found, advice)
