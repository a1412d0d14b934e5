"""The direction of imports, and other rules about the source code."""

import ast
import fnmatch
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SENDING = "rocketsim_client.sending"
CALLERS = {f"rocketsim_client.{name}" for name in ("producer", "pull_consumer", "consuming", "admin")}
ROOMS = {"rocketsim_client.sending", "rocketsim_client.routing", "rocketsim_client.transport"}

OWN_CALLS = "rocketsim_client.transport.own"
REMOTING_CALLS = "rocketsim_client.transport.remoting"

GENERATED = {f"rocketsim_proto.{path.stem}" for path in (ROOT / "proto/rocketsim_proto").glob("*_pb2*.py")}

# The packages that work with the state of one broker, and the packages that call them: broker.core knows none of these.
BROKERS_FEATURES = {
    f"broker_service.{room}" for room in ("broker.reads", "delayed", "transactions", "pop", "rocketmq_handover")
}
BROKERS_CALLS = {"broker_service.wire", "broker_service.broker.put"}


def listed_rooms() -> tuple[str, ...]:
    """Returns the broker's packages ("rooms") as docs/ARCHITECTURE.md lists them, the lowest first: none knows one
    above it.
    """
    text = (ROOT / "docs/ARCHITECTURE.md").read_text().partition("### `broker_service`")[2]
    found = re.findall(r"^([a-z][\w/]*)/ ", text.split("```")[1], re.MULTILINE)
    return tuple(reversed(found))


BROKERS_ROOMS = listed_rooms()

ABOVE_CONSUMPTION = {
    "grpc",
    *(f"broker_service.{room}" for room in ("admin", "namesrv", "leadership", "wire", "node")),
    *GENERATED,
}

SOURCE_ROOMS = {
    f"rocketsim_source.{room}"
    for room in ("options", "planning", "commits", "reading", "sink", "stream_query", "views")
}

