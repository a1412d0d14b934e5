"""Runs a client in a process of its own, until its standard input ends.  The client prints a line for each event."""

import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


class Program:
    """A running client.  `lines` are the lines that the client has printed so far.  A file in `home` has the client's
    standard error.
    """

    def __init__(self, home: Path, command: Sequence[str], name: str = "program") -> None:
        self._errors = (home / f"{name}.errors").open("a+")
        self.process = subprocess.Popen(
            command,
            env=os.environ | {"HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> list[str]:
        """Ends the program's input, and returns all lines that it has printed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._reading.join()
        assert self.process.wait() == 0, self.errors()
        return self.lines

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self._reading.join()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self._errors.close()
