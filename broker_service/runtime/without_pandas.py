"""Keeps pandas out of a server process.

Arrow looks for it when it makes its first array, and imports it where it is installed, as it is beside Spark: 0.4 s of
a broker's start, or of its first message, and 40 MB, for nothing that a server does.
"""

import sys
from collections.abc import Sequence
from types import ModuleType


class _NotHere:
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a server process does without pandas", name=name)


def leave_pandas_out() -> None:
    """From now on `import pandas` fails here as if it were not installed."""
    sys.meta_path.insert(0, _NotHere())
