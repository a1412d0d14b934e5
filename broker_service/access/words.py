"""The words of RocketMQ 5's access control, whose case does not matter.  Pure."""

from enum import StrEnum
from typing import TypeVar

_Word = TypeVar("_Word", bound=StrEnum)


def word_of(kind: type[_Word], text: str) -> _Word:
    """Returns the enum member whose value is this text, in upper or lower case."""
    for member in kind:
        if member.value.lower() == str(text).strip().lower():
            return member
    raise ValueError(f"{text!r} is none of {words(kind)}")


def words(kind: type[StrEnum]) -> str:
    return ", ".join(member.value for member in kind)
