"""Parses a subscription by tags, in the form that a consumer writes: `*`, or `TagA || TagB`."""

from functools import lru_cache

from rocketsim_proto.records.record import tags_code

from broker_service.errors import InvalidParameter, SubscriptionParseFailed

MOST_CHARACTERS = 16 << 10


class FilterNotSupported(InvalidParameter):
    """The broker does not support this type of filter, or its `enablePropertyFilter` is false.  RocketMQ answers an
    unsupported filter with SYSTEM_ERROR, after which clients retry in vain.
    """

    v2_code = "UNSUPPORTED"


def tags_codes_of(sub_expression: str, expression_type: str = "TAG") -> frozenset[int] | None:
    """Returns the hashes of the wanted tags, or None if all messages are wanted.

    The consumer must also compare the tags themselves, because different tags can have the same hash.
    """
    return codes_of(tags_of(sub_expression, expression_type))


@lru_cache(maxsize=64)
def codes_of(tags: frozenset[str] | None) -> frozenset[int] | None:
    return None if tags is None else frozenset(map(tags_code, tags))


def tags_of(sub_expression: str, expression_type: str = "TAG") -> frozenset[str] | None:
    """Returns the wanted tags, or None if all messages are wanted."""
    if expression_type not in ("", "TAG"):
        raise FilterNotSupported(f"this broker does not filter by {expression_type}; use expression type TAG")
    if len(sub_expression) > MOST_CHARACTERS:
        raise SubscriptionParseFailed(
            f"a subscription has {len(sub_expression)} characters; {MOST_CHARACTERS} are allowed: filter by fewer tags"
        )
    if sub_expression.strip() in ("", "*"):
        return None
    # As in RocketMQ, an empty part is allowed, for example `TagA ||`.
    tags = [tag.strip() for tag in sub_expression.split("||") if tag.strip()]
    if not tags:
        raise SubscriptionParseFailed(f"subscription {sub_expression!r} names no tag; write TagA || TagB, or *")
    if "*" in tags:
        raise SubscriptionParseFailed(f"subscription {sub_expression!r}: * must stand alone")
    return frozenset(tags)