# A package or module -> what it must never import, at the top or inside a function. A dotted name covers all below it.
STAYS_OUT_OF = {
    "broker_service": {"rocketsim_client", "rocketsim_source", "rocketsim_cli", "rocketsim_console", "pyspark"},
    "broker_service/store": {
        *("asyncio", "grpc", "google", "javaproperties", "rocketmq_v2"),
        *("broker_service.replication", "broker_service.broker", "broker_service.namesrv", "broker_service.admin"),
        *("broker_service.node", "broker_service.config", "broker_service.runtime"),
    },
    "broker_service/replication": {"broker_service.broker", "broker_service.admin", "broker_service.namesrv"},
    "broker_service/replication/tracker.py": {"asyncio", "grpc", "time", "rocketsim_proto", "logging"},
    "broker_service/replication/catch_up.py": {"asyncio", "grpc", "time", "rocketsim_proto", "logging"},
    "broker_service/replication/epochs.py": {"asyncio", "grpc", "time", "rocketsim_proto", "logging"},
    "broker_service/access": {
        *(f"broker_service.{room}" for room in ("store", "replication", "broker", "admin", "namesrv", "wire", "node")),
        "rocketmq_v2",
    },
    "broker_service/broker": {
        *(
            f"broker_service.{room}"
            for room in ("admin", "namesrv", "pop", "transactions", "leadership", "wire", "node")
        ),
    },
    "broker_service/state": ABOVE_CONSUMPTION,
    "broker_service/pop": ABOVE_CONSUMPTION,
    "broker_service/transactions": ABOVE_CONSUMPTION,
    "broker_service/delayed": ABOVE_CONSUMPTION,
    "broker_service/rocketmq_handover": ABOVE_CONSUMPTION,
    # From the highest to the lowest: wire, broker.put -> leadership -> pop, transactions, delayed, broker.reads -> core
    # -> metadata.
    "broker_service/leadership": {
        *(f"broker_service.{room}" for room in ("broker.reads", "pop", "transactions", "rocketmq_handover")),
        *BROKERS_CALLS,
    },
    "broker_service/broker/reads": {*BROKERS_FEATURES - {"broker_service.broker.reads"}, *BROKERS_CALLS},
    "broker_service/broker/core": {*BROKERS_FEATURES, "broker_service.leadership", *BROKERS_CALLS},
    "broker_service/broker/metadata": {
        *BROKERS_FEATURES,
        "broker_service.leadership",
        *BROKERS_CALLS,
        "broker_service.broker.core",
    },
    "broker_service/broker/reads/suggestion.py": {"asyncio", "grpc", "time", "logging", *GENERATED},
    "broker_service/broker/core/mastership.py": {"asyncio", "grpc", "time", "logging"},
    "broker_service/leadership/promotion.py": {"asyncio", "grpc", "time", "logging", *GENERATED},
    "broker_service/namesrv": {
        *("broker_service.store", "broker_service.replication", "broker_service.broker"),
        *("broker_service.wire", "rocketmq_v2"),
    },
    "broker_service/wire": {"broker_service.admin", "broker_service.namesrv", "broker_service.node"},
    "broker_service/wire/clients.py": {
        *("broker_service.wire.own", "broker_service.wire.v2", "broker_service.wire.remoting", "rocketmq_v2"),
    },
    "broker_service/wire/own": {"broker_service.wire.v2", "broker_service.wire.remoting", "rocketmq_v2"},
    "broker_service/wire/v2": {"broker_service.replication", "broker_service.wire.own", "broker_service.wire.remoting"},
    "broker_service/wire/remoting": {
        *("broker_service.replication", "broker_service.wire.own", "broker_service.wire.v2"),
        *("rocketmq_v2", "grpc", "google"),
    },
    # The server of the remoting protocol knows frames and codes, but not what they mean for a broker.
    "broker_service/runtime/remoting": {
        f"broker_service.{room}" for room in ("broker", "admin", "namesrv", "wire", "node", "access", "replication")
    },
    "broker_service/namesrv/route_table.py": {"asyncio", "grpc", "time", "logging", *GENERATED},
    "broker_service/modes.py": {"asyncio", "grpc", "rocketsim_proto", *GENERATED},
    "broker_service/put_result.py": {"asyncio", "grpc", "rocketsim_proto", *GENERATED},
    # The client's packages, from the highest to the lowest: producer, consumer, admin -> sending -> cluster -> routing
    # -> transport -> the values.
    "rocketsim_client/sending": CALLERS,
    # A message passes each of these once: producer -> outbox -> sender -> attempts.
    "rocketsim_client/sending/options.py": {"grpc", "time", "threading"},
    "rocketsim_client/sending/admission.py": {
        *("grpc", "time", "threading"),
        *(f"{SENDING}.{name}" for name in ("outbox", "sender", "attempts")),
    },
    "rocketsim_client/sending/sender.py": {f"{SENDING}.outbox", "threading"},
    "rocketsim_client/sending/attempts.py": {f"{SENDING}.{name}" for name in ("outbox", "sender", "pending")},
    "rocketsim_client/sending/publish_info.py": {f"{SENDING}.{name}" for name in ("outbox", "sender", "attempts")},
    "rocketsim_client/sending/pending.py": {f"{SENDING}.{name}" for name in ("outbox", "sender", "attempts")},
    # With a spool: producer -> outbox -> spooling_sender -> spool -> spool_file, and replay -> spool, attempts.
    "rocketsim_client/sending/spooling_sender.py": {f"{SENDING}.{name}" for name in ("outbox", "replay")}
    | {"threading"},
    "rocketsim_client/sending/spooling.py": {f"{SENDING}.outbox"},
    "rocketsim_client/sending/replay.py": {f"{SENDING}.{name}" for name in ("outbox", "sender", "pending")},
    "rocketsim_client/sending/spool.py": {f"{SENDING}.{name}" for name in ("outbox", "sender", "attempts", "replay")},
    "rocketsim_client/sending/transactions.py": {f"{SENDING}.{name}" for name in ("outbox", "spool", "replay")},
    "rocketsim_client/sending/spool_file.py": {SENDING, "grpc", "time", "threading", "logging", "rocketsim_proto"},
    "rocketsim_client/cluster.py": {*CALLERS, "rocketsim_client.sending"},
    "rocketsim_client/group_offsets.py": {*CALLERS, "rocketsim_client.sending", "time", "threading"},
    "rocketsim_client/routing": {*CALLERS, "rocketsim_client.sending", "rocketsim_client.cluster"},
    # Only one file (`transport/opening.py`) chooses a connection's transport, and no other file above the transports
    # knows a protocol.
    "rocketsim_client/transport/own": {"rocketsim_client.transport.opening", "rocketsim_client.transport.static_route"},
    "rocketsim_client/transport/remoting": {
        *("grpc", OWN_CALLS, "rocketsim_client.transport.opening", "rocketsim_client.transport.static_route"),
        *GENERATED - {"rocketsim_proto.admin_pb2"},  # a command of an operator is the same message over every protocol
    },
    "rocketsim_client/transport/remoting/pull_window.py": {"time", "threading", "socket", "logging"},
    "rocketsim_client/transport/static_route.py": {"grpc", OWN_CALLS, REMOTING_CALLS},
    "rocketsim_client/transport/server_protocol.py": {"grpc", OWN_CALLS, REMOTING_CALLS},
    "rocketsim_client/transport": {*CALLERS, *ROOMS - {"rocketsim_client.transport"}, "rocketsim_client.cluster"},
    "rocketsim_client/errors.py": {*CALLERS, *ROOMS, "rocketsim_client.cluster", "grpc", "time", "threading"},
    "rocketsim_client/model.py": {*CALLERS, *ROOMS, "rocketsim_client.cluster", "grpc", "time", "threading"},
    "rocketsim_client/route.py": {*CALLERS, *ROOMS, "rocketsim_client.cluster", "grpc", "time", "threading"},
    "rocketsim_client/routing/members.py": {"grpc", "time", "threading"},
    "rocketsim_client/routing/route_cache.py": {"grpc", "time", "threading"},
    "rocketsim_client/retry.py": {"grpc", "time", "threading"},
    # consumer -> poller -> renewal -> settler -> inbox -> in_flight
    "rocketsim_client/consuming/poller.py": {"rocketsim_client.consuming.consumer"},
    "rocketsim_client/consuming/renewal.py": {f"rocketsim_client.consuming.{name}" for name in ("consumer", "poller")},
    "rocketsim_client/consuming/settler.py": {
        f"rocketsim_client.consuming.{name}" for name in ("consumer", "poller", "renewal")
    },
    "rocketsim_client/consuming/in_flight.py": {
        *CALLERS,
        *ROOMS,
        "rocketsim_client.cluster",
        "grpc",
        "time",
        "threading",
    },
    "rocketsim_client/sending/latency_fault.py": {"grpc", "time", "threading"},
    "rocketsim_client/sending/accumulator.py": {"grpc", "time", "threading"},
    "rocketsim_source": {"broker_service", "rocketsim_cli", "asyncio", "rocketmq_v2"},
    # options <- source_cluster <- planning <- commits, reading <- stream_query <- readers; sink needs only the options
    "rocketsim_source/options": {"grpc", "time", "logging", "pyspark", *SOURCE_ROOMS - {"rocketsim_source.options"}},
    "rocketsim_source/source_cluster.py": SOURCE_ROOMS - {"rocketsim_source.options"},
    "rocketsim_source/planning": SOURCE_ROOMS - {"rocketsim_source.options", "rocketsim_source.planning"},
    "rocketsim_source/commits": {"rocketsim_source.reading", "rocketsim_source.sink", "rocketsim_source.stream_query"},
    "rocketsim_source/reading": {"rocketsim_source.commits", "rocketsim_source.sink", "rocketsim_source.stream_query"},
    "rocketsim_source/sink": SOURCE_ROOMS - {"rocketsim_source.options", "rocketsim_source.sink"},
    "rocketsim_source/views": SOURCE_ROOMS - {"rocketsim_source.options", "rocketsim_source.views"},
    # A Spark task decides what a frame is worth, and which broker to ask, without network, clock or log.
    "rocketsim_source/reading/task_progress.py": {"grpc", "time", "logging", "pyspark"},
    "rocketsim_source/reading/broker_choice.py": {"grpc", "time", "logging", "pyspark"},
    "rocketsim_source/reading/unreadable.py": {"grpc", "time", "logging", "pyspark"},
    "rocketsim_source/planning/epochs.py": {"grpc", "time", "logging", "pyspark"},
    "rocketsim_source/planning/limits.py": {"grpc", "time", "logging", "pyspark"},
    "rocketsim_source/planning/offsets.py": {"grpc", "time", "logging", "pyspark"},
    "rocketsim_source/planning/splits.py": {"grpc", "time", "logging", "pyspark"},
    "rocketsim_source/planning/starts.py": {"grpc", "time", "logging", "pyspark"},
    # The official clients register Protobuf messages of the same names, so our copies cannot be imported in one process
    # with theirs.
    "rocketsim_client": {
        *(
            "broker_service",
            "rocketsim_source",
            "rocketsim_cli",
            "rocketsim_console",
            "pyspark",
            "rocketmq_v2",
        )
    },
    # The asyncio classes use the producer and the consumers, and call no server themselves.
    "rocketsim_client/aio": {"grpc", "rocketsim_client.cluster", *ROOMS},
    # The console sees the cluster as a client does.  Modules without network or web framework decide what the pages
    # show.
    "rocketsim_console": {"broker_service", "rocketsim_source", "rocketsim_cli", "pyspark", "grpc", "rocketmq_v2"},
    **{
        f"rocketsim_console/{name}.py": {
            "asyncio",
            "time",
            "threading",
            "starlette",
            "uvicorn",
            "rocketsim_client.admin",
        }
        for name in ("picture", "timeline", "rates", "message_json")
    },
    # The package starts servers as `rocketsim up` does, and sees the cluster as a client does.
    "rocketsim_testing": {"broker_service", "rocketsim_source", "rocketsim_console", "pyspark", "grpc", "asyncio"},
    "rocketsim_testing/plugin.py": {"rocketsim_client", "rocketsim_cli"},
    "rocketsim_console/watch.py": {"asyncio", "starlette", "uvicorn"},
    "rocketsim_console/views.py": {"asyncio", "starlette", "uvicorn"},
    "rocketsim_console/messages.py": {"asyncio", "starlette", "uvicorn"},
    "proto/rocketsim_proto": {"broker_service", "rocketsim_client", "rocketsim_source", "rocketsim_cli", "pyspark"},
    "pyspark_rocketsim.py": {"broker_service", "rocketsim_cli", "grpc"},
    # What benchmarks and tests both need is in testbed.  The tests of the benchmarks import the benchmarks, not the
    # other way round.
    "benchmarks": {"tests"},
    # Users copy them.
    "examples": {"broker_service", "rocketsim_cli", "rocketsim_source", "rocketsim_proto", "testbed", "tests"},
    "testbed": {"tests", "benchmarks"},
}

