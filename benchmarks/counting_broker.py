"""A broker that writes the number of its fdatasyncs to the file `fdatasyncs` beside its configuration file (8 bytes,
little-endian).

Start `python -m benchmarks.counting_broker broker -c FILE` instead of `python -m broker_service broker -c FILE`.
"""

import os
import sys
from pathlib import Path

from broker_service.__main__ import main


def count_in(path: Path) -> None:
    """Wraps os.fdatasync.  Must be called before other modules import os.fdatasync."""
    real = os.fdatasync
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.pwrite(file, bytes(8), 0)
    done = 0

    def fdatasync(fd: int) -> None:
        nonlocal done
        real(fd)
        done += 1
        os.pwrite(file, done.to_bytes(8, "little"), 0)

    os.fdatasync = fdatasync  # type: ignore[assignment]


if __name__ == "__main__":
    count_in(Path(sys.argv[sys.argv.index("-c") + 1]).with_name("fdatasyncs"))
    sys.exit(main())
