"""Our own clients and the command line against brokers with access control."""

import io
import logging
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from rocketsim_cli.credentials import ACCESS_KEY, SECRET_KEY, TOOLS
from rocketsim_cli.main import main
from rocketsim_client import (
    AccessDenied,
    AclPolicy,
    Admin,
    ClusterMember,
    Consumer,
    InvalidParameter,
    Message,
    NotFound,
    Producer,
    PullConsumer,
    Unreachable,
)
from testbed.polling import wait_until
from testbed.processes import ROOT
from tests.support.access import ADMIN, KEYS
from tests.support.broker_thread import BrokerThread, broker_thread

SECRET = "n0rm4l-s3cr3t"
NORMAL: Any = {"access_key": "n", "secret_key": SECRET}
PATIENT_S = 60.0  # a busy machine may take longer than the clients' three seconds
OPERATOR: Any = {"timeout_s": PATIENT_S, "access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """User n may send to and read T as groups g*; U is another topic."""
    with broker_thread(tmp_path_factory.mktemp("broker"), **KEYS) as started:
        access = started.node.access
        assert access is not None
        wait_until(lambda: access.users.get(ADMIN.access_key) is not None, "the first user")
        started.make_topic("T")
        started.make_topic("U")

        async def allow() -> None:
            await access.users.apply(lambda: access.users.putting(User("n", SECRET), 1))
            policies = [Policy.parse("Topic:T", ["Pub", "Sub"]), Policy.parse("Group:g*", ["Sub"])]
            await access.acls.apply(lambda: access.acls.putting(Acl("User:n").with_policies(policies), 1))

        started.run(allow())
        yield started


def producer_of(broker: BrokerThread, **options: Any) -> Producer:
    producer = Producer(brokers=broker.brokers, timeout_s=PATIENT_S, **options)
    producer.cluster.timeout_s = PATIENT_S
    return producer


def puller_of(broker: BrokerThread, **options: Any) -> PullConsumer:
    return PullConsumer(group="g", brokers=broker.brokers, timeout_s=PATIENT_S, **options)


def consumer_of(broker: BrokerThread, topic: str = "T", **options: Any) -> Consumer:
    return Consumer("", "g2", topic, brokers=broker.brokers, timeout_s=PATIENT_S, **options)


def test_with_their_keys_they_send_read_commit_and_acknowledge(broker: BrokerThread) -> None:
    with producer_of(broker, **NORMAL) as producer:
        sent = producer.send(Message("T", b"hello"))
    with puller_of(broker, **NORMAL) as puller:
        (queue,) = puller.message_queues("T")
        assert puller.pull(queue, sent.queue_offset).messages[0].body == b"hello"
        assert sum(batch.num_rows for batch in puller.read("T")) == puller.max_offset(queue) > 0
        puller.commit(queue, 1)
        assert puller.committed(queue) == 1
    with consumer_of(broker, **NORMAL) as consumer:
        (message, *_) = consumer.receive(timeout_s=60)
        consumer.ack(message)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "username cannot be null: the call is not signed"),
        ({"access_key": "n", "secret_key": "wr0ng-s3cr3t"}, "check signature failed."),
        ({"access_key": "nobody", "secret_key": "wr0ng-s3cr3t"}, "User:nobody is not found."),
        (NORMAL, "User:n has no permission to access Topic:U from 127.0.0.1, no matched policies. Action: "),
    ],
)
def test_a_refusal_is_told_at_once_and_not_tried_again(
    broker: BrokerThread, tmp_path: Path, keys: dict[str, str], said: str
) -> None:
    """A send that a user has no right to is refused at once, even by a producer with a spool."""
    for spool in (None, tmp_path / "spool"):
        with producer_of(broker, spool=spool, **keys) as producer:
            with pytest.raises(AccessDenied, match=said) as refused:
                producer.send(Message("U", b"x"))
            assert refused.value.code == 16
            assert spool is None or producer.spool_status().records == 0
    with puller_of(broker, **keys) as puller, pytest.raises(AccessDenied, match=said):
        puller.message_queues("U")
    with consumer_of(broker, "U", **keys) as consumer, pytest.raises(AccessDenied, match=said):
        consumer.receive(timeout_s=60)


def test_half_of_the_keys_is_refused() -> None:
    for keys in ({"access_key": "n"}, {"secret_key": SECRET}, {"access_key": "n", "secret_key": f"{SECRET} x"}):
        with pytest.raises(InvalidParameter, match=r"is missing|without blanks") as refused:
            Producer(brokers={"a": {0: "h:1"}}, **keys)  # type: ignore[arg-type]
        assert SECRET not in str(refused.value)


def test_the_secret_is_in_no_representation_log_or_error(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    with (
        producer_of(broker, **NORMAL) as producer,
        puller_of(broker, **NORMAL) as puller,
        Admin(broker.node.address, timeout_s=PATIENT_S, **NORMAL) as admin,
    ):
        producer.send(Message("T", b"x"))
        for client in (producer, puller, admin):
            transport: Any = client.cluster.transport.reads
            seen += [repr(client), repr(client.cluster), repr(transport.channels)]
            seen += [repr(vars(transport.channels)), repr(vars(client.cluster))]
        for call in (lambda: producer.send(Message("U", b"x")), lambda: admin.users(broker_addr=broker.node.address)):
            with pytest.raises(AccessDenied) as refused:
                call()
            seen += [str(refused.value), repr(refused.value), repr(refused.value.__cause__)]
    assert not [text for text in (*seen, caplog.text) if SECRET in text or ADMIN.secret_key in text]


def test_an_operator_makes_changes_and_deletes_users_and_policies(broker: BrokerThread) -> None:
    at = broker.node.address
    with Admin(at, **OPERATOR) as admin:
        made = admin.create_user("eve", "pw", broker_addr=at)[at]
        assert (made.username, made.user_type, made.user_status, made.commit_status.name) == (
            *("eve", "Normal", "enable"),
            "COMMIT_OK",
        )
        assert admin.update_user("eve", user_status="disable", broker_addr=at)[at].user_status == "disable"
        policy = AclPolicy("Topic:e*", ("Pub", "Sub"), ("10.0.0.0/8",), "Deny")
        assert admin.create_acl("User:eve", [policy], broker_addr=at)[at].policies == (policy,)
        more = AclPolicy("Group:e", ("Sub",))
        assert set(admin.update_acl("User:eve", [more], broker_addr=at)[at].policies) == {policy, more}
        assert admin.delete_acl("User:eve", "Group:e", broker_addr=at) == [at]
        assert [acl.policies for acl in admin.acls("User:eve", broker_addr=at)[at]] == [(policy,)]
        assert {user.username for user in admin.users(broker_addr=at)[at]} == {"admin", "eve", "n"}
        assert admin.delete_user("eve", broker_addr=at) == [at]
        for call in (
            lambda: admin.delete_user("eve", broker_addr=at),
            lambda: admin.delete_acl("User:eve", broker_addr=at),
            lambda: admin.users("eve", broker_addr=at),
        ):
            with pytest.raises(NotFound, match="User:eve"):
                call()


def test_a_change_reaches_every_pair_that_takes_it_whatever_another_one_says(
    broker: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user that is disabled at one pair is also disabled at the others if one of them does not know the user."""
    with broker_thread(tmp_path, **KEYS) as second, Admin("h:1", **OPERATOR) as admin:
        access = second.node.access
        assert access is not None
        wait_until(lambda: access.users.get(ADMIN.access_key) is not None, "the first user")
        a, b, away = broker.node.address, second.node.address, "127.0.0.1:1"
        masters = [a, b]
        monkeypatch.setattr(admin, "masters", lambda given, _: [given] if given else masters)

        admin.create_user("mallory", "pw", broker_addr=a)
        with pytest.raises(InvalidParameter, match=rf"User:mallory exists.* \(at {a}; done at {b}\)"):
            admin.create_user("mallory", "pw")
        policy = AclPolicy("Topic:m", ("Pub",))
        admin.create_acl("User:mallory", [policy])
        admin.delete_user("mallory", broker_addr=a)
        assert list(admin.users("mallory")) == list(admin.acls("User:mallory")) == [b]
        with pytest.raises(NotFound, match=rf"mallory does not exist here \(at {a}; done at {b}\)"):
            admin.update_user("mallory", user_status="disable")
        assert access.users.existing("mallory").is_disabled
        masters = [away, a, b]
        with pytest.raises(Unreachable, match=rf"done at {b}\)"):
            admin.delete_acl("User:mallory")
        with pytest.raises(Unreachable, match=rf"done at {b}\)") as refused:
            admin.delete_user("mallory")
        assert refused.value.address == away and access.users.get("mallory") is None
        masters = [a, b]
        for call in (lambda: admin.users("mallory"), lambda: admin.delete_user("mallory")):
            with pytest.raises(NotFound, match=rf"User:mallory is not at {a}, {b}"):
                call()


# --- the command line -------------------------------------------------------------------------------------------------


def rocketsim(*arguments: str, stdin: str = "", **environment: str) -> tuple[int, str]:
    """Runs a command; returns its exit status and all its output."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        for name in (ACCESS_KEY, SECRET_KEY, TOOLS):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    return int(ended.value.code or 0), out.getvalue()


def test_the_command_line_has_its_keys_from_the_environment_or_a_file(broker: BrokerThread, tmp_path: Path) -> None:
    tools = tmp_path / "tools.yml"
    (documented,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/client.md").read_text(), re.M | re.S)
    assert f"accessKey: {ADMIN.access_key}\n" in documented
    tools.write_text("# of RocketMQ\n" + documented.replace("...", f'"{ADMIN.secret_key}"'))
    tools.chmod(0o600)
    environment = {ACCESS_KEY: ADMIN.access_key, SECRET_KEY: ADMIN.secret_key}
    at = ("-b", broker.node.address)
    assert rocketsim("admin", "listUser", *at)[0] == 1
    status, said = rocketsim("admin", "listUser", *at)
    assert f"{broker.node.address}: username cannot be null: the call is not signed" in said
    assert f"The command line takes its keys from {ACCESS_KEY} and {SECRET_KEY}" in said
    status, said = rocketsim("admin", "listUser", *at, **{**environment, SECRET_KEY: "wr0ng"})
    assert (status, said) == (1, f"rocketsim: {broker.node.address}: check signature failed.\n")
    for given in (environment, {TOOLS: str(tools)}):
        status, said = rocketsim("admin", "listUser", *at, "--json", **given)
        assert (status, '"username":"n"' in said) == (0, True), said
        assert SECRET not in said and ADMIN.secret_key not in said
    tools.chmod(0o644)
    assert stat.S_IMODE(tools.stat().st_mode) == 0o644
    assert (
        "other users may read the secret in this file" in rocketsim("admin", "listUser", *at, **{TOOLS: str(tools)})[1]
    )
    tools.write_text("accessKey: admin\n")
    assert "no line `secretKey: ...`" in rocketsim("admin", "listUser", *at, **{TOOLS: str(tools)})[1]
    assert "is not set" in rocketsim("admin", "listUser", *at, **{ACCESS_KEY: "admin"})[1]


def test_a_broker_that_refuses_to_tell_its_state_is_no_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody may ask for routes, but not for the states of brokers."""

    class Refused:
        def cluster_list(self, _: object) -> list[ClusterMember]:
            return [ClusterMember("c", "broker-a", 0, "10.0.0.1:10911", 1)]

        def broker_status(self, **_: object) -> object:
            raise AccessDenied("User:n has no permission")

    monkeypatch.setattr("rocketsim_cli.admin.brokers.open_admin", lambda *_: nullcontext(Refused()))
    status, said = rocketsim("admin", "clusterList", "-n", "127.0.0.1:1")
    assert status == 1 and "broker-a" in said
    assert "10.0.0.1:10911 does not report its state: User:n has no permission" in said


def test_the_commands_for_users_and_policies(broker: BrokerThread) -> None:
    environment = {ACCESS_KEY: ADMIN.access_key, SECRET_KEY: ADMIN.secret_key}
    at = ("-b", broker.node.address)

    def admin(command: str, *arguments: str, stdin: str = "") -> str:
        status, said = rocketsim("admin", command, *at, *arguments, stdin=stdin, **environment)
        assert status == 0, said
        return said

    assert "COMMIT_OK" in admin("createUser", "-u", "bob", "-p", "-", "-t", "Normal", stdin="b0b-s3cr3t\n")
    access = broker.node.access
    assert access is not None
    assert broker.do(lambda: access.users.existing("bob").password) == "b0b-s3cr3t"
    assert "disable" in admin("updateUser", "-u", "bob", "-s", "disable")
    assert "Super" in admin("updateUser", "-u", "bob", "-t", "Super", "-p", "other")
    assert "bob" in admin("getUser", "-u", "bob")
    said = admin(
        "createAcl", "-s", "User:bob", "-r", "Topic:x*,Group:y", "-a", "Pub,Sub", "-i", "10.0.0.1", "-d", "Deny"
    )
    assert [line.split()[1:6] for line in said.splitlines() if "User:bob" in line] == [
        ["User:bob", "Topic:x*", "Pub,Sub", "10.0.0.1", "Deny"],
        ["User:bob", "Group:y", "Pub,Sub", "10.0.0.1", "Deny"],
    ]
    assert "Allow" in admin("updateAcl", "-s", "User:bob", "-r", "Group:y", "-a", "Sub", "-d", "Allow")
    assert "Topic:x*" in admin("getAcl", "-s", "User:bob")
    status, said = rocketsim("admin", "deleteAcl", *at, "-s", "User:bob", "-r", "", **environment)
    assert status == 2 and "-r is empty" in said, "an empty variable is not left out, which deletes all"
    assert "Group:y" in admin("deleteAcl", "-s", "User:bob", "-r", "Group:y")
    assert "Group:y" not in admin("listAcl")
    assert "bob" in admin("deleteUser", "-u", "bob")
    assert "bob" not in admin("listUser") + admin("listAcl")
