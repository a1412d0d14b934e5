"""The order in which test files run in several processes: what uses the processors beside what waits."""

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
    """Every process begins with a session: until it has used gRPC it forks a JVM safely. The rest of Spark is spread
    evenly among the files that wait, so that few JVMs compete for the processors. Everything else follows."""

    def of(*loads: Load) -> list[File]:
        return [file for file, load in files.items() if load in loads]

    first = of(Load.SESSION)[:processes]
    spark = [file for file in of(Load.SESSION, Load.SPARK) if file not in first]
    return first + spread(spark, of(Load.SERVERS)) + of(Load.OTHER)


def spread(some: list[File], others: list[File]) -> list[File]:
    """One of `some`, its share of `others`, the next of `some`, and so on; both keep their order."""
    if not some:
        return others
    shares = [len(others) * number // len(some) for number in range(len(some) + 1)]
    return [file for at, one in enumerate(some) for file in [one, *others[shares[at] : shares[at + 1]]]]
