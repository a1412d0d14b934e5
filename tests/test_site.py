"""The documentation site: it builds without a warning, loads nothing from the network, and a broken link fails it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.processes import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="`./run docs` installs what these tests need"
)


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        command, cwd=source, env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True, timeout=600
    )


def test_the_site_builds_and_needs_no_network(tmp_path):
    built = build(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    assert not re.findall(r"^WARNING.*", built.stderr, re.M)
    pages = {path.name: path.read_text() for path in tmp_path.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} < {Path(name).stem for name in pages}
    for name, page in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?([^\"\s>]+)", page)
        loaded += re.findall(r"<link[^>]* rel=\"?(?:stylesheet|preconnect|preload)[^>]*>", page)
        assert not [address for address in loaded if "//" in address], name
        assert 'class="mermaid"' not in page and "language-mermaid" not in page, name
    assert (tmp_path / "search/search_index.json").exists()


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("[a page](no-page.md)", "no-page.md"),
        ("[an anchor](spark.md#no-heading)", "no-heading"),
        ("[a file](../tests/no_file.py)", "no_file.py"),
        ("```mermaid\nflowchart LR\n    a --> b\n```", "diagrams/"),
    ],
)
def test_what_is_broken_fails_the_build_by_name(tmp_path, broken, named):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "docs", source / "docs")
    for path in ROOT.iterdir():  # links lead to files everywhere
        if path.name not in ("docs", "site"):
            (source / path.name).symlink_to(path)
    page = source / "docs" / "deploy.md"
    page.write_text(f"{page.read_text()}\n{broken}\n")
    built = build(source, tmp_path / "site")
    assert built.returncode != 0
    assert any(named in line and "deploy.md" in line for line in built.stderr.splitlines()), built.stderr
