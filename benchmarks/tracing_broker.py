"""A broker that records, for timeline.py, when each put passes each step.

Start `python -m benchmarks.tracing_broker broker -c FILE` instead of `python -m broker_service broker -c FILE`.  The
tracing broker writes the file `trace` beside its configuration file.  Each line of the trace has the name of a step,
the log offset up to which puts have passed it, and the time in nanoseconds of the monotonic clock, which all processes
of a machine share.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker_service.__main__ import main
from broker_service.replication.acknowledgement import Acknowledgements
from broker_service.replication.follower import Follower
from broker_service.replication.transfer import Transfer

_now = time.monotonic_ns
Event = tuple[str, int, int]


def trace(note: Callable[[Event], None]) -> None:
    """Wraps each function of the broker through which a put goes.  If one of these functions was renamed, `trace`
    raises and the broker does not start.
    """
    wait, on_ack, on_flushed = Acknowledgements.wait, Acknowledgements.on_ack, Acknowledgements.on_flushed
    next_message, receive, ack = Transfer.next_message, Follower.receive, Follower.ack
    real = os.fdatasync

    async def traced_wait(self: Any, end_offset: int, timeout_s: float) -> Any:
        note(("appended", end_offset, _now()))
        try:
            return await wait(self, end_offset, timeout_s)
        finally:
            note(("answered", end_offset, _now()))

    def traced_next_message(self: Any, now: float) -> Any:
        before = self.sent_offset
        message = next_message(self, now)
        if self.sent_offset > before:
            note(("sent", self.sent_offset, _now()))
        return message

    def traced_on_ack(self: Any, slave: Any, ack_offset: int) -> None:
        note(("confirmed", ack_offset, _now()))
        on_ack(self, slave, ack_offset)

    def traced_on_flushed(self: Any, offset: int) -> None:
        note(("flushed", offset, _now()))
        on_flushed(self, offset)

    def traced_receive(self: Any, frame: Any, data: Any) -> None:
        end = frame.commit_log_offset + len(data)
        note(("received", end, _now()))
        receive(self, frame, data)
        note(("stored", end, _now()))

    def traced_ack(self: Any, flushed_offset: int) -> Any:
        made = ack(self, flushed_offset)
        note(("acknowledged", made.ack_offset, _now()))
        return made

    def traced_fdatasync(fd: int) -> None:
        note(("sync begins", 0, _now()))
        real(fd)
        note(("sync ends", 0, _now()))

    Acknowledgements.wait = traced_wait  # type: ignore[method-assign]
    Acknowledgements.on_ack = traced_on_ack  # type: ignore[method-assign]
    Acknowledgements.on_flushed = traced_on_flushed  # type: ignore[method-assign]
    Transfer.next_message = traced_next_message  # type: ignore[method-assign]
    Follower.receive = traced_receive  # type: ignore[method-assign]
    Follower.ack = traced_ack  # type: ignore[method-assign]
    os.fdatasync = traced_fdatasync  # type: ignore[assignment]


def write(path: Path, events: list[Event]) -> None:
    path.write_text("".join(f"{point}\t{offset}\t{at}\n" for point, offset, at in events))


if __name__ == "__main__":
    found: list[Event] = []
    trace(found.append)
    atexit.register(write, Path(sys.argv[sys.argv.index("-c") + 1]).with_name("trace"), found)
    sys.exit(main())
