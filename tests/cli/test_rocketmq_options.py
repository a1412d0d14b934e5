"""The command line's options for Apache RocketMQ's servers, from flags, the environment, a file and a context."""

import socket
from pathlib import Path

import pytest
from rocketsim_proto.remoting import acl

from rocketsim_cli.connection_options import ConnectionOptions
from rocketsim_cli.console import with_keys
from rocketsim_cli.credentials import ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN, TOOLS
from rocketsim_cli.doctor import source_options
from rocketsim_client.connection import Connection
from rocketsim_source.options.view_options import view_options
from tests.cli.test_commands import answer, lines, rocketsim
from tests.support.cloud_instance import INSTANCE, Instance
from tests.support.remoting_peer import TOPIC, Recording, RemotingPeer, replaying

REMOTING = ("--protocol", "remoting")
TOKEN = "hidden-token"
KEYS = {ACCESS_KEY: "ak", SECRET_KEY: "hidden-key", SECURITY_TOKEN: TOKEN}
# The environment variables that a test sets, and that must not come from the machine.
VARIABLES = (*KEYS, TOOLS, *(f"ROCKETSIM_{name}" for name in ("ADDRESS_MAP", "NAMESPACE", "NAMESPACE_V2", "CONTEXT")))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The contexts file of a user who has set nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "rocketsim" / "contexts.toml"


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# --- the address map --------------------------------------------------------------------------------------------------


