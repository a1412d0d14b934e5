"""Parses SQL92 filters and evaluates them over the properties of records, a column at a time.  Pure.

Grammar and results are those of RocketMQ 5.5's `SelectorParser`, so that a subscription selects the same messages in
both.  tests/proto/test_sql_filter.py compares the results case by case.  Users of SQL may not expect these rules:

- Properties are text.  If text is compared with a number, the text must be a number of the same kind: the text "5.5" is
  not a number for `a > 5`, but it is one for `a > 5.0`.
- `<` and `>` compare two texts only if both are numbers.
- NOT binds tighter than `=`.
- If the evaluation of an operand fails, for example because a text is not a number, the record is not selected, even if
  another operand of OR is true.

This parser differs from RocketMQ's in two ways.  RocketMQ ignores text after the end of an expression, and this parser
refuses such text.  RocketMQ refuses the number 0.0, and this parser accepts it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lark import Lark, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError

from rocketsim_proto.records.columnar import Records

MOST_CHARACTERS = 16 << 10
DEEPEST = 100  # the deepest nesting of expressions that is allowed

INTEGERS = range(-(2**31), 2**31)
LONGS = range(-(2**63), 2**63)

# The results that a condition can have for a record.  FAILED means that RocketMQ would throw an exception, and not
# select the record.
FALSE, TRUE, NULL, FAILED = 0, 1, 2, 3
Truth = npt.NDArray[np.int8]  # one of the four results for each record


class SqlFilterInvalid(ValueError):
    """Raised if a text is not a valid SQL92 filter.  The message says where the filter is wrong, and why."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant: text, int, float, bool, or None for NULL.

    Text that is compared with an int constant is read as Java's Integer, or as Long with `is_long`.
    """

    value: str | int | float | bool | None
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Property:
    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class All:
    """AND."""

    operands: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Some:
    """OR."""

    operands: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    symbol: str  # = < <= > >=
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class In:
    operand: Property
    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Text:
    """CONTAINS, STARTSWITH or ENDSWITH, which search for a text in the operand."""

    word: str
    operand: "Expression"
    search: str
    negated: bool


Expression = Constant | Property | Negative | Not | All | Some | Comparison | In | Text
CONDITIONS = (Not, All, Some, Comparison, In, Text)


# --- text -> expression -----------------------------------------------------------------------------------------------

GRAMMAR = r"""
?start: or
?or: and ("OR"i and)*                  -> some
?and: equality ("AND"i equality)*      -> all
?equality: comparison
    | equality "=" comparison          -> equal
    | equality UNEQUAL comparison      -> not_equal
    | equality "IS"i "NULL"i           -> is_null
    | equality "IS"i "NOT"i "NULL"i    -> is_not_null
?comparison: unary
    | comparison ORDER unary                            -> order
    | comparison "BETWEEN"i unary "AND"i unary          -> between
    | comparison "NOT"i "BETWEEN"i unary "AND"i unary   -> not_between
    | comparison "IN"i texts                            -> contained
    | comparison "NOT"i "IN"i texts                     -> not_contained
    | comparison TEXT_WORD STRING                       -> text
    | comparison "NOT"i TEXT_WORD STRING                -> not_text
?unary: primary
    | "+" unary                        -> positive
    | "-" unary                        -> negative
    | "NOT"i unary                     -> invert
?primary: STRING                       -> string
    | FLOAT                            -> float
    | INTEGER                          -> integer
    | "TRUE"i                          -> true
    | "FALSE"i                         -> false
    | "NULL"i                          -> null
    | NAME                             -> property
    | "(" or ")"
texts: "(" STRING ("," STRING)* ")"

