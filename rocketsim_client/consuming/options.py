"""The options of a consumer, checked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rocketsim_proto.limits import MAX_INVISIBLE_MS

from rocketsim_client import validation
from rocketsim_client.errors import InvalidParameter
from rocketsim_client.expression import SqlExpression, TagExpression, expression_of

MAX_INVISIBLE_S = MAX_INVISIBLE_MS / 1000
RENEWALS = 6  # how often a consumer looks for due renewals within one invisible time

Topics = str | Iterable[str] | Mapping[str, str | SqlExpression | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    group: str
    expressions: Mapping[str, TagExpression | SqlExpression]  # topic -> filter
    max_in_flight: int
    max_in_flight_bytes: int
    invisible_s: float
    renew_for_s: float
    timeout_s: float  # the limit of an ack or a similar call, over all attempts

    def __post_init__(self) -> None:
        validation.check_group(self.group)
        for name in ("max_in_flight", "max_in_flight_bytes"):
            if getattr(self, name) < 1:
                raise InvalidParameter(f"{name} {getattr(self, name)}: it must be at least 1")
        check_invisible(self.invisible_s)

    @property
    def renewal_interval_s(self) -> float:
        return self.invisible_s / RENEWALS


def expressions_of(topics: Topics) -> dict[str, TagExpression | SqlExpression]:
    if isinstance(topics, str):
        topics = [topics]
    given = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics)
    if not given:
        raise InvalidParameter("no topic to consume")
    for topic in given:
        validation.check_topic(topic)
    return {topic: expression_of(filtered) for topic, filtered in given.items()}


def check_invisible(invisible_s: float) -> None:
    if not 0.001 <= invisible_s <= MAX_INVISIBLE_S:
        raise InvalidParameter(f"invisible_s {invisible_s}: it must be 0.001 to {MAX_INVISIBLE_S:g} s")
