"""Fetches the peers' jars from Maven Central, once, into the user's cache directory."""

from pathlib import Path

from benchmarks.bench import Unavailable
from testbed.jars import NotFetched, fetch_jars

HERE = Path(__file__).parent


def jars(pom: str, profile: str, name: str) -> Path:
    """Returns the folder with the jars of a profile of benchmarks/peers/POM."""
    try:
        return fetch_jars(HERE / pom, name, profile)
    except NotFetched as error:
        raise Unavailable(str(error)) from None