# The store knows the records of the contract, but not its calls.
RECORDS = "proto/rocketsim_proto/records"
RECORD_MODULES = {"rocketsim_proto.records", "rocketsim_proto.limits", "rocketsim_proto.reserved"}


def sources(where: str) -> list[Path]:
    path = ROOT / where
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [path for path in found if "_pb2" not in path.name]


def imported_modules(path: Path) -> Iterator[str]:
    """Returns every module that a file imports, anywhere in it; `from a import b` counts as a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[:-1]
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_within(module: str, forbidden: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in forbidden)


@pytest.mark.parametrize("where", [where for where in STAYS_OUT_OF if (ROOT / where).exists()])
def test_dependencies_point_one_way(where):
    for path in sources(where):
        assert not [module for module in imported_modules(path) if is_within(module, STAYS_OUT_OF[where])], path


def room_of(module: str) -> str:
    """Returns the innermost listed package of the broker that contains this module, or "" if none does."""
    parts = module.split(".")[1:]
    for depth in (2, 1):
        if (name := "/".join(parts[:depth])) in BROKERS_ROOMS:
            return name
    return ""


def test_the_list_of_the_brokers_folders_is_complete():
    packages = {path.parent for path in sources("broker_service") if path.name == "__init__.py"}
    names = {str(path.relative_to(ROOT / "broker_service")) for path in packages} - {"."}
    # A folder in a listed package counts as part of it, and only `wire` itself holds modules that its three protocols
    # share.
    assert {name for name in names if not room_of("broker_service." + name.replace("/", "."))} == {"wire"}
    assert len(set(BROKERS_ROOMS)) == len(BROKERS_ROOMS) >= 20


def test_each_folder_of_the_broker_imports_only_folders_below_it():
    for path in sources("broker_service"):
        own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        known = {room_of(module) for module in imported_modules(path) if module.startswith("broker_service.")} - {""}
        above = {room for room in known if own and BROKERS_ROOMS.index(room) > BROKERS_ROOMS.index(own)}
        assert not above, f"{path} knows {above}"


def test_every_package_named_above_is_there():
    """A renamed package must not disable a rule silently; modules may come and go."""
    named = [where for where in STAYS_OUT_OF if not where.endswith(".py")]
    named += [f"broker_service/{room}" for room in BROKERS_ROOMS]
    assert [where for where in named if not sources(where)] == []


def test_of_the_contract_the_store_knows_only_records_and_statuses():
    known = {*RECORD_MODULES, "rocketsim_proto.model"}
    for path in sources("broker_service/store"):
        contract = {module for module in imported_modules(path) if module.startswith("rocketsim_proto.")}
        assert all(is_within(module, known) for module in contract), path


def test_records_are_known_without_grpc_or_generated_code():
    assert sources(RECORDS)
    for path in sources(RECORDS):
        contract = {module for module in imported_modules(path) if module.startswith("rocketsim_proto.")}
        assert all(is_within(module, RECORD_MODULES) for module in contract), path
        assert not [module for module in imported_modules(path) if is_within(module, {"grpc", "google", "asyncio"})], (
            path
        )


def test_the_codec_of_remoting_does_no_io():
    """The client with its blocking sockets and a server with its event loop share the codec."""
    io = {"socket", "ssl", "asyncio", "threading", "time", "grpc", "google", "rocketsim_proto.records", *GENERATED}
    assert sources("proto/rocketsim_proto/remoting")
    for path in sources("proto/rocketsim_proto/remoting"):
        assert not [module for module in imported_modules(path) if is_within(module, io)], path


def constructors(package: str) -> Iterator[tuple[str, list[ast.arg]]]:
    for path in sources(package):
        for kind in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(kind, ast.ClassDef):
                for method in kind.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                        arguments = (*method.args.posonlyargs, *method.args.args[1:], *method.args.kwonlyargs)
                        yield f"{path.name}: {kind.name}", list(arguments)


def test_a_part_takes_few_parts_and_hardly_any_callables():
    """A class that needs two other parts takes those parts, not callables, and arguments that go together are one
    value.
    """
    callables = []
    for name, arguments in constructors("broker_service"):
        assert len(arguments) <= 12, name
        for one in arguments:
            if one.annotation is not None and "Callable" in ast.unparse(one.annotation):
                callables.append(f"{name}: {one.arg}")
    assert len(callables) < 15, callables


def test_nobody_imports_what_puts_the_parts_together_but_the_program():
    for path in sources("broker_service"):
        if path.name != "__main__.py" and path.parent.name != "node":
            assert not [module for module in imported_modules(path) if is_within(module, {"broker_service.node"})], path


def test_one_file_of_the_client_decides_over_which_transport_servers_are_called():
    """Only one file above the transports knows gRPC, our own calls or RocketMQ's."""
    below = {ROOT / "rocketsim_client/transport/own", ROOT / "rocketsim_client/transport/remoting"}
    others = [path for path in sources("rocketsim_client") if not below & set(path.parents)]
    protocols = {"grpc", OWN_CALLS, REMOTING_CALLS}
    knowing = {path for path in others if any(is_within(m, protocols) for m in imported_modules(path))}
    assert knowing == {ROOT / "rocketsim_client/transport/opening.py"}


