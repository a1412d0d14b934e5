"""The loop of a load process: it reads commands, calls functions, and writes what they return.

The module uses only the standard library, because it also runs in the environment of the Python peers.
"""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., Mapping[str, Any]]


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """Parses a command: `pull topic=t count=5` becomes ("pull", {"topic": "t", "count": 5})."""
    word, *pairs = line.split()
    options: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        options[key] = int(value) if value.lstrip("-").isdigit() else value
    return word, options


def serve(commands: Mapping[str, Command]) -> None:
    """Answers commands until the input ends.  A failure is an answer; its traceback goes to standard error."""
    for line in sys.stdin:
        if not line.strip():
            continue
        word, options = parsed(line)
        try:
            answer = dict(commands[word](**options))
        except Exception as error:  # the harness decides what a failed command means
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
