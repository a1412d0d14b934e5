"""The documentation site builds without a warning and loads nothing from the network, and a broken link fails the
build.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import rocketsim_client
from rocketsim_cli.main import app
from rocketsim_source.options.option_values import option_names
from rocketsim_source.options.sink_options import SinkOptions
from rocketsim_source.options.source_options import SourceOptions
from testbed.processes import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocstrings") is None, reason="`./run docs` installs what these tests need"
)


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        command, cwd=source, env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the HTML of each page, by its file name."""
    site = tmp_path_factory.mktemp("site")
    built = build(ROOT, site)
    assert built.returncode == 0, built.stderr
    assert not re.findall(r"^WARNING.*", built.stderr, re.M)
    assert (site / "search/search_index.json").exists()
    return {path.name: path.read_text() for path in site.glob("*.html")}


def test_every_document_is_a_page_that_needs_no_network(pages: dict[str, str]) -> None:
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} < {Path(name).stem for name in pages}
    for name, page in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?([^\"\s>]+)", page)
        loaded += re.findall(r"<link[^>]* rel=\"?(?:stylesheet|preconnect|preload)[^>]*>", page)
        assert not [address for address in loaded if "//" in address], name
        assert 'class="mermaid"' not in page and "language-mermaid" not in page, name
        assert re.findall(r">[\w/-]+\.md</a>", page) == [], f"{name} shows the names of files instead of titles"


def test_the_reference_has_everything_that_the_code_has(pages: dict[str, str]) -> None:
    unsupported = {"maxTimeRangePerTrigger", "alignQueuesByTimestamp", "slowQueueAdjustment", "heartbeatIntervalMs"}
    options = {*option_names(SourceOptions), *option_names(SinkOptions)} - unsupported - {"view"}
    assert [name for name in options if f"<code>{name}</code>" not in pages["every-option.html"]] == []
    admin: Any = typer.main.get_command(app).commands["admin"]  # type: ignore[attr-defined]
    assert [name for name in admin.commands if f"rocketsim admin {name}" not in pages["every-command.html"]] == []
    metrics = re.findall(r"^\| `(rocketsim_\w+)`", (ROOT / "docs/monitoring.md").read_text(), re.M)
    assert [name for name in metrics if f"<code>{name}</code>" not in pages["every-metric.html"]] == []
    names = [getattr(rocketsim_client, name).__qualname__ for name in rocketsim_client.__all__]
    assert [name for name in names if f'.{name}"' not in pages["python-api.html"]] == []
    assert "tlsCert" in pages["configuration.html"]
    programs = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert [name for name in programs if f'id="{name.replace(".", "")}"' not in pages["examples.html"]] == []


def test_readers_without_a_checkout_find_the_files_of_the_how_to_pages(pages: dict[str, str]) -> None:
    for page, file in [("monitoring", "prometheus/rules.yml"), ("deploy", "systemd/rocketsim-namesrv.service")]:
        assert re.search(rf'href="?files/deploy/{file}', pages[f"{page}.html"]), (page, file)


def test_what_is_broken_fails_the_build_by_name(tmp_path: Path) -> None:
    """The test builds one page with all mistakes, because every build takes seconds."""
    mistakes = {
        "[a page](no-page.md)": "no-page.md",
        "[an anchor](deploy.md#no-heading)": "no-heading",
        "[a file](../tests/no_file.py)": "no_file.py",
        "```mermaid\nflowchart LR\n    a --> b\n```": "diagrams/",
    }
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "deploy.md").write_text("# A page\n\n" + "\n\n".join(mistakes) + "\n")
    for path in ROOT.iterdir():  # the documents link to files everywhere in the project
        if path.name not in ("docs", "site"):
            (tmp_path / path.name).symlink_to(path)
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    for named in mistakes.values():
        assert any(named in line and "deploy.md" in line for line in built.stderr.splitlines()), (named, built.stderr)
