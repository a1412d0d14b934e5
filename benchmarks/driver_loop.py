"""The main loop of a load process, which reads commands, calls functions, and writes what they return.

This module uses only the standard library, because the Python peers run it in an environment of their own.
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
    """Answers commands until the input ends.  If a command fails, the answer has the error, and the traceback goes to
    standard error.
    """
    for line in sys.stdin:
        if not line.strip():
            continue
        word, options = parsed(line)
        try:
            answer = dict(commands[word](**options))
        except Exception as error:  # the harness decides what the error of a command means
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
