"""Runs the programs of tests/clients, each on RocketMQ's official client of its language.

A program takes ENDPOINTS ACCESS_KEY SECRET_KEY MODE.  The two keys are empty without access control, and MODE is `tls`
or `plaintext`.  The clients come from the public registries, once, into the user's cache directory.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.jars import cache_folder, fetch_jars
from testbed.processes import ROOT
from tests.support.tls import CA

PROGRAMS = ROOT / "tests" / "clients"


@dataclass(frozen=True)
class OfficialClient:
    """An official client.  `command` builds the program, given a folder as its user's home, and returns how it is
    started.
    """

    tools: tuple[str, ...]
    command: Callable[[Path], list[str]]
    one_address: bool = False  # the client cannot use both addresses of a pair
    recalls: bool = True

    def absent_tools(self) -> list[str]:
        return [tool for tool in self.tools if not shutil.which(tool)]


def _java(home: Path) -> list[str]:
    jars = fetch_jars(PROGRAMS / "java" / "pom.xml", "rocketmq-client-java-5.2.0")
    return ["java", "-Xmx256m", f"-Duser.home={home}", "-cp", f"{jars}/*", str(PROGRAMS / "java" / "Client.java")]


def _go(home: Path) -> list[str]:
    program = cache_folder("rocketmq-client-go-5.1.4") / "client"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=PROGRAMS / "go", check=True)
    return [str(program)]


def node_modules() -> Path:
    installed = cache_folder("rocketmq-client-nodejs-1.0.8")
    done = installed / "complete"
    if not done.exists():
        for name in ("package.json", "package-lock.json"):
            shutil.copy(PROGRAMS / "node" / name, installed)
        subprocess.run(["npm", "ci", "--ignore-scripts", "--silent"], cwd=installed, check=True)
        done.touch()
    return installed / "node_modules"


def _node(home: Path) -> list[str]:
    # This client checks the server's certificate with gRPC's CAs.
    environment = [f"NODE_PATH={node_modules()}", f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={CA}"]
    return ["env", *environment, "node", str(PROGRAMS / "node" / "client.js")]


def _rust(home: Path) -> list[str]:
    built = cache_folder("rocketmq-client-rust-5.0.0")
    environment = os.environ | {"CARGO_TARGET_DIR": str(built)}
    subprocess.run(["cargo", "build", "--quiet", "--locked"], cwd=PROGRAMS / "rust", env=environment, check=True)
    # This client checks the server's certificate with the system's CAs.
    return ["env", f"SSL_CERT_FILE={CA}", "RUST_BACKTRACE=0", str(built / "debug" / "rocketsim-rust-client")]


OFFICIAL_CLIENTS = {
    "java": OfficialClient(("mvn", "java"), _java),
    "go": OfficialClient(("go",), _go),
    "node": OfficialClient(("npm", "node"), _node, one_address=True),
    "rust": OfficialClient(("cargo",), _rust, one_address=True, recalls=False),
}
