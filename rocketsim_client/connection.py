"""Where a cluster is and how its servers are called: a plain value, which every client takes and Spark's executors get.

It opens nothing.  A `Cluster` opens connections at its first call, so a process may fork after it has one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from rocketsim_proto.signature import Credentials

from rocketsim_client.address_map import AddressMap
from rocketsim_client.addresses import Brokers, check_brokers, parse_name_servers
from rocketsim_client.errors import InvalidParameter
from rocketsim_client.tls import File, Tls

Members = tuple[tuple[int, str], ...]  # broker id, address

# What a client's first argument may be: `host:port;host:port`, a list of addresses, or all that there is to say.
Where = Union[str, Sequence[str], "Connection"]

TIMEOUT_S = 3.0
POLL_INTERVAL_S = 30.0
PROTOCOLS = ("auto", "grpc", "remoting")
REGISTER = ("auto", "true", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """`Connection.of` makes and checks one.  Two connections that are equal lead to the same cluster in the same way.
    Its representation shows no secret key."""

    name_servers: tuple[str, ...] = ()
    brokers: tuple[tuple[str, Members], ...] = ()  # instead of name servers
    timeout_s: float = TIMEOUT_S  # of each call to one server
    poll_interval_s: float = POLL_INTERVAL_S  # how old a route may be
    channel_options: tuple[tuple[str, int | str], ...] = ()  # gRPC's own channel arguments
    range_streams: bool = True  # plain sockets beside gRPC, where brokers offer them
    credentials: Credentials | None = None  # None: calls are not signed
    tls: Tls | None = None  # None: plaintext
    protocol: str = "auto"  # grpc: RocketSim's servers; remoting: Apache RocketMQ's
    # Of the remoting protocol:
    security_token: str = field(default="", repr=False)
    address_map: str = ""
    max_pulls_per_second: int = 0
    register_group: str = "auto"

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
    ) -> "Connection":
        """`name_server` (`host:port;host:port`) says where the cluster is; if that is empty, `brokers` does: broker
        name -> broker id -> `host:port`; 0 is the master.

        `timeout_s` bounds each call to one server; falling back to another one takes a further call.  A route is asked
        for again after `poll_interval_s`, and sooner when it proves wrong.  `channel_options` are gRPC's own channel
        arguments.  `range_streams`: ranges are pulled and messages sent over plain sockets where brokers offer it,
        otherwise over gRPC.  `access_key` and `secret_key`: the user and password that calls are signed with, for
        servers with access control.

        `tls`: servers speak TLS.  `tls_ca`: a PEM file of the CAs that their certificates are checked with, the public
        ones without it.  `tls_cert`, `tls_key`: PEM files of this client's own certificate, for servers that ask for
        one.

        `protocol`: `grpc` for RocketSim's servers, `remoting` for Apache RocketMQ's, `auto` to look which one it is.
        Of RocketMQ's alone: `security_token` belongs to temporary keys of a cloud; `address_map`
        (`10.0.0.3:10911=host:20911,10.0.*=host`) says where this machine reaches addresses that brokers advertise;
        `max_pulls_per_second` bounds the pulls of this process, 0 does not; `register_group`: whether a group that
        commits is made visible to RocketMQ's tools, `auto`, `true` or `false`.

        Raises InvalidParameter, which names the argument.
        """
        for name, value, words in (("protocol", protocol, PROTOCOLS), ("register_group", register_group, REGISTER)):
            if value not in words:
                raise InvalidParameter(f"{name} {value!r}: one of {', '.join(words)}")
        if security_token and not access_key:
            raise InvalidParameter("security_token: it belongs to an access_key and a secret_key, which are missing")
        if max_pulls_per_second < 0:
            raise InvalidParameter(f"max_pulls_per_second {max_pulls_per_second}: 0 (no limit) or more")
        if brokers and name_server:
            raise InvalidParameter("name_server and brokers: where the cluster is, is said by one of them")
        check_brokers(brokers or {})
        return cls(
            name_servers=() if brokers else tuple(parse_name_servers(name_server)),
            brokers=tuple((name, tuple(sorted(members.items()))) for name, members in (brokers or {}).items()),
            timeout_s=timeout_s,
            poll_interval_s=poll_interval_s,
            channel_options=tuple(sorted((channel_options or {}).items())),
            range_streams=range_streams,
            credentials=credentials_of(access_key, secret_key),
            tls=Tls.of(tls, tls_ca, tls_cert, tls_key),
            protocol=protocol,
            security_token=security_token,
            address_map=AddressMap.parse(address_map).text,
            max_pulls_per_second=max_pulls_per_second,
            register_group=register_group,
        )

    @property
    def members(self) -> dict[str, dict[int, str]]:
        """The addresses of `brokers`, by broker name and broker id."""
        return {name: dict(members) for name, members in self.brokers}

    @property
    def first_address(self) -> str:
        """One of the servers."""
        return self.name_servers[0] if self.name_servers else self.brokers[0][1][0][1]


def connection_of(
    where: Where, *, timeout_s: float | None = None, poll_interval_s: float | None = None, **keywords: Any
) -> Connection:
    """What a client was given: a Connection, or what `Connection.of` makes one of.  Beside a Connection the two times
    may be others, for this client alone; any other keyword is InvalidParameter, since the Connection says it."""
    given = {"timeout_s": timeout_s, "poll_interval_s": poll_interval_s}
    times: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not isinstance(where, Connection):
        return Connection.of(where, **times, **keywords)
    defaults = Connection.of.__kwdefaults__ or {}
    if said_twice := [name for name, value in keywords.items() if value != defaults[name]]:
        raise InvalidParameter(f"{', '.join(said_twice)}: the Connection says that; leave the keyword out")
    return replace(where, **times)


def credentials_of(access_key: str, secret_key: str) -> Credentials | None:
    """None if neither is given."""
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise InvalidParameter(f"{'secret_key' if access_key else 'access_key'} is missing: give both or neither")
    for name, text in (("access_key", access_key), ("secret_key", secret_key)):
        if not re.fullmatch("[!-~]+", text, re.ASCII) or (name == "access_key" and re.search("[,=/]", text)):
            raise InvalidParameter(f"{name}: printable ASCII characters without blanks are expected")
    return Credentials(access_key, secret_key)


def unless(default: float, value_s: float) -> float | None:
    """A time that is given, or None for the default: beside a Connection that stands for what it says."""
    return None if value_s == default else value_s
