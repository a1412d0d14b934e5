"""The access key (the user) and the secret key with which the command line signs its calls, for servers with access
control, and the security token of a cloud's temporary keys.

All users of the machine can see a command line, so there is no option for the secrets. They come from the environment
(`ROCKETSIM_ACCESS_KEY`, `ROCKETSIM_SECRET_KEY`, `ROCKETSIM_SECURITY_TOKEN`), or from a file like RocketMQ's
`tools.yml`, whose path is in `ROCKETSIM_TOOLS`:

    accessKey: admin
    secretKey: ...

The file may also have a line `securityToken: ...`. A token belongs to its keys, so all three come from the same place.
"""

import os
import re
import stat
import sys
from pathlib import Path
from typing import TypedDict

from rocketsim_cli.trouble import Trouble, WrongCommandLine

ACCESS_KEY, SECRET_KEY, TOOLS = "ROCKETSIM_ACCESS_KEY", "ROCKETSIM_SECRET_KEY", "ROCKETSIM_TOOLS"
SECURITY_TOKEN = "ROCKETSIM_SECURITY_TOKEN"
_LINE = re.compile(r"(accessKey|secretKey|securityToken)\s*:\s*(.*?)\s*")


class Keys(TypedDict):
    """Keyword arguments of `Connection.of`. Without keys, all three values are empty."""

    access_key: str
    secret_key: str
    security_token: str


def credentials() -> Keys:
    """Returns the keys from the environment, or else the keys from the file that ROCKETSIM_TOOLS names."""
    access_key, secret_key = os.environ.get(ACCESS_KEY, ""), os.environ.get(SECRET_KEY, "")
    token = os.environ.get(SECURITY_TOKEN, "")
    if not access_key and not secret_key and not token and (path := os.environ.get(TOOLS)):
        return of_file(Path(path))
    if bool(access_key) != bool(secret_key):
        raise WrongCommandLine(f"{SECRET_KEY if access_key else ACCESS_KEY} is not set: give both, or {TOOLS}=FILE")
    if token and not access_key:
        raise WrongCommandLine(
            f"{SECURITY_TOKEN} is set without the keys that it belongs to: set {ACCESS_KEY} and {SECRET_KEY}, too, "
            f"or unset {SECURITY_TOKEN} and write the token where its keys are ({TOOLS}=FILE, or a context)"
        )
    return Keys(access_key=access_key, secret_key=secret_key, security_token=token)


def where_from() -> str:
    """Returns a hint that is appended to the error of a server that has refused a call. The hint is empty if the user
    has given keys.
    """
    if any(map(os.environ.get, (ACCESS_KEY, SECRET_KEY, TOOLS))):
        return ""
    return f" The command line takes its keys from {ACCESS_KEY} and {SECRET_KEY}, or {TOOLS}=FILE."


def of_file(path: Path) -> Keys:
    """Reads `accessKey`, `secretKey` and, if the file has it, `securityToken` from a file of `name: value` lines. Lines
    with other names are ignored.
    """
    lines = path.read_text("utf-8").splitlines()
    warn_if_others_may_read(path)
    found = {match[1]: match[2].strip("\"'") for line in lines if (match := _LINE.fullmatch(line.strip()))}
    missing = [name for name in ("accessKey", "secretKey") if not found.get(name)]
    if missing:
        raise Trouble(f"{path}: no line `{missing[0]}: ...`")
    return Keys(
        access_key=found["accessKey"],
        secret_key=found["secretKey"],
        security_token=found.get("securityToken", ""),
    )


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
