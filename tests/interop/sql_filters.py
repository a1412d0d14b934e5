"""Records what RocketMQ's own SQL92 filter selects.  `python -m tests.interop.sql_filters` writes
tests/data/sql/outcomes.json.

Needs Java 17 and Maven.
"""

import json
import random
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from testbed.real_rocketmq import rocketmq_jars
from tests.interop.programs import HERE
from tests.support.sql_filters import OUTCOMES, Outcomes

VALUES = ["", "0", "5", "05", "-5", "+5", "5.5", "5.", ".5", "1e1", "5d", " 5 ", "10", "2147483647", "2147483648"]
VALUES += ["-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "00000000000000000000000000012"]
VALUES += [
    "abc",
    "abcdef",
    "ABC",
    "it's",
    "true",
    "TRUE",
    "false",
    "NaN",
    "Infinity",
    "-Infinity",
    "-0.0",
    "0.0",
    "ü€",
    "5 5",
]
NUMBERS = [
    "0",
    "5",
    "10",
    "-5",
    "+5",
    "5.5",
    "5.",
    ".5",
    "1e1",
    "5E1",
    "10L",
    "2147483647",
    "2147483648",
    "-2147483649",
]
NUMBERS += ["9223372036854775807", "100.0"]
TEXTS = ["''", "'5'", "'abc'", "'ABC'", "'it''s'", "'b'", "'true'", "'5.5'", "'ü€'"]
PROPERTIES = ["a", "b", "absent", "$x", "_y"]

CHOSEN = """
a > 5
a > 5.0
a >= 5 AND a <= 10
5 < a
a = 5
a = '5'
a <> 5
a <> '5'
a = b
a <> b
a > b
a = absent
absent = a
absent = absent
absent <> absent
absent > 5
a IS NULL
a IS NOT NULL
absent IS NULL
absent is not null
a IS NOT NULL AND a > 5
absent = 'x' OR a = 'abc'
a > 5 OR b = 'abc'
b = 'abc' OR a > 5
a > 5 AND b = 'abc'
b = 'abc' AND a > 5
NOT (a > 5)
NOT a > 5
NOT a = 'abc'
NOT a
NOT NOT a
a
a AND b
TRUE
FALSE
NULL
NOT NULL
NULL OR TRUE
TRUE OR a > 5
a > 5 OR TRUE
a = TRUE
a <> TRUE
TRUE = a
a = FALSE
TRUE = TRUE
TRUE = FALSE
TRUE = 'x'
'x' = TRUE
TRUE = 5
5 = TRUE
a = NULL
NULL = a
NULL IS NULL
1 = 1
1 = 1.0
1 = '1'
'1' = 1
'x' = 1
1 > 0
1 > 'x'
a > 'x'
'x' < a
'x' = 'x'
a BETWEEN 5 AND 10
a NOT BETWEEN 5 AND 10
a BETWEEN 10 AND 5
a BETWEEN 5.0 AND 10
a BETWEEN 5 AND b
a BETWEEN b AND 10
a BETWEEN 'a' AND 'c'
a BETWEEN 'a' AND 5
a BETWEEN NULL AND 5
5 BETWEEN a AND b
a IN ('abc', '5')
a NOT IN ('abc', '5')
absent IN ('abc')
absent NOT IN ('abc')
a IN ()
a IN (5)
'abc' IN ('abc')
a IN ('1', '2', '3', '4', '5', '6', 'abc')
a CONTAINS 'b'
a NOT CONTAINS 'b'
a CONTAINS ''
a NOT CONTAINS ''
absent CONTAINS 'b'
absent NOT CONTAINS 'b'
a STARTSWITH 'ab'
a NOT STARTSWITH 'ab'
a ENDSWITH 'ef'
a NOT ENDSWITH 'ef'
a CONTAINS b
a CONTAINS 5
'abc' CONTAINS 'b'
5 CONTAINS 'b'
(a = 'abc') CONTAINS 'b'
(a > 5) CONTAINS 'b'
-a = 5
-a IS NULL
- 5 = a
--a = 5
-'abc' = a
-(a = 5) IS NULL
+a = 5
a = -5
a > -5
(a = 'abc') = TRUE
(a = 'abc') = (b = 'abc')
(a = 'abc') = b
b = (a = 'abc')
(a = 'abc') = 'true'
(a = 'abc') = 5
5 = (a = 'abc')
(a > 5) = TRUE
(a = 'abc') IS NULL
(absent = 'abc') IS NULL
(a > 5) IS NULL
(a > 5) IS NOT NULL
(a = 'abc') > 5
a = 5 = TRUE
a > 5 > 1
a = 'abc' AND (b = '5' OR b = 'abc') AND NOT (a IS NULL)
a='abc'and b='5'
a='abc'OR b='5'
a /* a comment */ = 'abc'
a = /* two * stars ** */ 'abc'
nota = 5
andy = 5
a IS
a >
= 5
a = 'abc
a == 5
a != 5
a LIKE 'a%'
a && b
a % 2
(a = 5
a = 5)
()
a.b = 5
a-b = 5
5
'abc'
5.5
-5
a = 99999999999999999999
a = 9223372036854775808
a > 1e999
a > 0
a >= 100000000000
a = 5L
a = 2147483648
a = 2147483648L
9223372036854775807 >= a
5.5 >= a
a IS NULL IS NULL
NOT (a IN ('abc')) OR a IS NULL
a IN ('abc') AND a NOT IN ('5') OR a BETWEEN 1 AND 3
""".strip().splitlines()


def rows() -> list[dict[str, str]]:
    found: list[dict[str, str]] = [{}, *({"a": value} for value in VALUES)]
    found += [{"a": value, "b": other} for value, other in zip(VALUES, VALUES[3:] + VALUES[:3], strict=True)]
    found += [{"a": "abc", "b": "5", "$x": "5", "_y": "abc"}, {"b": "abc"}, {"A": "5"}, {"a": "5", "b": "5"}]
    return found


def expressions(seed: int, count: int) -> list[str]:
    """Returns random expressions, most of them valid."""
    rng = random.Random(seed)

    def operand() -> str:
        return rng.choice([rng.choice(PROPERTIES)] * 6 + [rng.choice(NUMBERS), rng.choice(TEXTS), "TRUE", "NULL"])

    def number() -> str:
        return rng.choice([rng.choice(NUMBERS)] * 4 + [rng.choice(PROPERTIES)])

    def condition(depth: int) -> str:
        if depth and rng.random() < 0.6:
            left, right = condition(depth - 1), condition(depth - 1)
            return rng.choice(
                [f"{left} AND {right}", f"{left} OR {right}", f"NOT ({left})", f"({left})", f"({left} OR {right})"]
            )
        name = rng.choice(PROPERTIES)
        negation = rng.choice(["", "NOT "])
        texts = ", ".join(rng.choices(TEXTS, k=rng.randint(1, 6)))
        return rng.choice(
            [
                f"{operand()} {rng.choice(['=', '<>'])} {operand()}",
                f"{name} {rng.choice(['<', '<=', '>', '>='])} {number()}",
                f"{number()} {rng.choice(['<', '<=', '>', '>='])} {name}",
                f"{name} {negation}IN ({texts})",
                f"{name} {negation}BETWEEN {number()} AND {number()}",
                f"{operand()} IS {negation}NULL",
                f"{name} {negation}{rng.choice(['CONTAINS', 'startswith', 'EndsWith'])} {rng.choice(TEXTS)}",
                name,
            ]
        )

    return [condition(rng.randint(0, 3)) for _ in range(count)]


def outcomes(texts: Sequence[str], folder: Path) -> Outcomes:
    """Returns the results of the real filter for `rows()`."""
    messages, filters = folder / "rows", folder / "expressions"
    lines = ["\t".join(word for pair in row.items() for word in pair) for row in rows()]
    messages.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    filters.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", f"{rocketmq_jars()}/*", str(HERE / "SqlFilter.java")]
    answer = subprocess.run([*command, str(messages), str(filters)], capture_output=True, check=True).stdout.decode()
    return Outcomes(rows(), dict(zip(texts, answer.splitlines(), strict=True)))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as work:
        found = outcomes([*CHOSEN, *expressions(seed=1, count=400)], Path(work))
    OUTCOMES.write_text(json.dumps(asdict(found), indent=0, ensure_ascii=False) + "\n")
    print(f"{len(found.outcomes)} filters over {len(found.rows)} messages: {OUTCOMES}")
