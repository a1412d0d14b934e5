"""Says where a cluster is, and how its servers are called.  A Connection is a plain value, which every client takes and
which Spark sends to executors.

A Connection opens no network connections.  A `Cluster` opens connections at its first call, so a process that has a
Connection can still fork.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from rocketsim_proto.signature import Credentials

from rocketsim_client.address_map import AddressMap
from rocketsim_client.addresses import Brokers, check_brokers, instance_of, parse_name_servers
from rocketsim_client.errors import InvalidParameter
from rocketsim_client.tls import File, Tls
from rocketsim_client.validation import check_namespaces

Members = tuple[tuple[int, str], ...]  # broker id, address

# The first argument of a client is a text `host:port;host:port`, a list of addresses, or a Connection.
Where = Union[str, Sequence[str], "Connection"]

TIMEOUT_S = 3.0
POLL_INTERVAL_S = 30.0
PROTOCOLS = ("auto", "grpc", "remoting")
REGISTER = ("auto", "true", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Says where a cluster is, and how its servers are called.  `Connection.of` makes and checks a Connection.  Two
    equal Connections describe the same cluster, and the same way to call it.  The repr shows no secret key."""

    name_servers: tuple[str, ...] = ()
    brokers: tuple[tuple[str, Members], ...] = ()  # given instead of name servers
    timeout_s: float = TIMEOUT_S  # the limit of each call to one server
    poll_interval_s: float = POLL_INTERVAL_S  # a route is asked for again after this time
    channel_options: tuple[tuple[str, int | str], ...] = ()  # gRPC's own channel arguments
    range_streams: bool = True  # use plain sockets beside gRPC, if brokers offer them
    credentials: Credentials | None = None  # None: calls are not signed
    tls: Tls | None = None  # None: plaintext
    program: str = ""  # a word that operators see before the host in a list of clients
    protocol: str = "auto"  # grpc for RocketSim's servers, remoting for Apache RocketMQ's
    # The following fields are for the remoting protocol only.
    security_token: str = field(default="", repr=False)
    address_map: str = ""
    max_pulls_per_second: int = 0
    register_group: str = "auto"
    namespace: str = ""
    namespace_v2: str = ""

    @classmethod
    def of(
        cls,
        name_server: str | Sequence[str] = "",
        *,
        brokers: Brokers | None = None,
        timeout_s: float = TIMEOUT_S,
        poll_interval_s: float = POLL_INTERVAL_S,
        channel_options: Mapping[str, int | str] | None = None,
        range_streams: bool = True,
        access_key: str = "",
        secret_key: str = "",
        tls: bool = False,
        tls_ca: File = None,
        tls_cert: File = None,
        tls_key: File = None,
        protocol: str = "auto",
        security_token: str = "",
        address_map: str = "",
        max_pulls_per_second: int = 0,
        register_group: str = "auto",
        namespace: str = "",
        namespace_v2: str = "",
        program: str = "",
    ) -> "Connection":
        """Makes a Connection, and raises InvalidParameter, which names the wrong argument.

        `name_server` (`host:port;host:port`) says where the cluster is.  Without a name server, `brokers` says where
        the brokers are: broker name -> broker id -> `host:port`, where broker id 0 is the master.

        `timeout_s` is the limit of each call to one server.  If a call is repeated at another server, it gets the full
        `timeout_s` for this server, too.  A route is asked for again after `poll_interval_s`, or as soon as it proves
        wrong.  `channel_options` are gRPC's own channel arguments.  With `range_streams`, ranges are pulled and
        messages sent over plain sockets if brokers offer them, otherwise over gRPC.  `access_key` and `secret_key` are
        the user and password that calls are signed with, for servers with access control.

        With `tls`, connections use TLS.  `tls_ca` is a PEM file of the CAs with which servers' certificates are
        checked.  Without `tls_ca` the public CAs are used.  `tls_cert` and `tls_key` are PEM files of this client's own
        certificate, for servers that ask for one.

        `protocol` is `grpc` for RocketSim's servers, `remoting` for Apache RocketMQ's, or `auto`.  With `auto` the
        first call also finds out which protocol the servers speak, and ends within its timeout nevertheless.  While no
        server has answered, all name servers together get the timeout of a call.  `program` is a word that operators
        see before this machine's name in a group's list of clients.  Only RocketMQ's servers use the arguments from
        `security_token` on.  `security_token` belongs to temporary keys of a cloud.  `address_map`
        (`10.0.0.3:10911=host:20911,10.0.*=host`) replaces addresses that brokers advertise by addresses at which this
        machine reaches them.  `max_pulls_per_second` limits the pulls of this process, and 0 means no limit.
        `register_group` (`auto`, `true` or `false`) says whether a group becomes visible to RocketMQ's tools when it
        commits.  `namespace` is the instance of a cloud, which the servers write before each topic and group
        (`INSTANCE%topic`).  By default it is the instance that the name server's address names, as in
        `MQ_INST_1234_abc.example.com:80`.  `namespace_v2` is the namespace of RocketMQ 5, which is sent in a field of
        its own, and not as a part of names.
        """
        for name, value, words in (("protocol", protocol, PROTOCOLS), ("register_group", register_group, REGISTER)):
            if value not in words:
                raise InvalidParameter(f"{name} {value!r} is not one of {', '.join(words)}")
        if security_token and not access_key:
            raise InvalidParameter("security_token needs an access_key and a secret_key, which are missing")
        check_namespaces(namespace, namespace_v2)
        if max_pulls_per_second < 0:
            raise InvalidParameter(f"max_pulls_per_second {max_pulls_per_second}: it must be 0 (no limit) or more")
        if brokers and name_server:
            raise InvalidParameter("name_server and brokers: give only one of them")
        check_brokers(brokers or {})
        name_servers = () if brokers else tuple(parse_name_servers(name_server))
        if not namespace and not namespace_v2:
            namespace = instance_of(name_servers)
        return cls(
            name_servers=name_servers,
            brokers=tuple((name, tuple(sorted(members.items()))) for name, members in (brokers or {}).items()),
            timeout_s=timeout_s,
            poll_interval_s=poll_interval_s,
            channel_options=tuple(sorted((channel_options or {}).items())),
            range_streams=range_streams,
            credentials=credentials_of(access_key, secret_key),
            tls=Tls.of(tls, tls_ca, tls_cert, tls_key),
            protocol=protocol,
            program=program,
            security_token=security_token,
            address_map=AddressMap.parse(address_map).text,
            max_pulls_per_second=max_pulls_per_second,
            register_group=register_group,
            namespace=namespace,
            namespace_v2=namespace_v2,
        )

    @property
    def members(self) -> dict[str, dict[int, str]]:
        """The addresses of `brokers`, by broker name and broker id."""
        return {name: dict(members) for name, members in self.brokers}

    @property
    def first_address(self) -> str:
        """The address of one of the servers."""
        return self.name_servers[0] if self.name_servers else self.brokers[0][1][0][1]


