"""Jars from Maven Central, fetched once into the user's cache directory.  Needs Maven."""

import os
import subprocess
from pathlib import Path


def fetch_jars(pom: Path, name: str) -> Path:
    """The directory, of this name, with the dependencies of a pom.xml.  The name has to have their version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = cache / "rocketsim-interop" / name
    done = jars / "complete"
    if not done.exists():
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={jars}"], check=True)
        done.touch()
    return jars
