"""How to reach the brokers, as the options say it: a plain value that travels to executors and tells one cluster from
another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketsim_proto.signature import Credentials

if TYPE_CHECKING:
    from rocketsim_client.cluster import Cluster

TlsFiles = tuple[str | None, str | None, str | None]  # paths of CAs, certificate and key
Members = tuple[tuple[int, str], ...]  # broker id, address


@dataclass(frozen=True, slots=True)
class Connection:
    name_servers: tuple[str, ...]
    brokers: tuple[tuple[str, Members], ...]  # instead of name servers
    timeout_ms: int  # of each call
    route_ms: int  # how old a route may be
    channel: tuple[tuple[str, int | str], ...] = ()  # gRPC's own arguments
    range_streams: bool = True  # or gRPC alone
    credentials: Credentials | None = None  # of the user, for brokers with access control
    tls: TlsFiles | None = None  # None: plaintext

    @classmethod
    def of(
        cls,
        name_servers: tuple[str, ...],
        brokers: Mapping[str, Mapping[int, str]] | None,
        timeout_ms: int,
        route_ms: int,
        channel: Mapping[str, int | str],
        range_streams: bool = True,
        credentials: Credentials | None = None,
        tls: TlsFiles | None = None,
    ) -> "Connection":
        members = tuple(sorted((name, tuple(sorted(ids.items()))) for name, ids in (brokers or {}).items()))
        arguments = tuple(sorted(channel.items()))
        return cls(name_servers, members, timeout_ms, route_ms, arguments, range_streams, credentials, tls)

    def open(self) -> "Cluster":
        """Opens no channel yet: that is done by the first call, which is after any fork."""
        from rocketsim_client.cluster import Cluster

        ca, cert, key = self.tls or (None, None, None)
        return Cluster(
            self.name_servers,
            brokers={name: dict(members) for name, members in self.brokers},
            timeout_s=self.timeout_ms / 1000,
            poll_interval_s=self.route_ms / 1000,
            channel_options=dict(self.channel),
            range_streams=self.range_streams,
            access_key=self.credentials.access_key if self.credentials else "",
            secret_key=self.credentials.secret_key if self.credentials else "",
            tls=self.tls is not None,
            tls_ca=ca,
            tls_cert=cert,
            tls_key=key,
        )
