"""Runs a real Prometheus (Debian's package `prometheus`) that scrapes a test's brokers."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.real_rocketmq import free_port

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus here: apt-get install prometheus"
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: apt-get install prometheus"
)


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the present samples of a PromQL expression.  Raises AssertionError if Prometheus refuses the
        expression.
        """
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        """Returns the names of the alerts that fire now."""
        return {one["labels"]["alertname"] for one in self._get("alerts")["alerts"] if one["state"] == "firing"}

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(parameters)}", timeout=60) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        data: dict[str, Any] = said["data"]
        return data


@contextmanager
def running_prometheus(folder: Path, targets: Sequence[str], rules: str = "") -> Iterator[Prometheus]:
    """Scrapes the targets (host:port) each second, under the job `rocketsim`, and evaluates the rules as often."""
    folder.mkdir()
    (folder / "rules.yml").write_text(rules or "groups: []")
    config: Mapping[str, object] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "rocketsim", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *words, f"--web.listen-address={address}"], stdout=log, stderr=subprocess.STDOUT
        )
    made = Prometheus(address)

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return [one["value"][1] for one in made.query("up")] == ["1"] * len(targets)
        except URLError:
            return False

    try:
        wait_until(answers, "Prometheus scrapes all brokers", PROCESS_PATIENCE_S)
        yield made
    finally:
        process.kill()
        process.wait()
