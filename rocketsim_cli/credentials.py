"""Whose calls the command line makes, for servers with access control.

A secret has no place on a command line, where all users of the machine see it: it comes from the environment
(`ROCKETSIM_ACCESS_KEY`, `ROCKETSIM_SECRET_KEY`) or from a file as RocketMQ's `tools.yml`, which `ROCKETSIM_TOOLS`
names:

    accessKey: admin
    secretKey: ...
"""

import os
import re
import stat
import sys
from pathlib import Path
from typing import TypedDict

from rocketsim_cli.trouble import Trouble, WrongCommandLine

ACCESS_KEY, SECRET_KEY, TOOLS = "ROCKETSIM_ACCESS_KEY", "ROCKETSIM_SECRET_KEY", "ROCKETSIM_TOOLS"
_LINE = re.compile(r"(accessKey|secretKey)\s*:\s*(.*?)\s*")


class Keys(TypedDict):
    """What each client of `rocketsim_client` takes; empty without access control."""

    access_key: str
    secret_key: str


def credentials() -> Keys:
    """The environment goes before the file."""
    access_key, secret_key = os.environ.get(ACCESS_KEY, ""), os.environ.get(SECRET_KEY, "")
    if not access_key and not secret_key and (path := os.environ.get(TOOLS)):
        return of_file(Path(path))
    if bool(access_key) != bool(secret_key):
        raise WrongCommandLine(f"{SECRET_KEY if access_key else ACCESS_KEY} is not set: give both, or {TOOLS}=FILE")
    return Keys(access_key=access_key, secret_key=secret_key)


def where_from() -> str:
    """For whom a server has refused; empty if keys are given."""
    if any(map(os.environ.get, (ACCESS_KEY, SECRET_KEY, TOOLS))):
        return ""
    return f" The command line has its keys from {ACCESS_KEY} and {SECRET_KEY}, or {TOOLS}=FILE."


def of_file(path: Path) -> Keys:
    """`accessKey` and `secretKey` of a file of `name: value` lines; other names are RocketMQ's and pass."""
    lines = path.read_text("utf-8").splitlines()
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        print(f"rocketsim: {path}: others may read it; chmod 600 keeps its secret", file=sys.stderr)
    found = {match[1]: match[2].strip("\"'") for line in lines if (match := _LINE.fullmatch(line.strip()))}
    missing = [name for name in ("accessKey", "secretKey") if not found.get(name)]
    if missing:
        raise Trouble(f"{path}: no line `{missing[0]}: ...`")
    return Keys(access_key=found["accessKey"], secret_key=found["secretKey"])


def password(given: str) -> str:
    """As it was given; `-`: the first line of standard input."""
    if given != "-":
        return given
    return sys.stdin.readline().rstrip("\n")