def test_one_folder_of_the_client_uses_asyncio():
    """The client itself has no event loop, and nothing in it depends on the folder that uses one."""
    others = [path for path in sources("rocketsim_client") if ROOT / "rocketsim_client/aio" not in path.parents]
    for path in others:
        known = [module for module in imported_modules(path) if is_within(module, {"asyncio", "rocketsim_client.aio"})]
        assert not known, path


@pytest.mark.parametrize(
    ("names", "subject"),
    [
        ("DeleteUser|delete_user|deleteUser", "users"),
        ("UpdateAcl|update_acl|updateAcl", "users"),
        ("RemoveSlave|remove_slave", "brokers"),
        ("QueryMsgByOffset|query_msg_by_offset", "messages"),
    ],
)
def test_an_operators_command_takes_four_files(names, subject):
    """An operator's command consists of its message and, in three files of its subject, its operation, its call and its
    words for the command line.  No file lists all commands.  `remoting*.py` answer RocketMQ's tools with the same
    operations.
    """
    named = re.compile(rf"\b({names})(Request)?\b")
    packages = ("broker_service/admin", "broker_service/access", "rocketsim_client", "rocketsim_cli", "proto")
    written = [path for one in packages for path in [*sources(one), *(ROOT / one).rglob("*.proto")]]
    found = {
        str(path.relative_to(ROOT))
        for path in written
        if "_pb2" not in path.name and not path.name.startswith("remoting") and named.search(path.read_text())
    }
    places = (f"{package}/admin/{subject}.py" for package in ("broker_service", "rocketsim_client", "rocketsim_cli"))
    assert found == {"proto/rocketsim_proto/admin.proto", *places}


