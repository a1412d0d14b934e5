"""Fetches jars from Maven Central once into the user's cache directory.  Needs Maven."""

import os
import subprocess
from pathlib import Path

FETCH_TIMEOUT_S = 900


class NotFetched(Exception):
    """Maven did not fetch some jars.  The message says why."""


def cache_folder(name: str) -> Path:
    """Returns a folder of the cache.  The name must include the version of its content, because a folder that is
    complete is never fetched again.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "rocketsim-interop" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch_jars(pom: Path, name: str, *profiles: str, **properties: str) -> Path:
    """Fetches the dependencies of a pom.xml, with these profiles and properties of Maven, into the folder with this
    name.  Returns the folder.
    """
    jars = cache_folder(name)
    done = jars / "complete"
    if not done.exists():
        command = ["mvn", "-q", "-B", "-f", str(pom), *(f"-P{profile}" for profile in profiles)]
        command += [f"-D{key}={value}" for key, value in properties.items()]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except FileNotFoundError:
            raise NotFetched("Maven (mvn) is not installed") from None
        except subprocess.TimeoutExpired:
            raise NotFetched(f"Maven did not fetch {name} in {FETCH_TIMEOUT_S} s") from None
        if ended.returncode:
            lines = [line for line in ended.stdout.splitlines() if "ERROR" in line]
            raise NotFetched(f"Maven did not fetch {name}: {lines[0] if lines else f'status {ended.returncode}'}")
        done.touch()
    return jars
