"""TAG subscriptions."""

import pytest
from rocketsim_proto.records.record import tags_code

from broker_service.broker.reads.subscription import tags_codes_of
from broker_service.errors import InvalidParameter, SubscriptionParseFailed


@pytest.mark.parametrize("expression", ["", "*", " * "])
def test_everything_is_wanted(expression: str) -> None:
    assert tags_codes_of(expression) is None


@pytest.mark.parametrize("expression", ["a||b", " a || b ", "b || a || a", "a || b ||"])
def test_tags_are_separated_by_two_bars(expression: str) -> None:
    assert tags_codes_of(expression) == {tags_code("a"), tags_code("b")}


@pytest.mark.parametrize("expression", ["||", " || ", "a || *"])
def test_an_expression_that_cannot_be_meant_is_refused(expression: str) -> None:
    with pytest.raises(SubscriptionParseFailed):
        tags_codes_of(expression)


def test_sql_is_not_supported_and_says_what_is() -> None:
    with pytest.raises(InvalidParameter, match="TAG") as refused:
        tags_codes_of("a > 5", "SQL92")
    assert refused.value.code == InvalidParameter.code, "with RocketMQ's, SYSTEM_ERROR, clients ask again"
