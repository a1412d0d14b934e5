"""The options that `rocketsim` takes before every command: TLS, the protocol, and what only RocketMQ's servers need."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from rocketsim_cli.trouble import WrongCommandLine

_FILE: dict[str, Any] = {"exists": True, "dir_okay": False, "show_default": False}

Tls = Annotated[bool, typer.Option("--tls", envvar="ROCKETSIM_TLS", help="Connect to the servers with TLS.")]
TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", envvar="ROCKETSIM_TLS_CA", help="The CAs of the servers' certificates, PEM.", **_FILE),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        envvar="ROCKETSIM_TLS_CERT",
        help="The certificate of this client, PEM, for servers that ask for one.",
        **_FILE,
    ),
]
PROTOCOLS = ("auto", "grpc", "remoting")  # repeated from rocketsim_client.connection, whose import would slow --help
Protocol = Annotated[
    str,
    typer.Option(
        "--protocol",
        envvar="ROCKETSIM_PROTOCOL",
        help="grpc for RocketSim's servers, remoting for Apache RocketMQ's, auto to find out.",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key", envvar="ROCKETSIM_TLS_KEY", help="The key of the certificate of --tls-cert, PEM.", **_FILE
    ),
]
AddressMap = Annotated[
    str,
    typer.Option(
        "--address-map",
        envvar="ROCKETSIM_ADDRESS_MAP",
        help="Where this machine reaches RocketMQ's brokers, if not at the addresses that they advertise: "
        "10.0.0.3:10911=host:20911, or 10.0.*=host; several are separated by ','.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        envvar="ROCKETSIM_NAMESPACE",
        help="The instance of a cloud of RocketMQ 4. Its servers write the instance before each topic and group.",
        show_default=False,
    ),
]
NamespaceV2 = Annotated[
    str,
    typer.Option(
        "--namespace-v2",
        envvar="ROCKETSIM_NAMESPACE_V2",
        help="The namespace of RocketMQ 5, which requests carry in a field of its own.",
        show_default=False,
    ),
]

# This text is appended to the client's TLS errors, which name the options as in Python and Spark.
WHERE_FROM = (
    "On the command line these options are --tls, --tls-ca, --tls-cert and --tls-key before the command "
    "(`rocketsim --tls admin …`), or ROCKETSIM_TLS, ROCKETSIM_TLS_CA, ROCKETSIM_TLS_CERT and ROCKETSIM_TLS_KEY"
)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Connection options that stand before the command (`rocketsim --tls produce …`) or come from a context, with the
    context's access keys.  The fields have the names of the arguments of `Connection.of`.
    """

    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    protocol: str = "auto"
    # The following three fields are for RocketMQ's servers only.
    address_map: str = ""
    namespace: str = ""
    namespace_v2: str = ""
    # The keys of a context, and the token that belongs to them. Keys in the environment override all three.
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise WrongCommandLine(f"--protocol {self.protocol} is not one of {', '.join(PROTOCOLS)}")
        given = {"--tls-ca": self.tls_ca, "--tls-cert": self.tls_cert, "--tls-key": self.tls_key}
        if not self.tls and (named := [name for name, path in given.items() if path]):
            raise WrongCommandLine(f"{' and '.join(named)}: TLS is off; give --tls, too")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise WrongCommandLine("--tls-cert and --tls-key are a pair: a client's certificate and its key")
        self._check_for_rocketmq()

    def _check_for_rocketmq(self) -> None:
        """Checks the options for RocketMQ's servers by the client's rules, so that a context has no wrong ones."""
        if not (self.address_map or self.namespace or self.namespace_v2):
            return  # The imports below are slow, and most commands need none of these options.
        from rocketsim_client import address_map
        from rocketsim_client.errors import InvalidParameter
        from rocketsim_client.validation import check_namespaces

        try:
            address_map.AddressMap.parse(self.address_map)
            check_namespaces(self.namespace, self.namespace_v2)
        except InvalidParameter as error:
            raise WrongCommandLine(str(error)) from error
