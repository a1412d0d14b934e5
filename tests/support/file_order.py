"""Decides in which order several processes run the test files, so that files that compute run
beside files that wait.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

File = TypeVar("File")


class Load(Enum):
    """What a test file does for most of its time."""

    SESSION = "Spark in the process of the tests"
    SPARK = "Spark in other processes"
    SERVERS = "waits for servers that it starts"
    OTHER = "none of these"


def ordered(files: Mapping[File, Load], processes: int) -> list[File]:
    """Returns the files in order.  Every process begins with a Spark session, because it can safely fork a JVM only
    before it has used gRPC. The other files with Spark are spread evenly among the files that wait, so that few JVMs
    compete for the processors. All others follow.
    """

    def of(*loads: Load) -> list[File]:
        return [file for file, load in files.items() if load in loads]

    first = of(Load.SESSION)[:processes]
    spark = [file for file in of(Load.SESSION, Load.SPARK) if file not in first]
    return first + spread(spark, of(Load.SERVERS)) + of(Load.OTHER)


def spread(some: list[File], others: list[File]) -> list[File]:
    """Returns both lists merged, with an equal share of `others` after each of `some`.  Each list keeps its order."""
    if not some:
        return others
    shares = [len(others) * number // len(some) for number in range(len(some) + 1)]
    return [file for at, one in enumerate(some) for file in [one, *others[shares[at] : shares[at + 1]]]]
