"""Fetches jars from Maven Central once into the user's cache directory.  Needs Maven."""

import os
import subprocess
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Returns a folder of the cache.  The name must include the version of the jars, because they are fetched only
    once.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "rocketsim-interop" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch_jars(pom: Path, name: str, **properties: str) -> Path:
    """Fetches the dependencies of a pom.xml, with these Maven properties, into the folder with this name.  Returns the
    folder.
    """
    jars = cache_folder(name)
    done = jars / "complete"
    if not done.exists():
        command = ["mvn", "-q", "-B", "-f", str(pom), *(f"-D{key}={value}" for key, value in properties.items())]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        subprocess.run(command, check=True)
        done.touch()
    return jars
