"""Selects a consumer's messages by tags ("*", "TagA || TagB"), or by a condition over properties (SQL92).  Pure.

`asked` is the expression that the broker gets, and `selects` filters the records that the broker returns.  The client
has to filter for two reasons: a broker compares only hash codes of tags, which different tags may share, and it does
not evaluate conditions in pulls.
"""

from dataclasses import dataclass, field
from typing import Any

from rocketsim_proto.records.record import PROPERTY_TAGS

from rocketsim_client.errors import ExpressionInvalid

ALL = "*"
# The types Records and Mask are not imported, because a query would wait for the imports at its start.
Records = Any  # `rocketsim_proto.records.columnar.Records`
Mask = Any  # npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TagExpression:
    """Selects messages with one of these tags, or all messages if `tags` is empty."""

    text: str
    tags: frozenset[str]

    @classmethod
    def parse(cls, text: str | None) -> "TagExpression":
        """Parses `TagA || TagB`.  `*`, an empty text and None select all messages.  Raises ExpressionInvalid if the
        text cannot be parsed."""
        if text is None or text.strip() in ("", ALL):
            return cls(ALL, frozenset())
        tags = [tag.strip() for tag in text.split("||")]
        if any(not tag or "|" in tag or any(char.isspace() for char in tag) for tag in tags):
            raise ExpressionInvalid(
                f"subscription expression {text!r} is neither tags joined by ||, as in 'TagA || TagB', nor '*' for all"
            )
        return cls(" || ".join(tags), frozenset(tags))

    @property
    def asked(self) -> str:
        """The expression that the broker gets."""
        return self.text

    @property
    def selects_all(self) -> bool:
        """True if every message is selected."""
        return not self.tags

    def selects(self, records: Records) -> Mask:
        """Returns a mask of the records, True where the record's tag is a wanted one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.array(sorted(self.tags), pa.string())
        mask: Mask = pc.is_in(records.property(PROPERTY_TAGS), value_set=wanted).to_numpy(zero_copy_only=False)
        return mask


@dataclass(frozen=True, slots=True)
class SqlExpression:
    """A condition in RocketMQ's SQL92 over the properties of messages, as in `region = 'eu' AND price > 20`.  In a
    condition the property TAGS is the message's tag.  Raises ExpressionInvalid if the text cannot be parsed as a
    condition.  In pulls the client evaluates the condition, so brokers send the client all messages."""

    text: str
    parsed: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from rocketsim_proto.records import sql_filter

        try:
            object.__setattr__(self, "parsed", sql_filter.parse(self.text))
        except sql_filter.SqlFilterInvalid as error:
            raise ExpressionInvalid(str(error)) from None

    @property
    def asked(self) -> str:
        """The expression that the broker gets, which selects everything, because the client evaluates the condition."""
        return ALL

    @property
    def selects_all(self) -> bool:
        """True if every message is selected."""
        return False

    def selects(self, records: Records) -> Mask:
        """Returns a mask of the records, True where the condition holds."""
        from rocketsim_proto.records import sql_filter

        return sql_filter.matches(self.parsed, records)


Expression = TagExpression | SqlExpression


def expression_of(given: "str | Expression | None") -> Expression:
    """Parses a text as tags.  None selects everything, and a TagExpression or SqlExpression is returned as it is."""
    return given if isinstance(given, (TagExpression, SqlExpression)) else TagExpression.parse(given)
