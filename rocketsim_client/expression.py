"""Tag expressions: "*", "TagA || TagB".  Pure."""

from dataclasses import dataclass

from rocketsim_client.errors import ExpressionInvalid

ALL = "*"


@dataclass(frozen=True, slots=True)
class TagExpression:
    """`tags` empty: everything."""

    text: str
    tags: frozenset[str]

    @classmethod
    def parse(cls, text: str | None) -> "TagExpression":
        if text is None or text.strip() in ("", ALL):
            return cls(ALL, frozenset())
        tags = [tag.strip() for tag in text.split("||")]
        if any(not tag or "|" in tag or any(char.isspace() for char in tag) for tag in tags):
            raise ExpressionInvalid(
                f"subscription expression {text!r}: tags joined by ||, as in 'TagA || TagB', or '*' for all"
            )
        return cls(" || ".join(tags), frozenset(tags))

    def matches(self, tags: str | None) -> bool:
        """The second check, by string: the broker compared hash codes only."""
        return not self.tags or tags in self.tags
