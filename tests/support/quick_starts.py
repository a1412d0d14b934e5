"""Makes a program of the ten lines that docs/clients.md has for each official client.

tests/support/official_clients.py fetches the clients.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from testbed.jars import cache_folder, fetch_jars
from testbed.processes import ROOT
from tests.support.official_clients import PROGRAMS, node_modules

_JAVA = """
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

public class Start {
    public static void main(String[] arguments) throws Exception {
        %s
        System.exit(0);
    }
}
"""
_GO = """
package main

import (
    "context"
    "fmt"
    "time"

    rmq "github.com/apache/rocketmq-clients/golang/v5"
    "github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
    %s
}
"""
_NODE = """
(async () => {
    %s
    process.exit(0);
})();
"""
_RUST = """
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    %s
    Ok(())
}
"""


def lines_of(language: str, endpoints: str) -> str:
    """Returns the lines of the block in this language, with another address."""
    text = (ROOT / "docs" / "clients.md").read_text()
    (lines,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    assert "127.0.0.1:8081" in lines
    return str(lines).replace("127.0.0.1:8081", endpoints)


def java(home: Path, endpoints: str) -> list[str]:
    program = home / "Start.java"
    program.write_text(_JAVA % lines_of("java", endpoints))
    jars = fetch_jars(PROGRAMS / "java" / "pom.xml", "rocketmq-client-java-5.2.0")
    return ["java", "-Xmx256m", f"-Duser.home={home}", "-cp", f"{jars}/*", str(program)]


def go(home: Path, endpoints: str) -> list[str]:
    for name in ("go.mod", "go.sum"):
        shutil.copy(PROGRAMS / "go" / name, home)
    (home / "main.go").write_text(_GO % lines_of("go", endpoints))
    subprocess.run(["go", "build", "-o", "start", "."], cwd=home, check=True)
    return [str(home / "start")]


def node(home: Path, endpoints: str) -> list[str]:
    program = home / "start.js"
    program.write_text(_NODE % lines_of("js", endpoints))
    return ["env", f"NODE_PATH={node_modules()}", "node", str(program)]


def rust(home: Path, endpoints: str) -> list[str]:
    for name in ("Cargo.toml", "Cargo.lock"):
        text = (PROGRAMS / "rust" / name).read_text()
        (home / name).write_text(text.replace("rocketsim-rust-client", "rocketsim-quick-start"))
    (home / "src").mkdir()
    (home / "src" / "main.rs").write_text(_RUST % lines_of("rust", endpoints))
    built = cache_folder("rocketmq-client-rust-5.0.0")
    environment = os.environ | {"CARGO_TARGET_DIR": str(built)}
    subprocess.run(["cargo", "build", "--quiet", "--locked"], cwd=home, env=environment, check=True)
    return ["env", "RUST_BACKTRACE=0", str(built / "debug" / "rocketsim-quick-start")]


QUICK_STARTS = {"java": java, "go": go, "node": node, "rust": rust}
