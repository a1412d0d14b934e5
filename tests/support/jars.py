"""Jars from Maven Central, fetched once into the user's cache directory.  Needs Maven."""

import os
import subprocess
from pathlib import Path


def cache_folder(name: str) -> Path:
    """For what is fetched once; the name has to have its version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "rocketsim-interop" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch_jars(pom: Path, name: str) -> Path:
    """The directory, of this name, with the dependencies of a pom.xml."""
    jars = cache_folder(name)
    done = jars / "complete"
    if not done.exists():
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={jars}"], check=True)
        done.touch()
    return jars