def test_files_are_mapped_in_one_place():
    """Only this file maps files, and hands out views, because a map's own `find` and `rfind` read beyond its end in
    Python 3.11.2.
    """
    packages = ("broker_service", "rocketsim_client", "rocketsim_source", "rocketsim_cli", "proto", "benchmarks")
    mapping = {path for where in packages for path in sources(where) if "mmap" in imported_modules(path)}
    assert mapping == {ROOT / "broker_service/store/files.py"}


# The files that may touch the file system, and what for.
OWN_FILES = {
    ROOT / "broker_service/store/files.py",  # the layer for the disk, through which a broker keeps everything
    ROOT / "broker_service/runtime/server.py",  # writes the address file, for the process that started the broker
}
WRITING = {
    *("open", "write_text", "write_bytes", "unlink", "mkdir", "makedirs", "rmdir", "rename", "replace", "touch"),
    *("pwrite", "pwritev", "write", "writev", "ftruncate", "truncate", "fsync", "fdatasync", "link", "symlink"),
    *("posix_fallocate", "mmap", "rmtree", "copyfile", "copytree", "move", "symlink_to", "hardlink_to"),
}
FILE_MODULES = {"os", "shutil", "mmap", "io", "tempfile"}


def writes_in(path: Path) -> Iterator[int]:
    """Lines that open a file for writing or change one: by a module's function, by a path's method, or by `open`."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            is_write = node.func.id == "open"
        elif isinstance(node.func, ast.Attribute) and node.func.attr in WRITING:
            owner = ast.unparse(node.func.value)
            is_write = owner in FILE_MODULES or (
                ("path" in owner.lower() or "directory" in owner.lower()) and not owner.endswith("files")
            )
        else:
            is_write = False
        if is_write and not any(word in ast.unparse(node) for word in ("O_RDONLY", "'rb'")):
            yield node.lineno


def test_only_the_seam_to_the_disk_writes_files():
    """The tests with full, failing and dying disks cover only writes that go through this layer."""
    brokers = [path for path in sources("broker_service") if path not in OWN_FILES]
    assert [f"{path.relative_to(ROOT)}:{line}" for path in brokers for line in writes_in(path)] == []
    assert list(writes_in(ROOT / "broker_service/store/files.py"))


def appends_in(path: Path) -> Iterator[int]:
    """Yields the lines that append to a store directly."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr in ("append", "append_one") and (owner == "store" or owner.endswith(".store")):
                yield node.lineno


