"""Keeps pandas out of a server process.

Arrow imports pandas with its first array if pandas is installed, as it is beside Spark.  That import would take 0.4 s
of a broker's start or of its first message, and 40 MB, and no server process uses pandas.
"""

import sys
from collections.abc import Sequence
from types import ModuleType


class _PandasBlocker:
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a server process does without pandas", name=name)


def leave_pandas_out() -> None:
    """Makes every later `import pandas` of this process fail as if pandas were not installed."""
    sys.meta_path.insert(0, _PandasBlocker())
