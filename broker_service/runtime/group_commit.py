"""GroupCommit decides which calls are stored together: to store one call costs nearly as much as to store fifty."""

import asyncio
from collections.abc import Callable

QUIET_TURNS = 8  # turns of the event loop; gRPC delivers calls that arrived together within a few turns


class GroupCommit:
    """Groups the calls that come between two quiet periods.  A period is quiet if no call has come for QUIET_TURNS
    turns of the event loop.

    The caller stores a call at once if the call comes in a quiet period.  Later calls wait until the next quiet period
    begins; `commit` then stores them together.  A client that makes one call at a time therefore never waits, and calls
    that come close together are stored together.
    """

    def __init__(self, commit: Callable[[], None]) -> None:
        self._commit = commit
        self._turns = 0
        self._is_quiet = True

    def call_came(self) -> bool:
        """Records a call.  Returns True if the period before the call was quiet, so that the call is stored at once."""
        was_quiet, self._is_quiet = self._is_quiet, False
        self._turns = 0
        if was_quiet:
            asyncio.get_running_loop().call_soon(self._turn)
        return was_quiet

    def _turn(self) -> None:
        """Runs in each turn of the event loop until a quiet period begins."""
        if self._turns < QUIET_TURNS:
            self._turns += 1
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._is_quiet = True
            self._commit()