def test_a_master_appends_through_one_function():
    """`Broker.append` keeps records away from a topic whose deletion is being written."""
    door = ROOT / "broker_service/broker/core/broker.py"
    others = [path for path in sources("broker_service") if path != door]
    assert [f"{path.relative_to(ROOT)}:{line}" for path in others for line in appends_in(path)] == []
    assert len(list(appends_in(door))) == 2


def sleeps_in(path: Path) -> Iterator[int]:
    """Yields the lines that sleep for a constant time: `sleep(0)` only yields, and a computed time is a decision of the
    code.
    """
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "sleep" and node.args[0].value:
                yield node.lineno


def test_no_test_sleeps_to_be_right():
    """Tests move the clock or wait for something; the time between two polls is in testbed/polling.py."""
    tests = [path for path in sources("tests") if ROOT / "tests/support" not in path.parents]
    assert [f"{path.relative_to(ROOT)}:{line}" for path in tests for line in sleeps_in(path)] == []


def private_names_in(path: Path) -> Iterator[str]:
    """Yields names with an underscore that are imported from our packages, or looked up on something other than `self`;
    a few names of other libraries that offer no public way are allowed.
    """
    foreign = {"os._exit", "session.sparkContext._gateway", "SparkContext._gateway", "SparkContext._jvm"}
    public = {"_replace", "_asdict", "_fields", "_make"}  # of named tuples
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in public:
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls") and f"{owner}.{node.attr}" not in foreign:
                yield f"{node.lineno}: {owner}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.lineno}: {alias.name}" for alias in node.names if re.match("_[^_]", alias.name))


