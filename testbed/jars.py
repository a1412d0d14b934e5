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


def fetch_jars(pom: Path, name: str, **properties: str) -> Path:
    """The directory, of this name, with the dependencies of a pom.xml, with these properties of Maven."""
    jars = cache_folder(name)
    done = jars / "complete"
    if not done.exists():
        command = ["mvn", "-q", "-B", "-f", str(pom), *(f"-D{key}={value}" for key, value in properties.items())]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        subprocess.run(command, check=True)
        done.touch()
    return jars
