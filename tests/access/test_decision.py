"""A user's policies mean what they mean in RocketMQ 5: precedence, and the text of resources, actions and addresses."""

import pytest

from broker_service.access.decision import Policies
from broker_service.access.policies import Acl, Action, Decision, Policy
from broker_service.access.resources import Resource, ResourceType
from broker_service.access.source_networks import address_of
from broker_service.access.users import User, user_of
from broker_service.access.words import word_of

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ALLOW, DENY = Decision
HOME = address_of("10.1.2.3")


def policy(resource: str, actions: str, decision: Decision = ALLOW, *source_ips: str) -> Policy:
    return Policy.parse(resource, actions.split(","), source_ips, decision)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ([], None),
        ([policy("Topic:orders", "Pub")], ALLOW),
        ([policy("Topic:orders", "Sub")], None),
        ([policy("Topic:orders", "All")], ALLOW),
        ([policy("Group:orders", "Pub")], None),
        ([policy("Topic:order", "Pub")], None),
        ([policy("Topic:order*", "Pub")], ALLOW),
        ([policy("Topic:orders*", "Pub")], ALLOW),  # the prefix itself
        ([policy("Topic:orders1*", "Pub")], None),
        ([policy("Topic:*", "Pub")], ALLOW),
        # In any order, the exact name goes before a prefix, and a prefix goes before `*`.
        ([policy("Topic:*", "Pub", DENY), policy("Topic:orders", "Pub")], ALLOW),
        ([policy("Topic:order*", "Pub"), policy("Topic:orders", "Pub", DENY)], DENY),
        ([policy("Topic:*", "Pub"), policy("Topic:o*", "Pub", DENY)], DENY),
        # The longest prefix goes first.
        ([policy("Topic:o*", "Pub", DENY), policy("Topic:ord*", "Pub")], ALLOW),
        ([policy("Topic:ord*", "Pub", DENY), policy("Topic:o*", "Pub")], DENY),
        # Of two equal policies, Deny goes first.
        ([policy("Topic:orders", "Pub"), policy("Topic:orders", "All", DENY)], DENY),
        ([policy("Topic:*", "Pub", DENY), policy("Topic:*", "Pub")], DENY),
        # A policy for other actions or addresses does not count.
        ([policy("Topic:orders", "Sub", DENY), policy("Topic:*", "Pub")], ALLOW),
        ([policy("Topic:orders", "Pub", DENY, "10.9.0.0/16"), policy("Topic:*", "Pub")], ALLOW),
        ([policy("Topic:orders", "Pub", DENY, "10.1.0.0/16"), policy("Topic:*", "Pub")], DENY),
        ([policy("Topic:orders", "Pub", ALLOW, "10.1.2.3", "::1")], ALLOW),
        ([policy("Topic:orders", "Pub", ALLOW, "10.1.2.4")], None),
    ],
)
def test_which_policy_decides(policies: list[Policy], expected: Decision | None) -> None:
    assert Policies(policies).decide(TOPIC, "orders", Action.PUB, HOME) is expected
    assert Policies(reversed(policies)).decide(TOPIC, "orders", Action.PUB, HOME) is expected


def test_a_caller_without_an_address_is_allowed_nothing_by_a_policy_for_some_addresses() -> None:
    policies = [policy("Topic:orders", "Pub", ALLOW, "0.0.0.0/0")]
    assert Policies(policies).decide(TOPIC, "orders", Action.PUB, None) is None
    assert Policies(policies).decide(TOPIC, "orders", Action.PUB, address_of("::ffff:10.1.2.3")) is ALLOW
    assert Policies(policies).decide(TOPIC, "orders", Action.PUB, address_of("fe80::1")) is None
    policies = [policy("Topic:orders", "Pub", DENY, "10.1.2.3"), policy("Topic:*", "Pub")]
    assert Policies(policies).decide(TOPIC, "orders", Action.PUB, None) is DENY
    assert Policies(policies).decide(TOPIC, "orders", Action.PUB, address_of("10.1.2.4")) is ALLOW


