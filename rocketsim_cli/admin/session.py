"""Opens the admin client of one command, and converts answers to table rows with RocketMQ's names."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING

import typer

from rocketsim_cli.connection import connection_to
from rocketsim_cli.tables import show_rows
from rocketsim_cli.trouble import WrongCommandLine

if TYPE_CHECKING:
    from rocketsim_client import Admin, ChangedAt, SubscriptionGroupConfig, TopicConfig


@contextmanager
def open_admin(context: typer.Context, name_server: str | None, broker_addr: str | None = None) -> "Iterator[Admin]":
    """Opens an admin client for one command.  With a broker's address (`-b`), the client calls only that broker, and
    needs no name server.
    """
    from rocketsim_client import Admin

    if not name_server and not broker_addr:
        raise WrongCommandLine(
            "no name server given: give -n host:port or set NAMESRV_ADDR, or name one broker with -b"
        )
    with Admin(connection_to(name_server or broker_addr or "", context)) as admin:
        yield admin


def change_at_masters(
    context: typer.Context,
    name_server: str | None,
    broker_addr: str | None,
    cluster: str | None,
    change: "Callable[[Admin, str], Mapping[str, TopicConfig | SubscriptionGroupConfig]]",
) -> list[dict[str, object]]:
    """Calls `change` with an admin client and the address of each master.  Returns one row for each broker: the new
    setting, and the status of the change (which brokers have stored it).
    """
    from rocketsim_client.admin import at_each

    with open_admin(context, name_server, broker_addr) as admin:
        done = at_each(admin.masters(broker_addr, cluster), lambda address: change(admin, address))
    return [
        {"brokerAddr": at, **facts(value), "status": value.commit_status.name}
        for found in done.values()
        for at, value in found.items()
    ]


def show_deleted(what: Mapping[str, object], deleted: "ChangedAt", *, as_json: bool) -> None:
    """Shows where the object that `what` names was deleted, and which brokers have stored the deletion."""
    rows = [{**what, "deletedAt": at, "status": deleted.statuses[at].name} for at in deleted]
    show_rows((*what, "deletedAt", "status"), rows, as_json=as_json)


def facts(value: object) -> dict[str, object]:
    """Converts a dataclass to a table row whose columns have RocketMQ's names, in camelCase.  A field `queue` becomes
    three columns, and the field `commit_status` is left out.
    """
    assert is_dataclass(value) and not isinstance(value, type)
    found: dict[str, object] = {}
    for name, part in asdict(value).items():
        if name == "queue":
            queue = value.queue  # type: ignore[attr-defined]
            found |= {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
        elif name != "commit_status":
            found[camel(name)] = part
    return found


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
