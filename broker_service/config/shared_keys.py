"""The parts of a configuration that brokers and name servers share: access control, addresses and TLS."""

# ruff: noqa: RUF009 -- `key` makes a dataclass field

import json
from dataclasses import dataclass
from pathlib import Path

from rocketsim_proto.signature import Credentials

from broker_service.config.properties import key
from broker_service.errors import ConfigError
from broker_service.names import check_credentials, is_address

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeys:
    """The keys of access control and TLS, which brokers and name servers both have.

    A key without a default here has one meaning for brokers and another for name servers, so `BrokerConfig` and
    `NamesrvConfig` declare the key again, each with its own description.
    """

    authentication_enabled: bool
    init_authentication_user: str
    inner_client_authentication_credentials: str = key(
        "",
        'the key with which brokers sign their calls to other brokers and to name servers, as `{"accessKey":"broker",'
        '"secretKey":"..."}`; it is the key of a super user, and must be the same in the whole cluster',
        secret=True,
    )
    tls_cert: Path | None = key(
        None,
        "own: PEM file with this server's certificate and the intermediate certificates up to its CA; empty: no port "
        "uses TLS",
    )
    tls_key: Path | None = key(None, "own: PEM file of the certificate's key, without a passphrase")
    tls_ca: Path | None = key(
        None, "own: PEM file of the CAs with which certificates of peers are checked; empty: the public CAs"
    )
    tls_client_auth: str

    @property
    def init_user(self) -> Credentials | None:
        text = self.init_authentication_user
        return credentials_of("initAuthenticationUser", text, ("username", "password"))

    @property
    def inner_credentials(self) -> Credentials | None:
        text = self.inner_client_authentication_credentials
        return credentials_of("innerClientAuthenticationCredentials", text, ("accessKey", "secretKey"))

    @property
    def client_auth_ports(self) -> frozenset[str]:
        """The configuration keys of the ports on which clients need a certificate."""
        return frozenset(addresses_in(self.tls_client_auth))


def credentials_of(name: str, text: str, names: tuple[str, str]) -> Credentials | None:
    """Parses the JSON value of the key `name`; returns None if it is empty.

    Raises ConfigError, whose message does not contain the value.
    """
    if not text:
        return None
    wanted = f"{name}: expected " + json.dumps(dict.fromkeys(names, "..."))
    try:
        found = json.loads(text)
        made = Credentials(found[names[0]], found[names[1]])
        check_credentials(made.access_key, made.secret_key)
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(wanted) from None
    except ValueError as error:
        raise ConfigError(wanted if isinstance(error, json.JSONDecodeError) else f"{name}: {error}") from None
    return made


def check_access(config: SharedKeys) -> None:
    """Checks the keys of access control.  Raises ConfigError, whose message contains no secret."""
    users = config.init_user, config.inner_credentials
    if config.authentication_enabled and users[1] is None:
        raise ConfigError(
            "authenticationEnabled=true: set innerClientAuthenticationCredentials, too; without it brokers and name "
            "servers refuse each other"
        )
    if all(users) and len({user.access_key for user in users if user}) == 1:
        raise ConfigError(
            "initAuthenticationUser names the same user as innerClientAuthenticationCredentials; choose another name, "
            "because no command can change the key of that user"
        )


def addresses_in(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


def check_addresses(name: str, text: str) -> None:
    for address in addresses_in(text):
        if not is_address(address):
            raise ConfigError(f"{name}={text}: {address} is not host:port (several are separated by ;)")


def check_tls(config: SharedKeys, ports: tuple[str, ...]) -> None:
    if (config.tls_cert is None) != (config.tls_key is None):
        given, missing = ("tlsCert", "tlsKey") if config.tls_key is None else ("tlsKey", "tlsCert")
        raise ConfigError(f"{given}={config.tls_cert or config.tls_key}: TLS needs {missing}, too")
    if config.tls_ca is not None and config.tls_cert is None:
        raise ConfigError(f"tlsCa={config.tls_ca}: TLS needs tlsCert and tlsKey, too")
    for port in sorted(config.client_auth_ports):
        if port not in ports:
            raise ConfigError(
                f"tlsClientAuth={config.tls_client_auth}: expected {' or '.join(ports)}, or several, separated by ;"
            )
    if config.client_auth_ports and config.tls_ca is None:
        raise ConfigError(
            f"tlsClientAuth={config.tls_client_auth}: set tlsCa, with which certificates of clients are checked"
        )