class BehindAddress:
    """A name server and broker, whose broker advertises an address at which nobody listens."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            recording = Recording("5.5.0")
            self.peer = RemotingPeer(recording)  # gets another port, because `closed` is still open
            self.advertised = recording.address = f"127.0.0.1:{closed.getsockname()[1]}"
        self.address_map = f"{self.advertised}={self.peer.address}"


def test_an_address_map_leads_commands_to_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    server = BehindAddress()
    with server.peer as peer:
        status = ("admin", "topicStatus", "-n", peer.address, "-t", TOPIC)
        refused = rocketsim(*REMOTING, *status)
        assert refused.returncode == 1 and f"{server.advertised}: not reachable" in refused.stderr
        assert "set addressMap (address_map in Python, --address-map before a command of rocketsim)" in refused.stderr

        given = (*REMOTING, "--address-map", server.address_map)
        assert [row["maxOffset"] for row in answer(*given, *status)] == [40, 0]
        (route,) = answer(*given, "admin", "topicRoute", "-n", peer.address, "-t", TOPIC)
        assert [one["brokerAddrs"] for one in route["brokerDatas"]] == [{"0": peer.address}]

        monkeypatch.setenv("ROCKETSIM_ADDRESS_MAP", server.address_map)
        assert [row["maxOffset"] for row in answer(*REMOTING, *status)] == [40, 0]


def test_an_address_map_comes_from_a_context_unless_the_line_has_another() -> None:
    server = BehindAddress()
    with server.peer as peer:
        added = rocketsim(
            *REMOTING, "--address-map", server.address_map, "context", "add", "private", "-n", peer.address
        )
        assert added.returncode == 0, added.stderr
        status = ("admin", "topicStatus", "-t", TOPIC)
        assert [row["maxOffset"] for row in answer(*status)] == [40, 0]
        other = f"{server.advertised}={server.advertised}"
        refused = rocketsim("--address-map", other, *status)
        assert refused.returncode == 1 and f"addressMap={other} makes of the address" in refused.stderr


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_a_namespace_is_added_to_the_names_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance()
    with instance.peer as peer:
        status = ("admin", "topicStatus", "-t", TOPIC)
        given = (*REMOTING, "--namespace", INSTANCE)
        assert [row["maxOffset"] for row in answer(*given, *status, "-n", peer.address)] == [40, 0]
        assert instance.names == {f"{INSTANCE}%{TOPIC}"}
        # None of the topics that were recorded belongs to the instance.
        assert answer(*given, "admin", "topicList", "-n", peer.address) == []
        assert {"topic": TOPIC} in answer(*REMOTING, "admin", "topicList", "-n", peer.address)

        instance.names.clear()
        assert rocketsim(*given, "context", "add", "cloud", "-n", peer.address).returncode == 0
        assert [row["maxOffset"] for row in answer(*status)] == [40, 0]
        assert instance.names == {f"{INSTANCE}%{TOPIC}"}

        rocketsim("context", "remove", "cloud")
        instance.names.clear()
        monkeypatch.setenv("ROCKETSIM_NAMESPACE", INSTANCE)
        assert [row["maxOffset"] for row in answer(*REMOTING, *status, "-n", peer.address)] == [40, 0]
        assert instance.names == {f"{INSTANCE}%{TOPIC}"}


def test_the_namespace_of_rocketmq_5_is_sent_by_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(peer: RemotingPeer, *words: str) -> set[tuple[str | None, str | None]]:
        peer.requests.clear()
        assert {"topic": TOPIC} in answer(*words)
        return {(one.fields.get("nsd"), one.fields.get("ns")) for one in peer.requests}

    listed = ("admin", "topicList")
    with replaying("5.5.0") as peer:
        at = ("-n", peer.address)
        assert sent(peer, *REMOTING, *listed, *at) == {(None, None)}
        assert sent(peer, *REMOTING, "--namespace-v2", "one", *listed, *at) == {("true", "one")}
        # The context has the other namespace, which the flag replaces, because a connection has only one of them.
        assert rocketsim(*REMOTING, "--namespace", INSTANCE, "context", "add", "cloud", *at).returncode == 0
        assert sent(peer, "--namespace-v2", "two", *listed) == {("true", "two")}
        assert rocketsim(*REMOTING, "--namespace-v2", "three", "context", "add", "cloud", *at).returncode == 0
        assert sent(peer, *listed) == {("true", "three")}
        monkeypatch.setenv("ROCKETSIM_NAMESPACE_V2", "four")
        assert sent(peer, *listed) == {("true", "four")}


# --- what cannot be ---------------------------------------------------------------------------------------------------

WRONG = [
    (("--address-map", "nonsense"), "addressMap = 'nonsense'", "neither host:port=host:port nor host=host"),
    (("--namespace", "a%b"), "namespace = 'a%b'", "only letters, digits, _ and - are possible"),
    (
        ("--namespace", "a", "--namespace-v2", "b"),
        "namespace = 'a'\nnamespaceV2 = 'b'",
        "namespace and namespace_v2: give only one of them",
    ),
]


@pytest.mark.parametrize(("options", "of_context", "said"), WRONG)
def test_what_cannot_be_is_refused_on_the_line_and_in_a_context(
    home: Path, options: tuple[str, ...], of_context: str, said: str
) -> None:
    for command in (("admin", "topicList", "-n", "127.0.0.1:1"), ("context", "add", "one", "-n", "127.0.0.1:1")):
        refused = rocketsim(*options, *command)
        assert refused.returncode == 2 and said in refused.stderr
    assert not home.exists()
    home.parent.mkdir()
    home.write_text(f"[contexts.one]\nnameServer = '127.0.0.1:1'\n{of_context}\n")
    refused = rocketsim("--context", "one", "admin", "topicList")
    assert refused.returncode == 1 and f"{home}: context 'one': " in refused.stderr and said in refused.stderr


# --- the security token -----------------------------------------------------------------------------------------------


def tokens(peer: RemotingPeer, *words: str) -> set[str | None]:
    """Returns the security tokens of the requests that `topicList` sends.  Checks that each request is signed."""
    peer.requests.clear()
    assert {"topic": TOPIC} in answer(*words, "admin", "topicList", "-n", peer.address)
    for one in peer.requests:
        assert one.fields["AccessKey"] == "ak"
        assert one.fields["Signature"] == acl.signature("hidden-key", one.fields)
    return {one.fields.get("SecurityToken") for one in peer.requests}


def test_a_token_of_the_environment_is_sent_and_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, KEYS)
    with replaying("5.5.0") as peer:
        assert tokens(peer, *REMOTING) == {TOKEN}


def test_a_token_comes_from_a_file_with_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools.yml"
    tools.write_text(f'accessKey: ak\nsecretKey: hidden-key\nsecurityToken: "{TOKEN}"\n')
    tools.chmod(0o600)
    monkeypatch.setenv(TOOLS, str(tools))
    with replaying("5.5.0") as peer:
        assert tokens(peer, *REMOTING) == {TOKEN}


def test_a_token_of_a_context_is_sent_with_its_own_keys_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with replaying("5.5.0") as peer:
        set_all(monkeypatch, KEYS)
        added = rocketsim(*REMOTING, "context", "add", "cloud", "-n", peer.address)
        assert added.returncode == 0, added.stderr
        for name in KEYS:
            monkeypatch.delenv(name)
        assert tokens(peer) == {TOKEN}
        assert TOKEN in home.read_text()
        shown = [rocketsim("context", "list", *more) for more in ((), ("--json",))]
        assert not any(TOKEN in done.stdout + done.stderr for done in (added, *shown))
        assert [row["accessKey"] for row in lines(shown[1].stdout)] == ["ak"]
        # Keys without a token are keys of another kind, and get no token of the context.
        set_all(monkeypatch, {ACCESS_KEY: "ak", SECRET_KEY: "hidden-key"})
        assert tokens(peer) == {None}


def test_a_token_without_keys_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_all(monkeypatch, {SECURITY_TOKEN: TOKEN, TOOLS: str(tmp_path / "tools.yml")})
    refused = rocketsim("admin", "topicList", "-n", "127.0.0.1:1")
    assert refused.returncode == 2 and f"{SECURITY_TOKEN} is set without the keys" in refused.stderr
    assert TOKEN not in refused.stderr


def test_no_text_of_the_options_shows_the_token() -> None:
    assert TOKEN not in repr(ConnectionOptions(access_key="ak", secret_key="hidden-key", security_token=TOKEN))


# --- other commands that make a client --------------------------------------------------------------------------------


def test_the_view_that_doctor_reads_with_spark_takes_these_options() -> None:
    given = {"name_server": "a:1", "access_key": "ak", "secret_key": "hidden-key", "security_token": TOKEN}
    given |= {"address_map": "10.0.*=host", "namespace_v2": "one"}
    connection = view_options({"view": "brokers", **source_options(given)}).connection
    found = (connection.address_map, connection.namespace_v2, connection.security_token)
    assert found == ("10.0.*=host", "one", TOKEN)


def test_a_user_of_the_console_does_not_get_the_token_of_the_consoles_own_keys() -> None:
    own = Connection.of(
        "a:1", access_key="ak", secret_key="hidden-key", security_token=TOKEN, address_map="10.0.*=host"
    )
    of_user = with_keys(own, "user", "word")
    assert of_user == Connection.of("a:1", access_key="user", secret_key="word", address_map="10.0.*=host")
    assert with_keys(own, "", "") == Connection.of("a:1", address_map="10.0.*=host")
