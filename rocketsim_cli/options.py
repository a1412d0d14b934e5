"""Options that several commands share.  Short options have the same letters as in mqadmin."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rocketsim_cli import completion

NAME_SERVER_HELP = "The name server's host:port; several are separated by ';'."

NameServer = Annotated[str, typer.Option("-n", "--name-server", envvar="NAMESRV_ADDR", help=NAME_SERVER_HELP)]
OptionalNameServer = Annotated[
    str | None, typer.Option("-n", "--name-server", envvar="NAMESRV_ADDR", help=NAME_SERVER_HELP)
]
Topic = Annotated[str, typer.Option("-t", "--topic", help="The topic.", autocompletion=completion.topics)]
OptionalTopic = Annotated[
    str | None, typer.Option("-t", "--topic", help="The topic.", autocompletion=completion.topics)
]
Group = Annotated[str, typer.Option("-g", "--group", help="The consumer group.", autocompletion=completion.groups)]
OptionalGroup = Annotated[
    str | None, typer.Option("-g", "--group", help="The consumer group.", autocompletion=completion.groups)
]
BrokerAddr = Annotated[
    str | None,
    typer.Option(
        "-b", "--broker-addr", help="Only this broker, host:port.", autocompletion=completion.broker_addresses
    ),
]
BrokerName = Annotated[
    str,
    typer.Option(
        "-b",
        "--broker-name",
        help="The name that a master and its slaves share.",
        autocompletion=completion.broker_names,
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option("-c", "--cluster", help="All brokers of this cluster.", autocompletion=completion.cluster_names),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines; errors are JSON on standard error.")]

ClusterFolder = Annotated[
    Path | None,
    typer.Option("--dir", help="The cluster's directory. Default: the one that `up --detach` uses without --dir."),
]


class Truth(StrEnum):
    """A boolean option that takes `true` or `false`, as in mqadmin."""

    TRUE = "true"
    FALSE = "false"

    def __bool__(self) -> bool:
        return self is Truth.TRUE
