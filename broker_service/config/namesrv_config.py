"""NamesrvConfig is the configuration of a name server process.  Names and defaults follow `broker_config.py`."""

# ruff: noqa: RUF009 -- `key` makes a dataclass field

from dataclasses import dataclass
from pathlib import Path

from broker_service.config.properties import check_bounds, key
from broker_service.config.shared_keys import (
    INT32_MAX,
    SharedKeys,
    check_access,
    check_tls,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig(SharedKeys):
    """The configuration of one name server process."""

    listen_port: int = key(9876, "the port; 0: any free one", low=0, high=65535)
    remoting_port: int = key(
        -1,
        "own: the port for RocketMQ's remoting protocol, which RocketMQ 4's clients, mqadmin and RocketMQ's dashboard "
        "use; RocketMQ's own name server listens on 9876. 0: any free one, -1: none",
        low=-1,
        high=65535,
    )
    bind_address: str = key("127.0.0.1", "the address that the name server listens on; the default is loopback")
    address_file: Path | None = key(
        None, "own: the file to which the name server writes `host:port` of its port; empty: none"
    )
    broker_expire_time_ms: int = key(
        120_000, "own: time after which a silent broker is removed", low=10, high=INT32_MAX
    )
    scan_not_active_broker_interval: int = key(
        5_000, "time between two searches for silent brokers", low=10, high=INT32_MAX
    )
    authentication_enabled: bool = key(
        False,
        "brokers must sign their registrations, and operators must sign wipeWritePerm and addWritePerm; requires "
        "`innerClientAuthenticationCredentials`. Everybody may ask for routes, as with RocketMQ's name servers",
    )
    init_authentication_user: str = key(
        "",
        'the user who may call wipeWritePerm and addWritePerm, as `{"username":"admin","password":"..."}`',
        secret=True,
    )
    tls_client_auth: str = key(
        "",
        "own: the ports on which clients need a certificate from `tlsCa`: `listenPort`, `remotingPort`, separated by "
        "`;`",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        check_access(self)
        check_tls(self, ("listenPort", "remotingPort"))
