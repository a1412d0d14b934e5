"""Downloads jars from Maven once, by their coordinates, into the user's cache directory."""

import os
import subprocess
from pathlib import Path

from benchmarks.bench import Unavailable

HERE = Path(__file__).parent
FETCH_TIMEOUT_S = 900


def cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rocketsim-bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def jars(pom: str, profile: str, name: str) -> Path:
    """Returns the folder with the jars that a profile of benchmarks/peers/POM names, and downloads them if they are
    missing.
    """
    folder = cache() / name
    done = folder / "complete"
    if not done.exists():
        command = ["mvn", "-q", "-B", "-f", str(HERE / pom), f"-P{profile}", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except FileNotFoundError:
            raise Unavailable("Maven (mvn) is not installed") from None
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Maven did not fetch {name} in {FETCH_TIMEOUT_S} s") from None
        if ended.returncode:
            lines = [line for line in ended.stdout.splitlines() if "ERROR" in line]
            raise Unavailable(f"Maven did not fetch {name}: {lines[0] if lines else 'status ' + str(ended.returncode)}")
        done.touch()
    return folder
