"""NamesrvConfig: what a name server process is told at its start.  Names and defaults are as in `broker_config.py`."""

# ruff: noqa: RUF009 -- `key` makes a dataclass field

from dataclasses import dataclass
from pathlib import Path

from broker_service.config.properties import check_bounds, key
from broker_service.config.shared_keys import (
    INNER_CREDENTIALS_DOC,
    INT32_MAX,
    TLS_CA_DOC,
    TLS_CERT_DOC,
    TLS_KEY_DOC,
    SharedKeys,
    check_access,
    check_tls,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig(SharedKeys):
    """One name server process."""

    listen_port: int = key(9876, "the port; 0: any free one", low=0, high=65535)
    remoting_port: int = key(
        -1,
        "own: the port for RocketMQ's remoting protocol: RocketMQ 4's clients, mqadmin and RocketMQ's dashboard take "
        "it for a name server of RocketMQ, which listens on 9876. 0: any free one, -1: none",
        low=-1,
        high=65535,
    )
    bind_address: str = key("127.0.0.1", "the address listened on; loopback unless said otherwise")
    address_file: Path | None = key(None, "own: written with `host:port` once the port is bound; empty: nowhere")
    broker_expire_time_ms: int = key(120_000, "own: a broker silent for this long is removed", low=10, high=INT32_MAX)
    scan_not_active_broker_interval: int = key(5_000, "between two looks for silent brokers", low=10, high=INT32_MAX)
    authentication_enabled: bool = key(
        False,
        "brokers sign their registrations, operators wipeWritePerm and addWritePerm; needs "
        "`innerClientAuthenticationCredentials`. Routes are told to everybody, as RocketMQ's name servers do",
    )
    init_authentication_user: str = key(
        "", 'who may call wipeWritePerm and addWritePerm, as `{"username":"admin","password":"..."}`', secret=True
    )
    inner_client_authentication_credentials: str = key("", INNER_CREDENTIALS_DOC, secret=True)
    tls_cert: Path | None = key(None, TLS_CERT_DOC)
    tls_key: Path | None = key(None, TLS_KEY_DOC)
    tls_ca: Path | None = key(None, TLS_CA_DOC)
    tls_client_auth: str = key(
        "",
        "own: the ports on which clients need a certificate of `tlsCa`: `listenPort`, `remotingPort`, separated by `;`",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        check_access(self)
        check_tls(self, ("listenPort", "remotingPort"))
