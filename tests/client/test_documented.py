"""The examples of docs/client.md run unchanged and in order, and its tables agree with the code."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import rocketsim_client
from rocketsim_client import errors
from rocketsim_client.retry import RETRY_RULES, Another
from testbed.processes import ROOT
from tests.client.conftest import RealPair

TEXT = (ROOT / "docs/client.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
README = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.cluster
def test_the_examples_run_as_they_stand(
    real_pair: Callable[[str], RealPair],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    name_server, _, _ = real_pair("TopicTest")
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("rocketsim_client")
    monkeypatch.setattr(logger, "level", logger.level)
    names: dict[str, object] = {}
    (readme,) = (snippet for snippet in README if "Consumer" in snippet)
    exec(compile(readme.replace("127.0.0.1:9876", name_server), "README.md", "exec"), {})
    assert capsys.readouterr().out == "b'hello' greeting\n"
    printed = []
    for snippet in SNIPPETS:
        own = re.sub(r'name_server = "[^"]*"', f'name_server = "{name_server}"', snippet)
        exec(compile(own, "docs/client.md", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert len(SNIPPETS) >= 9

    def printed_by(words: str) -> str:
        (number,) = (number for number, snippet in enumerate(SNIPPETS) if words in snippet)
        return printed[number]

    assert "TopicTest@broker-a:" in printed[0]
    assert "b'a body'" in printed_by('"ledger"') or "b'x'" in printed_by('"ledger"')
    pulled = printed_by("import PullConsumer")  # all messages that were sent except the delayed ones
    assert pulled.count("b'a body'") == 1 and pulled.count("\n") == 1007
    assert "{'tags': 'new', 'queueOffset_count': 3}" in printed_by("reader.read_all()")
    members = printed_by("admin.cluster_list():\n        print")
    assert members.count("broker-a 0 ") == members.count("broker-a 1 ") == 1
    assert printed_by("except MessageIllegal").startswith("change the message: topic 'TopicTest': the body is empty")


def rows(heading: str) -> list[list[str]]:
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]


def test_every_error_is_in_the_table_with_its_code() -> None:
    written = {name: row for row in rows("Errors") for name in re.findall(r"`(\w+)`", row[0])}
    assert set(written) == {name for name in vars(errors) if name in rocketsim_client.__all__} - {"RocketSimError"}
    for row in rows("Errors"):
        names, codes = re.findall(r"`(\w+)`", row[0]), re.findall(r"\d+", row[1])
        for name, code in zip(names, codes * (len(names) if len(codes) == 1 else 1), strict=False):
            assert getattr(errors, name).code == int(code), name


def test_what_is_tried_again_is_what_the_table_says() -> None:
    another = {Another.YES: "yes", Another.NO: "no", Another.BY_A_TASK: "no", Another.OF_A_SLAVE: "if a slave says it"}
    by_name = {name: row for row in rows("Errors") for name in re.findall(r"`(\w+)`", row[0])}
    for kind, cure in RETRY_RULES.items():
        row = by_name[kind.__name__]
        assert row[3] == another[cure.another], kind
        if kind is not errors.BrokerRefused:  # by its code
            assert row[4] == ("yes" if cure.send else "no"), kind


def test_every_logger_in_the_table_is_one() -> None:
    loggers = set(re.findall(r"`(rocketsim_client\.[\w.]+)`", TEXT.partition("\n## Logging\n")[2]))
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "rocketsim_client").rglob("*.py")
        if re.search(r"logger\.(warning|info)\(", path.read_text())
    }
    assert loggers == found