def connection_of(
    where: Where, *, timeout_s: float | None = None, poll_interval_s: float | None = None, **keywords: Any
) -> Connection:
    """Makes a Connection from a client's arguments, or returns the Connection that the client got.

    If `where` is a Connection, only `timeout_s` and `poll_interval_s` may be given, and they hold for this client
    alone.  Other keywords raise InvalidParameter.
    """
    given = {"timeout_s": timeout_s, "poll_interval_s": poll_interval_s}
    times: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not isinstance(where, Connection):
        return Connection.of(where, **times, **keywords)
    defaults = Connection.of.__kwdefaults__ or {}
    if given_twice := [name for name, value in keywords.items() if value != defaults[name]]:
        raise InvalidParameter(f"{', '.join(given_twice)}: the Connection has this already; leave the keyword out")
    return replace(where, **times)


def credentials_of(access_key: str, secret_key: str) -> Credentials | None:
    """Returns the access key and its secret key, or None if neither is given."""
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise InvalidParameter(f"{'secret_key' if access_key else 'access_key'} is missing: give both or neither")
    for name, text in (("access_key", access_key), ("secret_key", secret_key)):
        if not re.fullmatch("[!-~]+", text, re.ASCII) or (name == "access_key" and re.search("[,=/]", text)):
            raise InvalidParameter(f"{name}: printable ASCII characters without blanks are expected")
    return Credentials(access_key, secret_key)


def unless(default: float, value_s: float) -> float | None:
    """Returns None if the caller left the time at its default, so that a given Connection keeps its own time."""
    return None if value_s == default else value_s
