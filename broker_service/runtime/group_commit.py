"""GroupCommit: which calls are stored together, because storing costs nearly the same for one as for fifty."""

import asyncio
from collections.abc import Callable

QUIET_TURNS = 8  # of the event loop: gRPC hands over calls that have come together a few turns apart


class GroupCommit:
    """A call that comes while it is quiet is stored at once.  Calls that come within some turns after it wait until no
    call has come for QUIET_TURNS.  So one client's blocking calls never wait, and many in flight are stored together.

    `commit` is called when it has become quiet again; it stores the calls that wait.
    """

    def __init__(self, commit: Callable[[], None]) -> None:
        self._commit = commit
        self._turns = 0
        self._is_quiet = True

    def call_came(self) -> bool:
        """Whether it was quiet before."""
        was_quiet, self._is_quiet = self._is_quiet, False
        self._turns = 0
        if was_quiet:
            asyncio.get_running_loop().call_soon(self._turn)
        return was_quiet

    def _turn(self) -> None:
        """Runs in each turn of the loop until it is quiet."""
        if self._turns < QUIET_TURNS:
            self._turns += 1
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._is_quiet = True
            self._commit()
