"""`./run` on machines that lack something: fake python, java, apt and sudo in an otherwise empty PATH."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "run"
TOOLS = "basename cat chmod cksum cmp cp dirname env head id ln mkdir mktemp mv rm sed sh".split()

GOOD_PYTHON = """#!/bin/sh
case "$*" in
*" venv --clear "*)
    mkdir -p .venv/bin
    for name in python pip rocketsim; do cp "$0" .venv/bin/$name; done ;;
esac
echo "${0##*/} $*" >>"$CALLS"
"""
TEST = "python -m pytest -m not long -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0"
# Further lines for GOOD_PYTHON, which then answers questions of `./run`.
NAMES_ITS_HEADERS = 'case "$*" in *python%d.%d*) echo python3.12-dev ;; esac\n'
HAS_NO_HEADERS = 'case "$*" in *Python.h*) exit 1 ;; esac\n'
HAS_NO_CODEC = 'case "$*" in *in_use*) echo python ;; esac\n'
OLD_PYTHON = "#!/bin/sh\nexit 1\n"
JAVA = "#!/bin/sh\necho 'openjdk version \"%s\" 2025-04-15' >&2\n"


class Machine:
    """A folder with a copy of the project's top-level files, and a PATH of its own."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.project, self.calls_path = folder / "bin", folder / "project", folder / "calls"
        self.bin.mkdir()
        self.project.mkdir()
        self.calls_path.touch()
        shutil.copy(RUN, self.project / "run")
        (self.project / "requirements.txt").write_text("grpcio==1\nsetuptools==84\n")
        (self.project / "setup.py").write_text("setup()\n")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or "/bin/false")

    def has(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def has_apt_that_installs(self, package: str, name: str, script: str) -> None:
        """Adds a fake apt-get, whose `install PACKAGE` makes a program appear."""
        shelf = self.bin.parent / f"shelf-{name}"
        shelf.write_text(script)
        shelf.chmod(0o755)
        self.has("apt-cache", f'#!/bin/sh\n[ "$2" != {package} ] || echo "Package: $2"\n')
        self.has(
            "apt-get",
            '#!/bin/sh\necho "apt-get $*" >>"$CALLS"\n'
            f'case "$*" in *{package}*) cp {shelf} {self.bin}/{name} ;; esac\n',
        )

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {"PATH": str(self.bin), "CALLS": str(self.calls_path), "HOME": str(self.bin.parent)}
        return subprocess.run(
            [str(self.project / "run"), *words],
            env=kept | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def calls(self) -> str:
        return self.calls_path.read_text()


@pytest.fixture
def machine(tmp_path):
    # The script also looks where packages install Java, and would find an installed one there.
    text = RUN.read_text()
    machine = Machine(tmp_path)
    (machine.project / "run").write_text(text.replace("/usr/lib/jvm/", "/nowhere/"))
    return machine


def test_with_everything_there_it_makes_the_environment_and_does_the_word(machine):
    machine.has("python3", GOOD_PYTHON)
    machine.has("java", JAVA % "17.0.15")
    done = machine.run("demo", "--quick")
    assert done.returncode == 0, done.stderr
    assert "python3 -m venv --clear .venv" in machine.calls()
    assert "python -m pip install -q --disable-pip-version-check --no-compile setuptools==84\n" in machine.calls()
    assert "--no-build-isolation -r requirements.txt\n" in machine.calls()
    assert machine.calls().endswith("rocketsim demo --quick\n")


def test_the_second_time_it_installs_nothing_until_the_pins_change(machine):
    machine.has("python3", GOOD_PYTHON)
    machine.has("java", JAVA % "21")
    assert machine.run("setup").returncode == 0
    machine.calls_path.write_text("")
    assert machine.run("setup").returncode == 0
    assert "install" not in machine.calls()
    (machine.project / "requirements.txt").write_text("grpcio==2\n")
    assert machine.run("setup").returncode == 0
    assert "pip install" in machine.calls()
    assert "-m venv" not in machine.calls()


def test_an_installation_that_fails_stops_everything_and_is_tried_again(machine):
    machine.has("python3", GOOD_PYTHON.replace("echo", 'case "$*" in *requirements.txt*) exit 7 ;; esac\necho'))
    machine.has("java", JAVA % "17")
    assert machine.run("demo").returncode == 7
    assert "rocketsim demo" not in machine.calls()
    assert machine.run("demo").returncode == 7


def test_without_python_and_apt_it_says_what_to_install(machine):
    machine.has("java", JAVA % "17")
    done = machine.run("setup")
    assert done.returncode == 1
    assert "Python 3.11 to 3.14 with its venv module is needed" in done.stderr
    for command in (
        "sudo apt-get install python3 python3-venv",
        "dnf install",
        "brew install python@3.12",
        "PYTHON=/path",
    ):
        assert command in done.stderr


def test_a_python_that_is_too_old_or_has_no_venv_is_not_used(machine):
    machine.has("python3", OLD_PYTHON)
    machine.has("java", JAVA % "17")
    assert "Python 3.11 to 3.14" in machine.run("setup").stderr
    machine.has("python3.12", GOOD_PYTHON)
    assert machine.run("setup").returncode == 0
    assert "python3.12 -m venv" in machine.calls()


def test_the_python_that_is_asked_for_is_taken(machine):
    machine.has("python3", GOOD_PYTHON)
    machine.has("mine", GOOD_PYTHON)
    machine.has("java", JAVA % "17")
    assert machine.run("setup", PYTHON=str(machine.bin / "mine")).returncode == 0
    assert "mine -m venv" in machine.calls()


def test_as_root_with_apt_the_missing_python_is_installed(machine):
    machine.has("id", "#!/bin/sh\necho 0\n")
    machine.has("java", JAVA % "17")
    machine.has_apt_that_installs("python3-venv", "python3", GOOD_PYTHON)
    done = machine.run("setup")
    assert done.returncode == 0, done.stderr
    assert "apt-get install -y -q --no-install-recommends python3 python3-venv" in machine.calls()


def test_with_an_older_python3_the_newer_package_is_installed_beside_it(machine):
    machine.has("id", "#!/bin/sh\necho 0\n")
    machine.has("python3", OLD_PYTHON)
    machine.has("java", JAVA % "17")
    machine.has_apt_that_installs("python3.11-venv", "python3.11", GOOD_PYTHON)
    done = machine.run("setup")
    assert done.returncode == 0, done.stderr
    assert "python3.11 -m venv" in machine.calls()


def test_with_sudo_and_apt_the_missing_java_is_installed(machine):
    machine.has("id", "#!/bin/sh\necho 1000\n")
    machine.has("sudo", '#!/bin/sh\necho "sudo $*" >>"$CALLS"\nexec "$@"\n')
    machine.has("python3", GOOD_PYTHON)
    machine.has_apt_that_installs("openjdk-17-jre-headless", "java", JAVA % "17")
    done = machine.run("test")
    assert done.returncode == 0, done.stderr
    assert "sudo env DEBIAN_FRONTEND=noninteractive apt-get install" in machine.calls()
    assert machine.calls().endswith(f"{TEST}\n")


def test_as_root_with_apt_the_missing_compiler_is_installed_before_the_package(machine):
    machine.has("id", "#!/bin/sh\necho 0\n")
    machine.has("python3", GOOD_PYTHON + NAMES_ITS_HEADERS)
    machine.has("java", JAVA % "17")
    machine.has_apt_that_installs("gcc", "cc", "#!/bin/sh\n")
    done = machine.run("setup")
    assert done.returncode == 0, done.stderr
    before, installs, after = machine.calls().partition(
        "apt-get install -y -q --no-install-recommends gcc libc6-dev python3.12-dev\n"
    )
    assert "--no-build-isolation -r requirements.txt\n" in before
    assert installs
    assert "--no-deps --no-build-isolation -e .\n" in after
    assert "a C compiler" not in done.stderr


def test_the_compiler_is_installed_alone_if_apt_has_no_package_of_pythons_headers(machine):
    machine.has("id", "#!/bin/sh\necho 0\n")
    machine.has("python3", GOOD_PYTHON + NAMES_ITS_HEADERS)
    machine.has("java", JAVA % "17")
    machine.has_apt_that_installs("gcc", "cc", "#!/bin/sh\n")
    apt_get = (machine.bin / "apt-get").read_text()
    machine.has("apt-get", apt_get.replace("*gcc*)", "*python3.12-dev*) exit 100 ;; *gcc*)"))
    done = machine.run("setup")
    assert done.returncode == 0, done.stderr
    assert "--no-install-recommends gcc libc6-dev\n" in machine.calls()
    assert "a C compiler" not in done.stderr


@pytest.mark.parametrize(("compiler", "python"), [(False, GOOD_PYTHON), (True, GOOD_PYTHON + HAS_NO_HEADERS)])
def test_without_a_compiler_or_headers_and_apt_it_goes_on_and_says_what_to_install(machine, compiler, python):
    machine.has("python3", python + HAS_NO_CODEC)
    machine.has("java", JAVA % "17")
    if compiler:
        machine.has("cc", "#!/bin/sh\n")
    done = machine.run("setup")
    assert done.returncode == 0, done.stderr
    assert "a C compiler and Python's headers were not found. They are optional" in done.stderr
    for command in ("sudo apt-get install gcc python3-dev", "dnf install gcc python3-devel", "xcode-select --install"):
        assert command in done.stderr
    assert "--no-deps --no-build-isolation -e .\n" in machine.calls()
    assert "the record codec is not compiled: everything works" in done.stderr


@pytest.mark.parametrize("wanted", ["", "python"])
def test_no_compiler_is_installed_if_there_is_one_or_the_codec_in_python_is_asked_for(machine, wanted):
    machine.has("id", "#!/bin/sh\necho 0\n")
    machine.has("python3", GOOD_PYTHON)
    machine.has("java", JAVA % "17")
    machine.has_apt_that_installs("gcc", "cc", "#!/bin/sh\n")
    if not wanted:
        machine.has("cc", "#!/bin/sh\n")
    done = machine.run("setup", ROCKETSIM_KERNELS=wanted)
    assert done.returncode == 0, done.stderr
    assert "apt-get" not in machine.calls()
    assert "a C compiler" not in done.stderr


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2"])
def test_an_old_java_is_not_used_and_without_root_or_sudo_run_says_what_to_install(machine, version):
    machine.has("id", "#!/bin/sh\necho 1000\n")
    machine.has("apt-get", "#!/bin/sh\nexit 1\n")
    machine.has("python3", GOOD_PYTHON)
    machine.has("java", JAVA % version)
    done = machine.run("demo")
    assert done.returncode == 1
    assert "Java 17 or newer is needed" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr
    assert "rocketsim demo" not in machine.calls()


def test_checking_needs_no_java(machine):
    machine.has("python3", GOOD_PYTHON)
    assert "Java" not in machine.run("check").stderr


def test_long_tests_are_chosen_by_one_word_and_the_rest_goes_to_pytest(machine):
    machine.has("python3", GOOD_PYTHON)
    machine.has("java", JAVA % "17")
    machine.run("test", "--long", "-x")
    assert machine.calls().endswith("python -m pytest -m long -o faulthandler_timeout=7200 -x\n")
    machine.run("test", "--clients", "-x")
    assert machine.calls().endswith("python -m pytest -m clients -o faulthandler_timeout=7200 -x\n")
    machine.has("chromium", "#!/bin/sh\n")
    machine.run("test", "--browser", "-x")
    assert machine.calls().endswith("python -m pytest -m browser -x\n")
    machine.run("test", "tests/store", "-k", "a b")
    assert machine.calls().endswith(f"{TEST} tests/store -k a b\n")


def test_the_tests_run_without_the_compiled_codec_which_stays_installed(machine):
    machine.has("python3", GOOD_PYTHON.replace("${0##*/}", "codec=${ROCKETSIM_KERNELS:-any} ${0##*/}"))
    machine.has("java", JAVA % "17")
    machine.run("test", "--python-codec", "tests/store")
    assert "codec=any python -m pip install -q --disable-pip-version-check --no-compile --no-deps" in machine.calls()
    assert machine.calls().endswith(f"codec=python {TEST} tests/store\n")
    machine.run("test", "--python-codec", "--long", "-x")
    assert machine.calls().endswith("codec=python python -m pytest -m long -o faulthandler_timeout=7200 -x\n")
    machine.run("test", "tests/store")
    assert machine.calls().endswith(f"codec=any {TEST} tests/store\n")


def test_the_browser_that_its_tests_need_is_installed_or_named(machine):
    machine.has("python3", GOOD_PYTHON)
    machine.has("java", JAVA % "17")
    machine.has("id", "#!/bin/sh\necho 1000\n")
    failed = machine.run("test", "--browser")
    assert failed.returncode == 1 and "apt-get install chromium" in failed.stderr
    assert "pytest" not in machine.calls()
    machine.has("id", "#!/bin/sh\necho 0\n")
    machine.has_apt_that_installs("chromium", "chromium", "#!/bin/sh\n")
    assert machine.run("test", "--browser").returncode == 0
    assert "--no-install-recommends chromium" in machine.calls()
    assert machine.calls().endswith("python -m pytest -m browser\n")


# What is planted, and what the run says about it.  Beside the planted test are enough passing tests that pytest-xdist
# hands out more of them.
DISASTERS = {
    "a test that crashes": ("def test_planted():\n    ctypes.string_at(0)\n", "crashed while running"),
    "a test that hangs": ("def test_planted():\n    threading.Event().wait()\n", "Timeout (0:00:02)!"),
    "a process that hangs before its first test": (
        "if worker == 'gw1':\n    threading.Event().wait()\n",
        "Timeout (0:00:03)!",
    ),
    "a process that crashes after its last test": (
        "class Crash:\n    def pytest_sessionfinish(self):\n        os._exit(0)\n"
        "def test_planted(request):\n    request.config.pluginmanager.register(Crash())\n",
        "Not properly terminated",
    ),
}


@pytest.mark.parametrize("disaster", DISASTERS)
def test_a_run_of_the_tests_ends_by_itself_with_a_failure_and_says_why(tmp_path, disaster):
    planted, said = DISASTERS[disaster]
    ours = ("run", "requirements.txt", "setup.py", "pyproject.toml", "tests/conftest.py")
    imported = ("tests/support/file_order.py", "tests/support/watchdog.py", "testbed/spark_processes.py")
    for name in (*ours, *imported):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(RUN.parent / name, tmp_path / name)
    (tmp_path / "proto").mkdir()
    (tmp_path / "tests/test_planted.py").write_text(
        "import ctypes, os, threading\nworker = os.environ.get('PYTEST_XDIST_WORKER')\n"
        f"def test_before():\n    pass\n{planted}"
    )
    for number in range(6):
        (tmp_path / f"tests/test_{number}.py").write_text("def test_a():\n    pass\ndef test_b():\n    pass\n")
    # The planted project uses this project's environment.
    environment = tmp_path / ".venv"
    environment.mkdir()
    for part in Path(sys.prefix).iterdir():
        if part.name != "set-up-for":
            (environment / part.name).symlink_to(part)
    kernels = "cat proto/rocketsim_proto/records/_* 2>/dev/null | cksum"
    wanted = ["sh", "-c", f"cksum <requirements.txt; cksum <setup.py; {kernels}; pwd"]
    (environment / "set-up-for").write_bytes(subprocess.check_output(wanted, cwd=tmp_path))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    patience = {"a test that hangs": "faulthandler_timeout=2"}.get(disaster, "faulthandler_timeout=200")
    watchdog = {"a process that hangs before its first test": "watchdog_timeout=3"}.get(
        disaster, "watchdog_timeout=240"
    )
    done = subprocess.run(
        [tmp_path / "run", "test", "-p", "no:cacheprovider", "-o", patience, "-o", watchdog],
        env=kept,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    # the run failed neither for a wrong word nor for want of tests
    assert done.returncode not in (0, 2, 4, 5), done.stdout
    assert said in done.stdout + done.stderr


def test_an_unknown_word_lists_the_known_ones_and_changes_nothing(machine):
    done = machine.run("tset")
    assert done.returncode == 2
    assert "./run test" in done.stderr
    assert not (machine.project / ".venv").exists()


def test_ci_and_run_are_clean_shell():
    """The strictest shell at hand parses the scripts, and shellcheck checks them where it is installed."""
    for path, shell in ((RUN, "dash"), (RUN.parent / ".ci/run", "bash")):
        assert os.access(path, os.X_OK)
        subprocess.run([shutil.which(shell) or "sh", "-n", path], check=True)
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", path], check=True)