UNEQUAL.2: "<>"
ORDER: "<=" | ">=" | "<" | ">"
TEXT_WORD.2: /(contains|startswith|endswith)(?![a-z0-9_$])/i
STRING: /'(''|[^'])*'/
FLOAT.2: /([0-9]+\.[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)/i
INTEGER: /(0|[1-9][0-9]*)l?(?![a-z0-9_$])/i
NAME: /[a-z_$][a-z0-9_$]*/i
SPACE: /[ \t\n\r\f]+/
LINE_COMMENT: /--[^\n\r]*+[\n\r]/
BLOCK_COMMENT: /\/\*(.|\n)*?\*\//
%ignore SPACE
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""


@v_args(inline=True)
class _Builder(Transformer[Any, Expression]):
    """Makes expressions from the rules of the grammar, with the checks that RocketMQ's parser makes."""

    def string(self, token: str) -> Constant:
        return Constant(_unquoted(token))

    def float(self, token: str) -> Constant:
        value = float(token)
        if value == float("inf"):
            raise SqlFilterInvalid(f"{token} is larger than a double can be")
        return Constant(value)

    def integer(self, token: str) -> Constant:
        digits = token.rstrip("lL")  # int() refuses very long numbers, which are too large anyway
        value = int(digits) if len(digits) < 20 else LONGS.stop
        if value not in LONGS:
            raise SqlFilterInvalid(f"{token} is larger than {LONGS[-1]}")
        return Constant(value, is_long=value not in INTEGERS)

    def true(self) -> Constant:
        return Constant(True)

    def false(self) -> Constant:
        return Constant(False)

    def null(self) -> Constant:
        return Constant(None)

    def property(self, token: str) -> Property:
        return Property(str(token))

    def positive(self, operand: Expression) -> Expression:
        return operand

    def negative(self, operand: Expression) -> Negative:
        return Negative(operand)

    def invert(self, operand: Expression) -> Not:
        return Not(_condition(operand))

    def all(self, *operands: Expression) -> All:
        return All(tuple(map(_condition, operands)))

    def some(self, *operands: Expression) -> Some:
        return Some(tuple(map(_condition, operands)))

    def equal(self, left: Expression, right: Expression) -> Comparison:
        for one in (left, right):
            if isinstance(one, Constant) and one.value is None:
                raise SqlFilterInvalid("nothing is equal to NULL; write IS NULL or IS NOT NULL")
        if isinstance(left, Constant) and isinstance(right, Constant):
            if isinstance(left.value, bool) and not isinstance(right.value, bool):
                raise SqlFilterInvalid(f"{left.value!r} cannot be compared with {right.value!r}")
        return Comparison("=", left, right)

    def not_equal(self, left: Expression, _: str, right: Expression) -> Not:
        return Not(self.equal(left, right))

    def is_null(self, operand: Expression) -> Comparison:
        return Comparison("=", operand, Constant(None))

    def is_not_null(self, operand: Expression) -> Not:
        return Not(self.is_null(operand))

    def order(self, left: Expression, symbol: str, right: Expression) -> Comparison:
        return _ordering(left, str(symbol), right)

    def between(self, operand: Expression, low: Expression, high: Expression) -> All:
        both = All((_ordering(operand, ">=", low), _ordering(operand, "<=", high)))
        if isinstance(low, Constant) and isinstance(high, Constant) and high.value < low.value:  # type: ignore[operator]
            raise SqlFilterInvalid(f"BETWEEN {low.value} AND {high.value}: the smaller number comes first")
        return both

    def not_between(self, operand: Expression, low: Expression, high: Expression) -> Some:
        return Some((_ordering(operand, "<", low), _ordering(operand, ">", high)))

    def texts(self, *tokens: str) -> tuple[str, ...]:
        return tuple(map(_unquoted, tokens))

    def contained(self, operand: Expression, values: tuple[str, ...], negated: bool = False) -> In:
        if not isinstance(operand, Property):
            raise SqlFilterInvalid("IN: the name of a property is expected before it")
        return In(operand, values, negated)

    def not_contained(self, operand: Expression, values: tuple[str, ...]) -> In:
        return self.contained(operand, values, True)

    def text(self, operand: Expression, word: str, search: str, negated: bool = False) -> Text:
        return Text(word.upper(), operand, _unquoted(search), negated)

    def not_text(self, operand: Expression, word: str, search: str) -> Text:
        return self.text(operand, word, search, True)


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _condition(expression: Expression) -> Expression:
    if isinstance(expression, (Property, *CONDITIONS)) or _is_truth_constant(expression):
        return expression
    raise SqlFilterInvalid("a number or a text stands where a condition is expected")


def _is_truth_constant(expression: Expression) -> bool:
    return isinstance(expression, Constant) and (expression.value is None or isinstance(expression.value, bool))


def _ordering(left: Expression, symbol: str, right: Expression) -> Comparison:
    for one in (left, right):
        if isinstance(one, CONDITIONS) or (isinstance(one, Constant) and type(one.value) not in (int, float)):
            raise SqlFilterInvalid(f"{symbol} compares numbers and properties only")
    return Comparison(symbol, left, right)


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", transformer=_Builder(), maybe_placeholders=False)


def _depth(expression: Any) -> int:
    """Returns the depth of nested expressions.  The function does not recurse, because its result limits the depth of
    later recursions."""
    deepest, waiting = 0, [(expression, 1)]
    while waiting:
        one, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting.extend((operand, depth + 1) for operand in _operands(one))
    return deepest


def count_parts(expression: Expression) -> int:
    """Counts the operations and properties of an expression, which is the cost of evaluating it for one record."""
    return sum(
        not isinstance(one, Constant) and not (isinstance(one, All | Some) and len(_operands(one)) == 1)
        for one in _parts(expression)
    )


def count_searches(expression: Expression) -> int:
    """Counts the searches within texts, which is the cost of evaluating the expression for one byte of text."""
    return sum(isinstance(one, Text) for one in _parts(expression))


def _parts(expression: Expression) -> Iterator[Expression]:
    waiting = [expression]
    while waiting:
        yield (one := waiting.pop())
        waiting.extend(_operands(one))


def _operands(expression: Any) -> tuple[Expression, ...]:
    match expression:
        case Negative(operand) | Not(operand) | In(operand) | Text(_, operand):
            return (operand,)
        case All(operands) | Some(operands):
            return operands
        case Comparison(_, left, right):
            return left, right
    return ()


@lru_cache(maxsize=256)
def parse(text: str) -> Expression:
    """Parses a filter.  Raises SqlFilterInvalid if the filter is wrong.  Results are cached, because every request of a
    subscription has the same filter.
    """
    if len(text) > MOST_CHARACTERS:
        raise SqlFilterInvalid(f"a filter of {len(text)} characters; at most {MOST_CHARACTERS} are allowed")
    try:
        expression = _condition(_parser().parse(text))  # type: ignore[arg-type]
    except UnexpectedInput as error:
        if isinstance(error, UnexpectedToken) and error.token.type == "$END":
            raise SqlFilterInvalid(f"SQL92 filter {text!r}: it ends where more is expected") from None
        at = error.pos_in_stream or 0
        raise SqlFilterInvalid(f"SQL92 filter {text!r}: not understood from {text[at : at + 20]!r} on") from None
    except VisitError as error:
        raise SqlFilterInvalid(f"SQL92 filter {text!r}: {error.orig_exc}") from None
    except SqlFilterInvalid as error:
        raise SqlFilterInvalid(f"SQL92 filter {text!r}: {error}") from None
    if _depth(expression) > DEEPEST:
        raise SqlFilterInvalid(f"a filter nested deeper than {DEEPEST} levels")
    return expression


# --- expression -> truth for each record ------------------------------------------------------------------------------

Column: TypeAlias = Any  # an Arrow array of text
Value: TypeAlias = Constant | Column | Truth


def matches(expression: Expression, records: Records) -> npt.NDArray[np.bool_]:
    """Returns a mask of the records that the filter selects."""
    return selected(expression, records.property, len(records))


def selected(expression: Expression, column: Callable[[str], pa.StringArray], size: int) -> npt.NDArray[np.bool_]:
    """Returns a mask of the rows that the filter selects, for properties that come from any source.

    `column` returns the values of a property, with null for rows that do not have the property.
    """
    selection: npt.NDArray[np.bool_] = _Evaluation(cache(column), size).truth(expression) == TRUE
    return selection


class _Evaluation:
    """The evaluation of one expression over `size` records."""

    def __init__(self, column: Callable[[str], pa.StringArray], size: int) -> None:
        self._column = column
        self._size = size
        self._keys_of: dict[tuple[int, str], tuple[Any, Any]] = {}  # (column, kind) -> the result of `_keys`

    def truth(self, expression: Expression) -> Truth:
        value = self._value(expression)
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, Constant):
            return self._same(NULL if value.value is None else TRUE if value.value is True else FALSE)
        return np.where(_is_null(value), np.int8(NULL), np.int8(FALSE))  # a text as a condition is never true

    def _same(self, truth: int) -> Truth:
        return np.full(self._size, truth, np.int8)

    def _value(self, expression: Expression) -> Value:
        match expression:
            case Constant():
                return expression
            case Property(name):
                return self._column(name)
            case Negative(operand):
                inner = self._value(operand)
                if isinstance(inner, Constant) and _kind(inner) in ("integer", "long", "double"):
                    return Constant(-inner.value, inner.is_long)  # type: ignore[operator]
                if isinstance(inner, np.ndarray):
                    return np.where(inner == FAILED, inner, np.int8(NULL))
                return Constant(None)
            case Not(operand):
                return _NOT[self.truth(operand)]
            case All(operands):
                return reduce(lambda left, right: _AND[left, right], map(self.truth, operands))
            case Some(operands):
                return reduce(lambda left, right: _OR[left, right], map(self.truth, operands))
            case In(operand, values, negated):
                column = self._column(operand.name)
                found = pc.is_in(column, value_set=pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
                truth: Truth = np.where(_is_null(column), np.int8(NULL), (found ^ negated).astype(np.int8))
                return truth
            case Text():
                return self._text(expression)
            case Comparison(symbol, left, right):
                return self._compared(symbol, self._value(left), self._value(right))

    def _text(self, expression: Text) -> Truth:
        value = self._value(expression.operand)
        if isinstance(value, np.ndarray):
            return np.where(value == FAILED, np.int8(FAILED), np.int8(FALSE))
        if not expression.search:
            return self._same(FALSE)
        if isinstance(value, Constant):
            if not isinstance(value.value, str):
                return self._same(FALSE)
            value = pa.repeat(value.value, self._size)
        function = _TEXT_FUNCTIONS[expression.word]
        found = pc.fill_null(function(value, pattern=expression.search), expression.negated)
        truth: Truth = (found.to_numpy(zero_copy_only=False) ^ expression.negated).astype(np.int8)
        return truth

    def _compared(self, symbol: str, left: Value, right: Value) -> Truth:
        null_left, null_right = self._nulls(left), self._nulls(right)
        answer, failed = self._ordered(symbol, left, right)
        truth = answer.astype(np.int8)
        truth[failed] = FAILED
        if symbol == "=":
            truth[null_right] = FALSE
            truth[null_left] = NULL
            truth[null_left & null_right] = TRUE
        else:
            truth[null_left | null_right] = NULL
        for one in (left, right):
            if isinstance(one, np.ndarray):
                truth[one == FAILED] = FAILED
        return truth

    def _nulls(self, value: Value) -> npt.NDArray[np.bool_]:
        if isinstance(value, Constant):
            return np.full(self._size, value.value is None)
        return value == NULL if isinstance(value, np.ndarray) else _is_null(value)

    def _ordered(self, symbol: str, left: Value, right: Value) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Returns two masks: where the comparison is true, and where it fails.  In rows with a null the masks have no
        meaning.
        """
        failed = np.zeros(self._size, np.bool_)
        kinds = _kind(left), _kind(right)
        if "null" in kinds:
            return failed.copy(), failed
        if kinds == ("text", "text"):
            if symbol == "=":
                return self._texts_equal(left, right), failed
            kind = "double"
        elif kinds == ("truth", "text"):
            return failed, ~failed  # RocketMQ casts the wrong operand here, and the cast fails
        elif "truth" in kinds:
            if kinds not in (("truth", "truth"), ("text", "truth")):
                return _SYMBOLS[symbol](np.full(self._size, -1), 0), failed
            kind = "truth"
        elif "text" in kinds:
            kind = kinds[0] if kinds[1] == "text" else kinds[1]
        else:
            kind = "double" if "double" in kinds else "long"
        (low, bad_left), (high, bad_right) = self._keys(left, kind), self._keys(right, kind)
        return np.broadcast_to(_SYMBOLS[symbol](low, high), (self._size,)).copy(), failed | bad_left | bad_right

    def _texts_equal(self, left: Value, right: Value) -> npt.NDArray[np.bool_]:
        sides = [one.value if isinstance(one, Constant) else one for one in (left, right)]
        if isinstance(sides[0], str) and isinstance(sides[1], str):
            return np.full(self._size, sides[0] == sides[1])
        equal: npt.NDArray[np.bool_] = pc.fill_null(pc.equal(*sides), False).to_numpy(zero_copy_only=False)
        return equal.copy()

    def _keys(self, value: Value, kind: str) -> tuple[Any, Any]:
        """Returns numbers that compare as the values do, and a mask of the texts that are not numbers of this kind."""
        if isinstance(value, np.ndarray):
            return value, False
        if not isinstance(value, Constant):
            column = id(value), kind  # `_column` keeps the column alive, so the id stays unique
            if column not in self._keys_of:
                self._keys_of[column] = _TEXT_AS[kind](value)
            return self._keys_of[column]
        if isinstance(value.value, str):
            keys, bad = _TEXT_AS[kind](pa.array([value.value]))
            return keys[0], bad[0]
        if kind == "double":
            return _double_keys(np.array([value.value], np.float64))[0], False
        return np.int64(value.value), False  # type: ignore[arg-type]


_SYMBOLS: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_TEXT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "CONTAINS": pc.match_substring,
    "STARTSWITH": pc.starts_with,
    "ENDSWITH": pc.ends_with,
}


def _table(of: Callable[[int, int], int]) -> Truth:
    return np.array([[of(left, right) for right in range(4)] for left in range(4)], np.int8)


def _short_circuit(decides: int, otherwise: int) -> Callable[[int, int], int]:
    """Makes AND or OR of two results.  If the left side decides or fails, the right side has no effect."""

    def of(left: int, right: int) -> int:
        for side in (left, right):
            if side in (decides, FAILED):
                return side
        return NULL if NULL in (left, right) else otherwise

    return of


_AND = _table(_short_circuit(FALSE, TRUE))
_OR = _table(_short_circuit(TRUE, FALSE))
_NOT = np.array([TRUE, FALSE, NULL, FAILED], np.int8)


def _is_null(column: Column) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _kind(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return "truth"
    if not isinstance(value, Constant):
        return "text"
    match value.value:
        case None:
            return "null"
        case bool():
            return "truth"
        case str():
            return "text"
        case float():
            return "double"
        case _:
            return "long" if value.is_long else "integer"


# --- text -> numbers, as Java reads them ------------------------------------------------------------------------------

_DIGITS = r"^[+-]?[0-9]+$"
_DECIMAL = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
_DOUBLE = rf"^[\x00-\x20]*(?P<sign>[+-]?)(?P<number>NaN|Infinity|{_DECIMAL})[\x00-\x20]*$"


def _integers(column: Column, allowed: range) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Parses texts as Integer.valueOf and Long.valueOf do, and returns the numbers and a mask of the invalid texts."""
    column = pc.if_else(pc.match_substring_regex(column, _DIGITS), column, None)
    column = pc.replace_substring_regex(column, r"^(\+|(-))?0*([0-9])", r"\2\3")
    column = pc.if_else(pc.less_equal(pc.binary_length(column), 20), column, None)
    numbers = pc.cast(column, pa.decimal128(20))
    inside = pc.and_(pc.greater_equal(numbers, _decimal(allowed[0])), pc.less_equal(numbers, _decimal(allowed[-1])))
    return _numbers_or_bad(pc.if_else(inside, numbers, None).cast(pa.int64()))


def _decimal(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.int64()).cast(pa.decimal128(20))


def _doubles(column: Column) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Parses texts as Double.valueOf does, except for hexadecimal floats.  Returns numbers that compare as the doubles
    do, and a mask of the invalid texts.
    """
    parts = pc.extract_regex(column, _DOUBLE)
    number = pc.replace_substring_regex(pc.struct_field(parts, "number"), r"([0-9.])[fFdD]$", r"\1")
    sign = pc.replace_substring(pc.struct_field(parts, "sign"), "+", "")
    numbers, bad = _numbers_or_bad(pc.binary_join_element_wise(sign, number, "").cast(pa.float64()))
    return _double_keys(numbers), bad


def _double_keys(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Returns integers in Double.compareTo's order: -0.0 before 0.0; NaN equal to itself and behind all others."""
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _numbers_or_bad(column: Column) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False), _is_null(column)


def _booleans(column: Column) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Parses texts as Boolean.valueOf does: "true", in upper or lower case, is true, and all other texts are false."""
    true = pc.fill_null(pc.equal(pc.utf8_lower(column), "true"), False)
    return true.to_numpy(zero_copy_only=False).astype(np.int8), np.zeros(len(column), np.bool_)


_TEXT_AS: dict[str, Callable[[Column], tuple[Any, Any]]] = {
    "integer": lambda column: _integers(column, INTEGERS),
    "long": lambda column: _integers(column, LONGS),
    "double": _doubles,
    "truth": _booleans,
}
