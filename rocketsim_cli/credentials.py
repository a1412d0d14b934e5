"""The access key (the user) and the secret key with which the command line signs its calls, for servers with access
control.

All users of the machine can see a command line, so there is no option for the secret. The keys come from the
environment (`ROCKETSIM_ACCESS_KEY`, `ROCKETSIM_SECRET_KEY`), or from a file like RocketMQ's `tools.yml`, whose path is
in `ROCKETSIM_TOOLS`:

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
    """Keyword arguments that each client of `rocketsim_client` takes. Without keys, both values are empty."""

    access_key: str
    secret_key: str


def credentials() -> Keys:
    """Returns the keys from the environment, or else the keys from the file that ROCKETSIM_TOOLS names."""
    access_key, secret_key = os.environ.get(ACCESS_KEY, ""), os.environ.get(SECRET_KEY, "")
    if not access_key and not secret_key and (path := os.environ.get(TOOLS)):
        return of_file(Path(path))
    if bool(access_key) != bool(secret_key):
        raise WrongCommandLine(f"{SECRET_KEY if access_key else ACCESS_KEY} is not set: give both, or {TOOLS}=FILE")
    return Keys(access_key=access_key, secret_key=secret_key)


def where_from() -> str:
    """Returns a hint that is appended to the error of a server that has refused a call. The hint is empty if the user
    has given keys.
    """
    if any(map(os.environ.get, (ACCESS_KEY, SECRET_KEY, TOOLS))):
        return ""
    return f" The command line takes its keys from {ACCESS_KEY} and {SECRET_KEY}, or {TOOLS}=FILE."


def of_file(path: Path) -> Keys:
    """Reads `accessKey` and `secretKey` from a file of `name: value` lines. Lines with other names are ignored."""
    lines = path.read_text("utf-8").splitlines()
    warn_if_others_may_read(path)
    found = {match[1]: match[2].strip("\"'") for line in lines if (match := _LINE.fullmatch(line.strip()))}
    missing = [name for name in ("accessKey", "secretKey") if not found.get(name)]
    if missing:
        raise Trouble(f"{path}: no line `{missing[0]}: ...`")
    return Keys(access_key=found["accessKey"], secret_key=found["secretKey"])


def warn_if_others_may_read(path: Path) -> None:
    """Prints a warning on standard error if the group or all users may read this file with a secret."""
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        print(
            f"rocketsim: {path}: other users may read the secret in this file; `chmod 600` prevents that",
            file=sys.stderr,
        )


def password(given: str) -> str:
    """Returns the given password, or the first line of standard input if `-` is given."""
    if given != "-":
        return given
    return sys.stdin.readline().rstrip("\n")
