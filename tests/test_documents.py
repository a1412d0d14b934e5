"""Links between the documents lead to existing targets, and the words of `./run` that they name exist."""

import re

import pytest

from testbed.processes import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "site"]
SOURCES = [f"/{path.name}" for path in ROOT.glob("*.py")]
SOURCES += [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in folder.rglob("*.py")]


def anchors(text: str) -> set[str]:
    """Returns the fragments of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, fragment = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.exists(), target
        assert not fragment or fragment in anchors(linked.read_text()), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_word_of_run_that_is_named_exists(path):
    known = re.findall(r"^([a-z]+)\)$", (ROOT / "run").read_text(), re.M)
    assert "setup" in known
    assert set(re.findall(r"\./run ([a-z]+)", path.read_text())) <= set(known)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_source_file_that_is_named_exists(path):
    if path.name == "CHANGELOG.md":  # the changelog also names files of earlier versions
        pytest.skip("a history")
    named = set(re.findall(r"`([\w/]+\.py)`", path.read_text()))
    of_the_reader = {"transformations/telemetry.py"}
    unknown = {name for name in named if not any(source.endswith(f"/{name}") for source in SOURCES)}
    assert unknown - of_the_reader == set()


def test_programs_that_tests_run_in_the_readme_are_the_same_elsewhere():
    def programs(path: str) -> list[str]:
        return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.M | re.S)

    assert programs("docs/start.md") == [one for one in programs("README.md") if "readStream" in one]
    assert [one for one in programs("docs/move-from-kafka.md") if one in programs("README.md")]


def test_every_decision_table_that_the_code_cites_is_documented():
    documented = set(re.findall(r"^## (D\d\w?):", (ROOT / "docs/decision_tables.md").read_text(), re.M))
    packages = ("broker_service", "rocketsim_client", "rocketsim_source", "rocketsim_cli", "proto", "tests")
    cited = {
        table: path.name
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        for table in re.findall(r"[Tt]ables? (D\d\w?)", path.read_text())
    }
    assert {"D1", "D3", "D5", "D8"} <= cited.keys()
    assert cited.keys() <= documented, cited
