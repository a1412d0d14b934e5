"""A broker whose flush thread hangs in `fdatasync` while the file `the-disk-stalls` exists beside FILE.

`python -m tests.support.stalling_disk broker -c FILE` starts this broker.
"""

import os
import sys
import threading
from pathlib import Path

from broker_service import __main__ as process
from broker_service.runtime import deadlines
from testbed.polling import wait_until

GATE = "the-disk-stalls"
FOR_EVER_S = 600.0


def main() -> int:
    gate = Path(sys.argv[sys.argv.index("-c") + 1]).with_name(GATE)
    fdatasync = os.fdatasync

    def stalling(handle: int) -> None:
        if threading.current_thread().name == "flush":
            wait_until(lambda: not gate.exists(), "the disk goes on", FOR_EVER_S)
        fdatasync(handle)

    os.fdatasync = stalling
    # A call waits for only a tenth of its caller's time, so that the answer arrives in time on a busy machine, too.
    deadlines.ANSWER_SHARE, deadlines.ANSWER_MAX_S = 0.9, deadlines.NO_DEADLINE_S
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
