"""Signatures name the caller: RocketMQ 5's signature as its clients send it, and our own over method and date."""

import pytest
from rocketsim_proto.remoting import acl
from rocketsim_proto.remoting.frame import Header
from rocketsim_proto.signature import Credentials, SigningChannel, signature, signed_headers, v2_signature

from broker_service.access.signature import MAX_AGE_S, client_of_user, own_caller, remoting_caller, v2_caller
from broker_service.access.users import User
from broker_service.errors import NotAuthenticated

USERS = {"ak": User("ak", "sk"), "gone": User("gone", "sk", user_status="disable")}
DATE = "20261123T070809Z"
NOW_S = 1_795_417_689.0  # DATE
METHOD = "/rocketsim.Broker/Send"


def v2_headers(credential: str = "ak", secret: str = "sk", date: str = DATE, **changes: str) -> dict[str, str]:
    signed = changes.get("signed", v2_signature(secret, date))
    text = f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signed}"
    return {"authorization": changes.get("authorization", text), "x-mq-date-time": date}


def test_a_signature_of_rocketmqs_clients() -> None:
    """HMAC-SHA1 of the date header, as hex; the value is what openssl makes of it."""
    assert v2_signature("secretKey", "20230101T000000Z") == "447913580c8deefad662bbc83e458dc85c9b048c"


@pytest.mark.parametrize(
    "headers",
    [
        v2_headers(),
        v2_headers(signed=v2_signature("sk", DATE).upper()),  # Java, C#, Node, C++
        v2_headers("ak//Rocketmq"),  # Go
        v2_headers("ak/region/service"),  # C++
        v2_headers(date="20160101T000000Z"),
        v2_headers(date="2026-11-23T07:08:09.123456+00:00"),  # Rust
        v2_headers() | {"authorization": v2_headers()["authorization"].replace("MQv2-HMAC-SHA1", "Other")},
    ],
)
def test_what_the_official_clients_send_is_taken(headers: dict[str, str]) -> None:
    assert v2_caller(headers, USERS.get) == USERS["ak"]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "username cannot be null."),
        (v2_headers(""), "username cannot be null."),
        (v2_headers("/region"), "username cannot be null."),
        (v2_headers("nobody"), "User:nobody is not found."),
        (v2_headers(secret="other"), "check signature failed."),
        (v2_headers(signed=""), "check signature failed."),
        (v2_headers(signed="é"), "check signature failed."),
        ({"authorization": v2_headers()["authorization"]}, "datetime is null."),
        (v2_headers() | {"x-mq-date-time": "20261123T070810Z"}, "check signature failed."),
        (v2_headers(authorization="MQv2-HMAC-SHA1"), "authentication header is incorrect."),
        (v2_headers(authorization="MQv2-HMAC-SHA1 Credential"), "authentication header is incorrect."),
        (v2_headers("gone"), "User:gone is disabled."),
        (v2_headers("gone", secret="other"), "check signature failed."),
    ],
)
def test_what_rocketmqs_proxy_refuses_is_refused_in_its_words(headers: dict[str, str], said: str) -> None:
    with pytest.raises(NotAuthenticated) as refused:
        v2_caller(headers, USERS.get)
    assert str(refused.value) == said


def own_headers(method: str = METHOD, at: float = NOW_S, secret: str = "sk") -> dict[str, str]:
    return dict(signed_headers(Credentials("ak", secret), method, at))


@pytest.mark.parametrize("late_s", [0, MAX_AGE_S, -MAX_AGE_S])
def test_our_own_signature_is_good_for_fifteen_minutes(late_s: int) -> None:
    headers = own_headers()
    assert headers["x-mq-date-time"] == DATE
    assert own_caller(headers, METHOD, NOW_S + late_s, USERS.get) == USERS["ak"]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "username cannot be null: the call is not signed; give this client an access key and its secret key."),
        (v2_headers(), "authentication header is incorrect: ROCKETSIM-HMAC-SHA256 is expected on this port."),
        (own_headers(secret="other"), "check signature failed."),
        (own_headers("/rocketsim.Broker/Pull"), "check signature failed."),
        (own_headers() | {"x-mq-date-time": "20261123T070810Z"}, "check signature failed."),
        (own_headers(at=NOW_S - MAX_AGE_S - 1), "signed 901 s ago by this server's clock"),
        (own_headers(at=NOW_S + MAX_AGE_S + 1), "signed 901 s ahead by this server's clock"),
        (
            {
                "authorization": "ROCKETSIM-HMAC-SHA256 Credential=ak, SignedHeaders=x-mq-date-time, "
                f"Signature={signature('sk', METHOD, 'now')}",
                "x-mq-date-time": "now",
            },
            "the date of the call is not of the form",
        ),
    ],
)
def test_a_signature_of_another_call_or_time_is_refused(headers: dict[str, str], said: str) -> None:
    with pytest.raises(NotAuthenticated) as refused:
        own_caller(headers, METHOD, NOW_S, USERS.get)
    assert said in str(refused.value)


def test_a_channel_signs_each_call_when_it_is_made() -> None:
    made: list[tuple[str, object]] = []

    class Channel:
        def close(self) -> None: ...

        def unary_unary(self, method: str, **_: object) -> object:
            return lambda request, timeout, metadata: made.append((request, metadata))

    times = iter([NOW_S, NOW_S + 1])
    channel = SigningChannel(Channel(), Credentials("ak", "sk"), now=lambda: next(times))
    call = channel.unary_unary(METHOD, request_serializer=None)
    call("first", timeout=1)
    call("second", timeout=1)
    assert made == [(name, tuple(own_headers(at=NOW_S + at).items())) for at, name in enumerate(("first", "second"))]


def test_credentials_have_no_secret_in_their_representation() -> None:
    assert "s3cr3t" not in repr(Credentials("ak", "s3cr3t")) + str(Credentials("ak", "s3cr3t"))


def test_a_client_belongs_to_the_user_that_is_proved() -> None:
    twice = {"authorization": "MQv2-HMAC-SHA1 Credential=a, Credential=b/r, Signature=x", "x-mq-date-time": "d"}
    with pytest.raises(NotAuthenticated, match="User:b is not found"):
        v2_caller(twice, {}.get)
    assert client_of_user(twice.items(), "c") == "b/c"
    assert client_of_user(twice.items(), "") == ""
    assert client_of_user({"authorization": "x", "x-mq-date-time": "d"}.items(), "c") == "c"
    assert client_of_user((), "c") == "c"


def test_a_remoting_signature_that_is_no_utf_8_is_refused() -> None:
    """A JSON header can contain half a surrogate pair."""
    with pytest.raises(NotAuthenticated, match="check signature failed"):
        remoting_caller(Header(10, fields={acl.ACCESS_KEY: "ak", acl.SIGNATURE: "\ud800"}), b"", USERS.get)
