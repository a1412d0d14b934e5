"""`format("rocketsim-late")`: the source, with commits that reach a broker only after Spark has told the reader's
process to end.  If the process does not wait for a commit, the commit is therefore always lost, not only sometimes.
"""

import fcntl
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rocketsim_source.commits import termination
from rocketsim_source.commits.committer import Committer
from rocketsim_source.data_source import RocketSimDataSource
from rocketsim_source.source_cluster import ClientCluster

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

LATE_S = 0.5
# With a planted bug, nothing waits for the commit, and the commit must not finish while the process is still ending.
LATE_WITH_BUG_S = 20.0
HELD = "heldwhilealive"  # the option with the path of a file that the reader's process locks while it lives
BUG = "bug"  # the option with the bug to plant in the reader's process
BUGS = ["SIGTERM ends it", "what is under way is forgotten"]


class LateCommits(RocketSimDataSource):
    @classmethod
    def name(cls) -> str:
        return "rocketsim-late"

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        if termination.is_stream_runner():
            hold(self.options[HELD])
            commit_late(self.options.get(BUG))
        return super().streamReader(schema)

    def _given(self) -> Mapping[str, str]:
        return {name: value for name, value in self.options.items() if name not in (HELD, BUG)}


def hold(path: str) -> None:
    file = open(path, "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    globals()["held"] = file


def is_held(path: str) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def commit_late(bug: str | None) -> None:
    told_to_end, under_way = threading.Event(), threading.Event()
    close, commit = Committer.close, ClientCluster.commit

    def closing(self: Committer, timeout_s: float) -> None:
        if bug:  # the bugs lose only commits that have begun, and SIGTERM could come before that
            under_way.wait(timeout_s)
        told_to_end.set()
        close(self, timeout_s)

    def late(self: ClientCluster, *args: Any) -> Any:
        under_way.set()
        told_to_end.wait()
        time.sleep(LATE_WITH_BUG_S if bug else LATE_S)
        return commit(self, *args)

    Committer.close = closing  # type: ignore[method-assign]
    ClientCluster.commit = late  # type: ignore[method-assign]
    if bug == "SIGTERM ends it":
        termination.is_stream_runner = lambda: False
    if bug == "what is under way is forgotten":
        Committer._is_pending = lambda self: self._ledger.dirty  # type: ignore[method-assign]
