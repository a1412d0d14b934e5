"""The source distribution, the wheel that is built from it, and what programs can do with its base and each extra.

The wheel is installed into an environment that has only the packages that its metadata requires.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from rocketsim_proto.extras import DISTRIBUTION
from rocketsim_proto.records import kernels

import rocketsim_testing
from testbed.processes import ROOT
from tests.support.archives import unpack
from tests.support.fake_broker import FakeCluster

PACKAGES = (
    *("broker_service", "rocketsim_cli", "rocketsim_client", "rocketsim_console", "rocketsim_source"),
    *("rocketsim_testing", "rocketsim_proto", "rocketmq_v2"),
)
SOURCES = ("broker_service", "rocketsim_cli", "rocketsim_client", "rocketsim_console", "rocketsim_source")
SOURCES += ("rocketsim_testing", "proto")
PAGES = (".html", ".css", ".js", ".svg")  # of the console
FILES = ("setup.py", "pyproject.toml", "pyspark_rocketsim.py", "LICENSE", "NOTICE")
FILES += ("MANIFEST.in", "README.md", "CHANGELOG.md")


def built(distribution: str, source: Path, folder: Path, **environment: str) -> Path:
    """Returns the file that setuptools builds when pip asks for an `sdist` or a `wheel`.  It is the same file whether
    the tests themselves run with the compiled record codec or without it.
    """
    code = f"from setuptools import build_meta; print(build_meta.build_{distribution}({str(folder)!r}))"
    environ = os.environ | {"ROCKETSIM_KERNELS": ""} | environment
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


class Environment:
    """A virtual environment with the wheel and nothing else; other packages are added by `run`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = folder / "source"
        for name in SOURCES:
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
            )
        for name in FILES:
            shutil.copy(ROOT / name, source / name)
        # The source distribution has the compiled sources even if it is made where nothing is compiled.
        self.sdist = built("sdist", source, folder, ROCKETSIM_KERNELS="python")
        (self.source,) = unpack(self.sdist, folder / "from-sdist").iterdir()
        self.wheel = built("wheel", self.source, folder)
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--no-input"]
        self.python = folder / "fresh" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "fresh"], check=True)
        install: list[str | Path] = [
            "--python",
            self.python,
            "install",
            "--no-deps",
            "--no-index",
            "--no-compile",
            self.wheel,
        ]
        subprocess.run([*pip, *install], check=True)
        self.has_kernels = any(name.endswith(".so") for name in zipfile.ZipFile(self.wheel).namelist())
        (metadata,) = folder.glob("fresh/lib/*/site-packages/*.dist-info")
        self.metadata = PathDistribution(metadata)

    def forget_compiled(self) -> None:
        """Removes the compiled files that the next build would reuse."""
        for suffix in ("o", "so"):
            for path in (self.source / "build").rglob(f"*.{suffix}"):
                path.unlink()

    def packages(self, *extras: str) -> Path:
        """Returns a folder with links to the packages that the wheel requires with these extras, and to those that they
        require.
        """
        folder = self.folder / "-".join(("packages", *extras))
        if not folder.exists():
            folder.mkdir()
            for one in closed(required(self.metadata, extras)):
                link(one, folder)
        return folder

    def run(self, *words: str, extras: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        without = ("PYTHON", "ROCKETSIM_KERNELS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        return subprocess.run(
            [self.python, *words],
            env=kept | {"PYTHONPATH": str(self.packages(*extras))},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def says(self, code: str, extras: tuple[str, ...] = ()) -> str:
        done = self.run("-c", code, extras=extras)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def required(one: Distribution, extras: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the names of what a distribution requires on this platform, by the rules for markers in pip's
    own library.
    """
    from pip._vendor.packaging.requirements import Requirement

    for text in one.requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield wanted.name


def closed(names: Iterator[str]) -> list[Distribution]:
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        if (name := re.sub("[-_.]+", "-", waiting.pop()).lower()) not in found:
            found[name] = distribution(name)
            waiting += required(found[name])
    return list(found.values())


def link(one: Distribution, folder: Path) -> None:
    for parts in {file.parts for file in one.files or () if ".." not in file.parts}:
        place = Path(str(one.locate_file(parts[0])))
        # Several distributions share a namespace package such as `google`.
        names = (
            parts[:2] if place.is_dir() and place.suffix == "" and not (place / "__init__.py").exists() else parts[:1]
        )
        target = folder.joinpath(*names)
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            target.symlink_to(str(one.locate_file("/".join(names))))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_every_module_and_marker_and_nothing_else_of_the_checkout(fresh):
    names = [name for name in zipfile.ZipFile(fresh.wheel).namelist() if ".dist-info/" not in name]
    with tarfile.open(fresh.sdist) as packed:
        assert not [name for name in packed.getnames() if "/tests" in name or "/benchmarks" in name]
    there = {
        str(path.relative_to(ROOT / "proto" if source == "proto" else ROOT))
        for source in SOURCES
        for path in (ROOT / source).rglob("*")
        if path.suffix in (".py", ".pyi", ".proto", ".typed", *PAGES) and "__pycache__" not in path.parts
    }
    kernels = {name for name in names if name.endswith(".so")}
    assert set(names) - kernels == there | {"pyspark_rocketsim.py"}
    assert {name.partition(".")[0] for name in kernels} <= {"rocketsim_proto/records/_kernels"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_wheel_is_compiled_where_a_compiler_is_installed(fresh):
    """The test run's own checkout was installed on the same machine, so the wheel is compiled if the checkout is."""
    assert fresh.has_kernels or kernels.compiled is None
    code = "from rocketsim_proto.records import kernels; print(kernels.in_use())"
    assert fresh.says(code) == ("compiled" if fresh.has_kernels else "python")


@pytest.mark.parametrize("lacking", [{"CC": "/bin/false"}, {"ROCKETSIM_KERNELS": "python"}], ids=["cc", "not wanted"])
def test_without_a_compiler_a_wheel_is_built_all_the_same(fresh, tmp_path, lacking):
    fresh.forget_compiled()
    wheel = built("wheel", fresh.source, tmp_path, **lacking)
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert wheel.name.endswith("-py3-none-any.whl") == ("CC" not in lacking)


def test_a_release_is_not_built_without_its_compiled_codec(fresh, tmp_path):
    fresh.forget_compiled()
    with pytest.raises(AssertionError, match="/bin/false"):
        built("wheel", fresh.source, tmp_path, ROCKETSIM_KERNELS="compiled", CC="/bin/false")


@pytest.mark.parametrize(
    "check", [("twine", "check", "--strict"), ("check_wheel_contents",)], ids=lambda check: check[0]
)
def test_a_package_index_takes_the_files(fresh, check):
    pytest.importorskip(check[0])
    files = [fresh.wheel] if check[0] == "check_wheel_contents" else [fresh.wheel, fresh.sdist]
    done = subprocess.run([sys.executable, "-m", *check, *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_description_leads_to_files_of_its_version(fresh):
    told = fresh.metadata.metadata
    assert told["Name"] == DISTRIBUTION
    assert re.search(rf"^## {re.escape(told['Version'])} - ", (ROOT / "CHANGELOG.md").read_text(), re.M)
    links = re.findall(r"\]\(([^)\s]+)\)", told.get_payload())
    assert len(links) > 20
    for link in links:
        place = re.match(rf"{told['Home-page']}/(blob|raw)/v{told['Version']}/([^#]+)", link)
        assert link.startswith("#") or (place and (ROOT / place[2]).exists()), link


def test_an_import_names_the_extra_that_it_lacks(fresh):
    """All imports run in one process, which has the packages of the base only."""
    code = """
import importlib
for word in "rocketsim_source rocketsim_console.app rocketsim_testing.pair broker_service.errors".split():
    module, _, name = word.partition(".")
    try:
        importlib.import_module(module)
        getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        print(error)
"""
    assert re.findall(r"^(\w+) is .*(pip .*)", fresh.says(code), re.M) == [
        ("pyspark", "pip install 'rocketsim[spark]'"),
        ("starlette", "pip install 'rocketsim[console]'"),
        ("typer", "pip install 'rocketsim[testing]'"),
        ("typer", "pip install 'rocketsim[cli]'"),
    ]


def test_a_producer_and_a_consumer_need_neither_extra(fresh):
    code = """
import sys
from rocketsim_client import Admin, Message, Producer, PullConsumer
import rocketsim_client
with Producer({address!r}) as producer:
    sent = producer.send(Message("T", b"from the wheel")).send_status.name
with PullConsumer({address!r}) as consumer:
    read = consumer.read("T", columns=["body"]).read_all().column("body").to_pylist()
print(sent, read == [b"from the wheel"], rocketsim_client.__file__)
for name in {absent!r}:
    assert name not in sys.modules, name
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name + " is there without its extra")
"""
    absent = ["pyspark", "pandas", "typer", "rich", "javaproperties", "psutil", "prometheus_client", "grpc_health"]
    with FakeCluster("T") as cluster:
        broker = cluster.start("broker-a")
        status, was_read, place = fresh.says(code.format(address=cluster.address, absent=absent)).split()
        assert (status, was_read) == ("SEND_OK", "True")
        assert Path(place).is_relative_to(fresh.folder / "fresh")
        assert sum(map(len, broker.store.queues.values())) == 1


def test_the_command_without_its_extra_says_what_to_install(fresh):
    done = fresh.run(str(fresh.python.parent / "rocketsim"), "--version")
    assert done.returncode == 1
    assert done.stderr == "rocketsim: typer is not installed; install it with: pip install 'rocketsim[cli]'\n"


def test_the_command_and_its_servers_need_only_their_extra(fresh):
    done = fresh.run(str(fresh.python.parent / "rocketsim"), "--version", extras=("cli",))
    kernels = "compiled" if fresh.has_kernels else "python"
    assert (done.stdout, done.returncode) == (f"rocketsim {fresh.metadata.version} (recordKernels={kernels})\n", 0)
    modules = "broker_service.node.app, broker_service.__main__, rocketsim_cli.servers"
    servers = f"import {modules}, sys; print('pyspark' in sys.modules)"
    assert fresh.says(servers, extras=("cli",)) == "False"
    demo = fresh.run(str(fresh.python.parent / "rocketsim"), "demo", extras=("cli",))
    assert "pip install 'rocketsim[spark]'" in demo.stderr
    assert demo.returncode == 1


def test_the_console_needs_only_its_extra(fresh):
    command = str(fresh.python.parent / "rocketsim")
    missing = fresh.run(command, "console", "-n", "127.0.0.1:1", extras=("cli",))
    assert "pip install 'rocketsim[console]'" in missing.stderr
    assert missing.returncode == 1
    code = "from rocketsim_console.app import STATIC; print((STATIC / 'pages' / 'overview.js').exists())"
    assert fresh.says(code, extras=("console",)) == "True"


@pytest.mark.long
def test_pip_installs_the_wheel_with_what_its_extras_need(fresh, tmp_path):
    """pip downloads everything as a user's first steps do: half a gigabyte, most of which is PySpark."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "installed"], check=True)
    pip = [tmp_path / "installed/bin/pip", "-q", "--disable-pip-version-check", "--no-input", "install"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    environ["PATH"] = f"{tmp_path / 'installed/bin'}:{environ['PATH']}"  # for Spark's workers
    run = functools.partial(subprocess.run, env=environ, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    run([*pip, fresh.wheel])
    run([*pip, f"{DISTRIBUTION}[cli,spark]"])  # the command that errors recommend, which keeps what is installed
    with rocketsim_testing.pair() as pair:
        words = ["doctor", "--spark", "--json", "-n", pair.name_server]
        said = run([tmp_path / "installed/bin/rocketsim", *words], check=False).stdout
    findings = [json.loads(line) for line in said.splitlines()]
    assert [one for one in findings if not one["ok"]] == []
    assert "sparkReads" in {one["check"] for one in findings}


@pytest.mark.long
def test_pyright_knows_the_types_of_what_is_installed(fresh, tmp_path):
    pytest.importorskip("pyright", reason="`./run dist` installs what this test needs")
    if shutil.which("node") is None:
        pytest.skip("pyright needs Node.js (node)")
    shutil.copytree(ROOT / "examples", tmp_path, dirs_exist_ok=True)
    (tmp_path / "wrong.py").write_text("from rocketsim_client import Producer\n\nProducer('a:1').send('a body')\n")
    packages = fresh.packages("spark", "dev")
    for one in closed(iter(["deltalake"])):  # an example needs it, and no extra
        link(one, packages)
    environ = os.environ | {"PYTHONPATH": str(packages)}
    command = [sys.executable, "-m", "pyright", "--level", "error", "--outputjson", "--pythonpath", fresh.python]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    (found,) = json.loads(done.stdout)["generalDiagnostics"]
    assert (Path(found["file"]).name, found["rule"]) == ("wrong.py", "reportArgumentType")


def test_pytest_finds_the_fixtures_with_their_extra(fresh, tmp_path):
    done = fresh.run("-m", "pytest", "--fixtures", "-q", str(tmp_path), extras=("testing",))
    assert "rocketsim_topic" in done.stdout, done.stderr
    assert "rocketsim_session_pair [session scope]" in done.stdout


def test_the_data_source_needs_only_its_extra(fresh):
    code = """
import importlib, pkgutil, rocketsim_source
from pyspark_rocketsim import DefaultSource
for module in pkgutil.walk_packages(rocketsim_source.__path__, "rocketsim_source."):
    importlib.import_module(module.name)
print(DefaultSource({"nameServer": "127.0.0.1:1", "topic": "T"}).schema().names[0])
"""
    assert fresh.says(code, extras=("spark",)) == "topic"