def test_benchmarks_use_no_private_name():
    """Benchmarks measure what users can call."""
    found = [f"{path.relative_to(ROOT)}:{name}" for path in sources("benchmarks") for name in private_names_in(path)]
    assert found == []


def tracked_files() -> list[Path]:
    """Returns the project's files: those that git tracks, or, in an export without git, all that .gitignore does not
    name.
    """
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
        return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]
    skipped = re.compile("|".join(fnmatch.translate(line.rstrip("/")) for line in lines(ROOT / ".gitignore")))
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not any(skipped.match(part) for part in path.relative_to(ROOT).parts)
    ]


def test_no_file_names_the_machine_it_was_written_on():
    somebodys_place = re.compile(rb"(?<![\w.$}])/(?:work|home/\w+|root|Users/\w+)/[\w.]+/")
    for path in tracked_files():
        if path != Path(__file__) and path.suffix not in {".xz", ".gz", ".bin"}:
            found = somebodys_place.search(path.read_bytes())
            assert not found, f"{path.relative_to(ROOT)}: {found and found[0].decode()}"


def test_every_requirement_of_setup_is_pinned_for_ci():
    pinned = {re.split("[=<>~ ]", line)[0].lower().replace("_", "-") for line in lines(ROOT / "requirements.txt")}
    wanted = set(
        re.findall(r'"([A-Za-z][\w-]*)(?:[<>=].*)?",', (ROOT / "setup.py").read_text().partition("install_requires")[2])
    )
    assert {name.lower() for name in wanted} <= pinned


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
