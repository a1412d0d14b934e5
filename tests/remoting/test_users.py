"""RocketMQ's tools list and change users and their policies."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.signature import Credentials

from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from tests.support.access import ADMIN, KEYS, first_user
from tests.support.brokers import running
from tests.support.remoting import Client, port_of, remoting_broker

CODE = RequestCode
READER = {"username": "reader", "password": "r34der", "userType": "Normal", "userStatus": "enable"}
SHOWN = {name: value for name, value in READER.items() if name != "password"}
SUBJECT = "User:reader"


@asynccontextmanager
async def administrated(root: Path) -> AsyncIterator[tuple[BrokerNode, Client]]:
    """Runs a broker with access control, and a client of its first super user."""
    async with running(root, remoting_port=0, **KEYS) as node:
        await first_user(node)
        async with await Client.connect(port_of(node), ADMIN) as client:
            yield node, client


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def acl(resource: str, *actions: str, **rest: Any) -> bytes:
    """Returns one policy as the dashboard's form sends it."""
    entry = {"resource": resource, "actions": actions, "sourceIps": [], "decision": "Allow"} | rest
    return body({"subject": SUBJECT, "policies": [{"policyType": "Custom", "entries": [entry]}]})


async def test_users_are_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (node, client):
        await client.call(CODE.AUTH_CREATE_USER, body(READER), username="reader")
        assert await client.json(CODE.AUTH_GET_USER, username="reader") == SHOWN
        admin = {"username": ADMIN.access_key, "userType": "Super", "userStatus": "enable"}
        assert await client.json(CODE.AUTH_LIST_USER, filter="") == [admin, SHOWN]
        assert await client.json(CODE.AUTH_LIST_USER, filter="ead") == [SHOWN]
        assert await client.json(CODE.AUTH_LIST_USER, filter="nobody") == []
        # The dashboard sends no password if the user has typed none.
        disabled = {"username": "reader", "userType": "Normal", "userStatus": "disable"}
        await client.call(CODE.AUTH_UPDATE_USER, body(disabled | {"password": None}), username="reader")
        assert await client.json(CODE.AUTH_GET_USER, username="reader") == disabled
        assert node.access is not None and node.access.users.existing("reader").password == READER["password"]
        await client.call(CODE.AUTH_DELETE_USER, username="reader")
        await client.call(CODE.AUTH_DELETE_USER, username="reader")
        assert await client.json(CODE.AUTH_LIST_USER) == [admin]


async def test_policies_are_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (_, client):
        await client.call(CODE.AUTH_CREATE_USER, body(READER), username="reader")
        assert await client.json(CODE.AUTH_LIST_ACL, subjectFilter="", resourceFilter="") == []
        await client.call(CODE.AUTH_CREATE_ACL, acl("Topic:orders*", "Pub", "Sub"), subject=SUBJECT)
        await client.call(CODE.AUTH_CREATE_ACL, acl("Group:*", "Sub"), subject=SUBJECT)
        changed = acl("Group:*", "All", decision="Deny", sourceIps=["10.0.0.0/8"])
        await client.call(CODE.AUTH_UPDATE_ACL, changed, subject=SUBJECT)
        topics = {"resource": "Topic:orders*", "actions": ["Pub", "Sub"], "sourceIps": [], "decision": "Allow"}
        groups = {"resource": "Group:*", "actions": ["All"], "sourceIps": ["10.0.0.0/8"], "decision": "Deny"}

        def shown(*entries: dict[str, Any]) -> dict[str, Any]:
            return {"subject": SUBJECT, "policies": [{"policyType": "Custom", "entries": list(entries)}]}

        assert await client.json(CODE.AUTH_GET_ACL, subject=SUBJECT) == shown(topics, groups)
        # The dashboard asks for a subject and for a resource with the text that the user searches.
        for found, text in (([shown(topics)], "orders"), ([shown(topics, groups)], "reader"), ([], "else")):
            assert await client.json(CODE.AUTH_LIST_ACL, subjectFilter="", resourceFilter=text) == found
        assert await client.json(CODE.AUTH_LIST_ACL, subjectFilter="ead") == [shown(topics, groups)]
        assert await client.json(CODE.AUTH_LIST_ACL, subjectFilter="else") == []
        await client.call(CODE.AUTH_DELETE_ACL, subject=SUBJECT, resource="Group:*")
        assert await client.json(CODE.AUTH_LIST_ACL) == [shown(topics)]
        await client.call(CODE.AUTH_DELETE_ACL, subject=SUBJECT)
        assert await client.json(CODE.AUTH_LIST_ACL) == []


@pytest.mark.parametrize(
    "given",
    [
        *(b"", b"[]", b"{}", body({"policies": "x"}), body({"policies": ["x"]}), acl("orders", "Pub")),
        *(acl("Topic:orders"), acl("Topic:orders", "Read"), acl("Topic:orders", "Pub", decision="Perhaps")),
        *(acl("Topic:orders", "Pub", sourceIps="10.0.0.1"), acl("Topic:orders", "Pub", sourceIps=["here"])),
        acl("Topic:orders", "Pub").replace(b"Custom", b"Default"),
    ],
)
async def test_policies_that_make_no_sense_are_refused(tmp_path: Path, given: bytes) -> None:
    async with administrated(tmp_path) as (_, client):
        await client.call(CODE.AUTH_CREATE_USER, body(READER), username="reader")
        assert await client.refused(CODE.AUTH_CREATE_ACL, given, subject=SUBJECT) == ResponseCode.INVALID_PARAMETER
        assert await client.json(CODE.AUTH_LIST_ACL) == []


async def test_users_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (_, client):
        for change in ({"password": ""}, {"password": 7}, {"userType": "King"}, {"userStatus": "asleep"}):
            refused = await client.refused(CODE.AUTH_CREATE_USER, body(READER | change), username="reader")
            assert refused == ResponseCode.INVALID_PARAMETER, change
        assert await client.refused(CODE.AUTH_GET_USER, username="") == ResponseCode.INVALID_PARAMETER
        assert await client.refused(CODE.AUTH_GET_ACL, subject="") == ResponseCode.INVALID_PARAMETER


async def test_only_a_super_user_may_list_or_change_users(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (node, admin):
        await admin.call(CODE.AUTH_CREATE_USER, body(READER), username="reader")
        await admin.call(CODE.AUTH_CREATE_ACL, acl("Cluster:*", "All"), subject=SUBJECT)
        async with await Client.connect(port_of(node), Credentials("reader", READER["password"])) as client:
            for code in (one for one in CODE if one.name.startswith("AUTH_")):
                refused = await client.refused(code, body(READER), username="reader", subject=SUBJECT)
                assert refused == ResponseCode.NO_PERMISSION


async def test_a_slave_leaves_changes_to_its_master(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1) as (_, client):
        await client.call(CODE.AUTH_CREATE_USER, body(READER), username="reader")
        await client.call(CODE.AUTH_DELETE_ACL, subject=SUBJECT)


async def test_without_access_control_there_are_no_users(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        for code in (CODE.AUTH_LIST_USER, CODE.AUTH_LIST_ACL, CODE.AUTH_CREATE_USER):
            refused = await client.refused(code, body(READER), username="reader")
            assert refused == ResponseCode.SERVICE_NOT_AVAILABLE
