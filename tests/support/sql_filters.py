"""The results of RocketMQ's own SQL92 filter for a list of messages.  The results come from
`python -m tests.interop.sql_filters`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

OUTCOMES = Path(__file__).parent.parent / "data" / "sql" / "outcomes.json"


@dataclass(frozen=True)
class Outcomes:
    """`outcomes`: "invalid", or for each row a letter: t(rue), f(alse), n(ull), e(xception)."""

    rows: list[dict[str, str]]
    outcomes: dict[str, str]

    @classmethod
    def measured(cls) -> "Outcomes":
        """Returns the results of RocketMQ 5.5.0, which are kept in the repository."""
        content = json.loads(OUTCOMES.read_text(encoding="utf-8"))
        return cls(content["rows"], content["outcomes"])
