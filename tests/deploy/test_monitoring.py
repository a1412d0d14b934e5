"""The shipped alerts and the dashboard are valid, and use only metrics that a broker has."""

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers import running
from tests.support.prometheus import needs_promtool
from tests.support.tls import CA

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/rules.yml"
DASHBOARD = DEPLOY / "grafana/rocketsim.json"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    made = json.loads(DASHBOARD.read_text())
    panels = [target["expr"] for panel in made["panels"] for target in panel.get("targets", ())]
    return [*panels, *(one["expr"] for one in made["annotations"]["list"])]


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:rocketsim|rocketmq)_\w+", re.sub(r'"[^"]*"', "", expression)))


@needs_promtool
@pytest.mark.parametrize(
    "words",
    [("check", "rules", "rules.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")],
)
def test_promtool_passes(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], cwd=RULES.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_accepts_the_configuration_of_the_document(tmp_path: Path) -> None:
    text = (DEPLOY.parent / "docs/monitoring.md").read_text()
    (made,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    assert "/etc/rocketsim/ca.pem" in made
    (tmp_path / "prometheus.yml").write_text(made.replace("/etc/rocketsim/ca.pem", str(CA)))
    (tmp_path / "rules.yml").write_text(RULES.read_text())
    words = ["promtool", "check", "config", "prometheus.yml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_accepts_the_query_of_the_document(tmp_path: Path) -> None:
    text = (DEPLOY.parent / "docs/monitoring.md").read_text()
    (query,) = re.findall(r"^```\n(rocketmq_.*?)\n```", text, re.M | re.S)
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "g", "rules": [{"record": "of:the:master", "expr": query}]}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_to_fire_and_to_clear() -> None:
    asked: dict[str, list[bool]] = {}
    for one in yaml.safe_load((RULES.parent / "rules_test.yml").read_text())["tests"]:
        for case in one["alert_rule_test"]:
            asked.setdefault(case["alertname"], []).append(bool(case.get("exp_alerts")))
    assert {name: (any(fires), fires[-1]) for name, fires in asked.items()} == {
        rule["alert"]: (True, False) for rule in rules()
    }


async def test_alerts_and_dashboard_ask_for_metrics_that_a_broker_has(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    async with running(tmp_path) as node:
        node.metrics.take_snapshot()
        registry.register(node.metrics)
        page = (await asyncio.to_thread(generate_latest, registry)).decode()
    histogram = ("_bucket", "_sum", "_count")
    there: set[str] = set()
    for family in text_string_to_metric_families(page):
        name = family.name + "_total" if family.type == "counter" else family.name
        there |= {name + end for end in histogram} if family.type == "histogram" else {name}
    asked = {name for rule in rules() for name in metrics_in(rule["expr"])}
    asked |= {name for query in dashboard_queries() for name in metrics_in(query)}
    assert asked - there == set()
    assert len(asked) > 20


def test_the_dashboard_is_whole() -> None:
    made = json.loads(DASHBOARD.read_text())
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}", panel["title"]
    variables = {one["name"] for one in made["templating"]["list"]}
    used = {name for query in dashboard_queries() for name in re.findall(r"\$(\w+)", query)} - {"__rate_interval"}
    assert used <= variables
