"""Refusals are counted and logged: one line a minute for each user, address and reason, without secrets."""

import pytest

from broker_service.access.gate import Gate
from broker_service.access.refusals import MAX_LINES, MAX_TEXT, Refusals
from broker_service.access.rights import RIGHTS
from broker_service.access.users import User
from broker_service.errors import AccessDenied, BadSignature, ClockSkew, NotAuthenticated, UnknownUser
from tests.support.access import DATE
from tests.support.known_users import KnownUsers, Midnight

SEND = "/rocketsim.Broker/Send"
V2_SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"


def test_refusals_are_counted_by_reason_and_service() -> None:
    refusals = Refusals()
    for error in (AccessDenied("no", "u"), AccessDenied("no", "u"), ClockSkew("old", "u"), BadSignature("wrong", "u")):
        refusals.refused(error, SEND, "10.0.0.1", 0.0)
    for error in (UnknownUser("who"), NotAuthenticated("none")):
        refusals.refused(error, V2_SEND, "10.0.0.1", 0.0)
    assert refusals.counts == {
        ("forbidden", "Broker"): 2,
        ("clock_skew", "Broker"): 1,
        ("bad_signature", "Broker"): 1,
        ("unknown_user", "MessagingService"): 1,
        ("unauthenticated", "MessagingService"): 1,
    }


def test_one_line_of_a_user_an_address_and_a_reason_in_a_minute() -> None:
    refusals = Refusals()

    def lines(error: AccessDenied, address: str, now_s: float) -> int:
        return len(refusals.refused(error, SEND, address, now_s))

    denied = AccessDenied("no", "u")
    assert refusals.refused(denied, SEND, "10.0.0.1", 1000.0) == [
        "access control refuses Broker/Send by User:u from 10.0.0.1 (forbidden): 'no'"
    ]
    assert lines(denied, "10.0.0.1", 1059.9) == 0
    assert lines(denied, "10.0.0.2", 1059.9) == 1
    assert lines(AccessDenied("no", "v"), "10.0.0.1", 1059.9) == 1
    assert lines(BadSignature("wrong", "u"), "10.0.0.1", 1059.9) == 1
    more, again = refusals.refused(denied, SEND, "10.0.0.1", 1060.0)
    assert "1 more" in more and "User:u" in again
    assert lines(denied, "10.0.0.1", 900.0) == 1  # the clock was set back


def test_however_many_callers_there_are_lines_and_memory_are_bounded() -> None:
    refusals = Refusals()
    errors = [NotAuthenticated("no") for _ in range(3 * MAX_LINES)]
    lines = [refusals.refused(error, SEND, f"10.0.{n // 256}.{n % 256}", 0.0) for n, error in enumerate(errors)]
    assert sum(map(len, lines)) == MAX_LINES
    assert refusals.counts["unauthenticated", "Broker"] == 3 * MAX_LINES
    (more, _) = refusals.refused(NotAuthenticated("no"), SEND, "10.0.0.1", 60.0)
    assert f"{2 * MAX_LINES} more" in more
    assert len(refusals.refused(NotAuthenticated("no"), SEND, "10.0.0.2", 60.0)) == 1, "there is room again"


def test_a_line_is_short_and_one_line() -> None:
    (line,) = Refusals().refused(AccessDenied("Topic:\n\u2028" + "x" * 10_000, "u"), SEND, "10.0.0.1", 0.0)
    assert len(line.splitlines()) == 1 and line.isascii() and len(line) < 2 * MAX_TEXT


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "MQv2-HMAC-SHA1 Credential=s3cr3t, Signature=s1gn"},  # the secret in place of the name
        {"authorization": "MQv2-HMAC-SHA1 Credential=u, Signature=s1gn"},
        {"authorization": "s3cr3t"},
        {"authorization": "MQv2-HMAC-SHA1 s3cr3t"},
        {"authorization": "MQv2-HMAC-SHA1 Credential=u, s3cr3t"},
    ],
)
def test_no_secret_and_nothing_of_a_caller_that_is_not_known_is_in_a_line(headers: dict[str, str]) -> None:
    user = User("u", "s3cr3t")
    gate = Gate(RIGHTS, KnownUsers({"u": user}), Midnight(), v2=True)
    with pytest.raises(NotAuthenticated) as refused:
        gate.caller(V2_SEND, [*headers.items(), ("x-mq-date-time", DATE)])
    (line,) = Refusals().refused(refused.value, V2_SEND, "10.0.0.1", 0.0)
    assert "s3cr3t" not in line and "s1gn" not in line