def test_a_decision_looks_at_few_of_many_policies() -> None:
    looked = 0

    class Counted(frozenset[Action]):
        def __contains__(self, action: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(action)

    resources = [f"Topic:t{number}{end}" for number in range(5000) for end in ("", "*")]
    many = Policies(Policy(Resource.parse(name), Counted({Action.PUB}), ALLOW) for name in [*resources, "Topic:*"])
    assert len(many) == 10_001
    assert many.decide(TOPIC, "t4711", Action.PUB, HOME) is ALLOW
    assert many.decide(TOPIC, "t47110", Action.PUB, HOME) is ALLOW
    assert many.decide(TOPIC, "u", Action.PUB, HOME) is ALLOW
    assert many.decide(GROUP, "t4711", Action.PUB, HOME) is None
    assert looked == 3


def test_resources_as_text() -> None:
    for text in ("Topic:x", "Topic:x*", "Topic:*", "Group:%RETRY%g", "Cluster:Default-Cluster_1.a"):
        assert str(Resource.parse(text)) == text
    assert str(Resource.parse("topic:x")) == "Topic:x"
    for wrong in ("x", "Topic:", "Topic:a*b", "Topic:**", "Broker:x", "Topic:a b", "Topic:" + "x" * 300):
        with pytest.raises(ValueError, match=r"resource|none of"):
            Resource.parse(wrong)


@pytest.mark.parametrize(
    ("resource", "actions", "source_ips", "decision", "said"),
    [
        ("Topic:x", [], [], "Allow", "no action"),
        ("Topic:x", ["Publish"], [], "Allow", "'Publish' is none of All, Pub, Sub"),
        ("Topic:x", ["Pub"], [], "Maybe", "'Maybe' is none of Allow, Deny"),
        ("Topic:x", ["Pub"], ["10.0.0"], "Allow", "source address '10.0.0'"),
        ("Topic:x", ["Pub"], ["10.0.0.1"] * 101, "Allow", "101 source addresses"),
    ],
)
def test_an_invalid_policy_is_refused(
    resource: str, actions: list[str], source_ips: list[str], decision: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Policy.parse(resource, actions, source_ips, decision)


def test_a_policy_replaces_the_one_of_the_same_resource_only() -> None:
    acl = Acl("User:a").with_policies([policy("Topic:x", "Pub"), policy("Group:g", "Sub", ALLOW, "10.0.0.0/8")])
    acl = acl.with_policies([policy("Topic:x", "Sub,Get", DENY)])
    assert {str(one.resource): (sorted(one.actions), one.decision) for one in acl.parsed()} == {
        "Topic:x": (["Get", "Sub"], DENY),
        "Group:g": (["Sub"], ALLOW),
    }
    assert [str(one.resource) for one in acl.without("Topic:x").parsed()] == ["Group:g"]
    with pytest.raises(ValueError, match="1001 resources"):
        Acl("User:a").with_policies([policy(f"Topic:x{number}", "Pub") for number in range(1001)])
    for wrong in ("a", "User:", "Group:a", "User:a b"):
        with pytest.raises(ValueError, match="subject"):
            Acl(wrong)
    assert user_of("User:a") == "a"


def test_a_user_has_its_password_in_no_representation() -> None:
    user = User("a", "s3cr3t", "super", "DISABLE")
    assert (user.user_type, user.user_status, user.is_super, user.is_disabled) == ("Super", "disable", True, True)
    assert "s3cr3t" not in repr(user) + str(user)
    for fields in (("", "p"), ("a b", "p"), ("a", ""), ("a", "p q"), ("a", "p" * 256), ("a", "p", "Root")):
        with pytest.raises(ValueError, match=r"user|none of") as said:
            User(*fields)
        assert "p q" not in str(said.value)
    assert word_of(Action, "pub") is Action.PUB


@pytest.mark.parametrize(
    ("source_ip", "caller", "is_for"),
    [
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::ffff:10.0.0.0/104", "10.1.2.3", True),
        ("::ffff:10.0.0.0/104", "11.1.2.3", False),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("0.0.0.0/0", "10.1.2.3", True),
        ("0.0.0.0", "10.1.2.3", False),
        ("fe80::1%eth0", "fe80::1", True),
    ],
)
def test_source_addresses_are_compared_as_callers_have_them(source_ip: str, caller: str, is_for: bool) -> None:
    """An IPv4 caller of a server that listens on both kinds has an IPv4 address."""
    policies = Policies([policy("Topic:x", "Pub", ALLOW, source_ip)])
    assert (policies.decide(TOPIC, "x", Action.PUB, address_of(caller)) is ALLOW) is is_for
