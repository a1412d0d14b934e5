"""Completes names at the Tab key: the topics, groups, brokers and clusters that the cluster has at that moment.

`rocketsim --install-completion` installs the completion in the user's shell.  At Tab the shell runs `rocketsim` with
the words before the cursor.  If the cluster cannot be asked, no names are offered, because an error text would appear
in the middle of the user's command line.
"""

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rocketsim_client import Admin
    from rocketsim_client.connection import Connection

TIMEOUT_S = 1.0
VARIABLE = "_ROCKETSIM_COMPLETE"  # the shell sets this environment variable when it runs `rocketsim` to complete a word
before_fragment = ""  # the front part of the word at the cursor, which bash has cut off at a colon


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _completed(ctx, incomplete, lambda admin: admin.topic_list())


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    def of_all_masters(admin: "Admin") -> Iterable[str]:
        for address in admin.masters(ctx.params.get("broker_addr")):
            yield from (group.group_name for group in admin.sub_groups(address))

    return _completed(ctx, incomplete, of_all_masters)


def broker_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _completed(ctx, incomplete, lambda admin: (member.broker_name for member in admin.cluster_list()))


def broker_addresses(ctx: typer.Context, incomplete: str) -> list[str]:
    return _completed(ctx, incomplete, lambda admin: (member.address for member in admin.cluster_list()))


def cluster_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _completed(ctx, incomplete, lambda admin: (member.cluster_name for member in admin.cluster_list()))


def _completed(ctx: typer.Context, incomplete: str, names: "Callable[[Admin], Iterable[str]]") -> list[str]:
    """Returns the names that begin with the word at the cursor, without the front part that bash has cut off at a
    colon.

    Names of RocketMQ's own topics begin with `%`, and are offered only if the word is not empty.
    """
    begin = before_fragment + incomplete
    fitting = {name for name in _found(ctx, names) if name.startswith(begin)}
    if not begin:
        fitting = {name for name in fitting if not name.startswith("%")}
    return [name.removeprefix(before_fragment) for name in sorted(fitting)]


def _found(ctx: typer.Context, names: "Callable[[Admin], Iterable[str]]") -> list[str]:
    """Returns the names that the cluster has sent within TIMEOUT_S."""
    found: list[str] = []

    def ask(connection: "Connection") -> None:
        from rocketsim_client import Admin

        with contextlib.suppress(Exception), Admin(connection) as admin:
            for name in names(admin):
                found.append(name)

    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(Exception):
        connection = replace(_connection(ctx), timeout_s=TIMEOUT_S)
        asking = threading.Thread(target=ask, args=(connection,), daemon=True)
        asking.start()
        asking.join(TIMEOUT_S)
    return list(found)


def _connection(ctx: typer.Context) -> "Connection":
    """Returns the connection that the finished command would use.

    For a completion typer does not call `rocketsim`, so this function takes the options before the command from the
    parsed words.
    """
    import rocketsim_client  # noqa: F401 -- a slow import, so it happens before the time-out starts
    from rocketsim_cli import contexts
    from rocketsim_cli.connection import Invocation, connection_to
    from rocketsim_cli.connection_options import ConnectionOptions

    root = ctx.find_root()
    given = {one.name: root.params[one.name] for one in fields(ConnectionOptions) if one.name in root.params}
    cluster = contexts.load().chosen(root.params.get("cluster"))
    root.obj = Invocation(ConnectionOptions(**given), cluster)
    by_context = cluster.name_server if cluster is not None else ""
    return connection_to(ctx.params.get("name_server") or ctx.params.get("broker_addr") or by_context, ctx)


def join_words_of_bash(environment: MutableMapping[str, str] = os.environ) -> None:
    """Joins the words that bash has split at colons, as in `-n 127.0.0.1:9876`.

    Call this function before typer parses the words.  Bash sees only the part after the last colon as the word at the
    cursor, and a completion replaces only that part.
    """
    global before_fragment
    if environment.get(VARIABLE) != "complete_bash" or "COMP_WORDS" not in environment:
        return
    words = environment["COMP_WORDS"].split("\n")[: int(environment["COMP_CWORD"]) + 1]
    joined: list[str] = []
    was_colon = False
    for word in words:
        is_colon = set(word) == {":"}
        if joined and word and (is_colon or was_colon):
            joined[-1] += word
        else:
            joined.append(word)
        was_colon = is_colon
    fragment = "" if was_colon else words[-1]
    before_fragment = joined[-1].removesuffix(fragment)
    environment["COMP_WORDS"] = "\n".join([*joined[:-1], fragment])
    environment["COMP_CWORD"] = str(len(joined) - 1)
