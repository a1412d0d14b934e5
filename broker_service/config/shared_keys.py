"""What brokers and name servers have in common: the checks of access, addresses and TLS in their configuration."""

import json
from pathlib import Path
from typing import Protocol

from rocketsim_proto.signature import Credentials

from broker_service.access.model import User, UserType
from broker_service.errors import ConfigError
from broker_service.names import is_address

INT32_MAX = 2**31 - 1
INNER_CREDENTIALS_DOC = (
    'as `{"accessKey":"broker","secretKey":"..."}`: with these a broker signs its calls to other brokers and name '
    "servers, which know them as a super user's; the same for all of a cluster"
)


class SharedKeys(Protocol):
    @property
    def authentication_enabled(self) -> bool: ...

    @property
    def init_user(self) -> Credentials | None: ...

    @property
    def inner_credentials(self) -> Credentials | None: ...

    @property
    def client_auth_ports(self) -> frozenset[str]: ...

    @property
    def tls_cert(self) -> Path | None: ...

    @property
    def tls_key(self) -> Path | None: ...

    @property
    def tls_ca(self) -> Path | None: ...

    @property
    def tls_client_auth(self) -> str: ...


def credentials_of(name: str, text: str, names: tuple[str, str]) -> Credentials | None:
    """Those of RocketMQ's JSON in a key; None where it is empty.  Raises ConfigError, without the value."""
    if not text:
        return None
    wanted = f"{name}: expected " + json.dumps(dict.fromkeys(names, "..."))
    try:
        found = json.loads(text)
        made = User(found[names[0]], found[names[1]], UserType.SUPER)
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(wanted) from None
    except ValueError as error:
        raise ConfigError(wanted if isinstance(error, json.JSONDecodeError) else f"{name}: {error}") from None
    return Credentials(made.username, made.password)


def check_access(config: SharedKeys) -> None:
    """Raises ConfigError, with no secret in it."""
    users = config.init_user, config.inner_credentials
    if config.authentication_enabled and users[1] is None:
        raise ConfigError(
            "authenticationEnabled=true: set innerClientAuthenticationCredentials, too; without it brokers and name "
            "servers refuse each other"
        )
    if all(users) and len({user.access_key for user in users if user}) == 1:
        raise ConfigError(
            "initAuthenticationUser is the user of innerClientAuthenticationCredentials, whose key no command may "
            "change: choose another name"
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
            raise ConfigError(f"tlsClientAuth={config.tls_client_auth}: expected {' or '.join(ports)}, separated by ;")
    if config.client_auth_ports and config.tls_ca is None:
        raise ConfigError(
            f"tlsClientAuth={config.tls_client_auth}: clients' certificates are checked with tlsCa; set it"
        )
