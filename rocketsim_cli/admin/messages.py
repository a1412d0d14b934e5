"""The commands of `rocketsim admin` that show messages by id, by key or by offset."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli import completion
from rocketsim_cli.admin.session import open_admin
from rocketsim_cli.message_facts import message_facts
from rocketsim_cli.options import AsJson, NameServer, Topic
from rocketsim_cli.tables import cell, show_json, when
from rocketsim_cli.trouble import Trouble

if TYPE_CHECKING:
    from rocketsim_client import MessageView


def query_msg_by_id(
    context: typer.Context,
    topic: Topic,
    msg_id: Annotated[
        str, typer.Option("-i", "--msg-id", help="The id that the producer made, or RocketMQ's offset message id.")
    ],
    name_server: NameServer,
    as_json: AsJson = False,
) -> None:
    """Show the message that has the given id."""
    with open_admin(context, name_server) as admin:
        _show([admin.query_msg_by_id(topic, msg_id)], as_json)


def query_msg_by_key(
    context: typer.Context,
    topic: Topic,
    key: Annotated[
        str,
        typer.Option("-k", "--msg-key", help="One of the message's keys, which are the words of its property KEYS."),
    ],
    name_server: NameServer,
    max_num: Annotated[
        int, typer.Option("-m", "--max-num", min=1, max=64, help="How many messages to show at most.")
    ] = 32,
    begin: Annotated[
        int,
        typer.Option("-b", "--begin-timestamp", help="Only messages stored at this time or later, in ms since 1970."),
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option("-e", "--end-timestamp", help="Only messages stored at this time or before, in ms since 1970."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest messages with a key."""
    with open_admin(context, name_server) as admin:
        found = admin.query_msg_by_key(topic, key, max_num=max_num, begin_timestamp=begin, end_timestamp=end)
        if not found and not found.more:
            raise Trouble(f"topic {topic} has no message with key {key!r}")
        _show(found, as_json)
        if found.more:
            older = f"-e {found[-1].store_timestamp}" if found else "a narrower time with -b and -e"
            print(f"Older messages may have this key, too; to find them: {older}", file=sys.stderr)


def query_msg_by_offset(
    context: typer.Context,
    topic: Topic,
    broker_name: Annotated[
        str,
        typer.Option("-b", "--broker-name", help="The broker's name.", autocompletion=completion.broker_names),
    ],
    queue_id: Annotated[int, typer.Option("-i", "--queue-id", min=0, help="The queue's id.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="The message's offset in the queue.")],
    name_server: NameServer,
    as_json: AsJson = False,
) -> None:
    """Show the message at one offset of a queue."""
    from rocketsim_client import MessageQueue

    with open_admin(context, name_server) as admin:
        admin.topic_route(topic)
        _show([admin.query_msg_by_offset(MessageQueue(topic, broker_name, queue_id), offset)], as_json)


def _show(messages: "Sequence[MessageView]", as_json: bool) -> None:
    found = [message_facts(message) for message in messages]
    if as_json:
        for facts in found:
            show_json(facts)
        return
    for number, facts in enumerate(found):
        if number:
            print()
        for name, value in facts.items():
            print(f"{name + ':':<18}{when(value) if name.endswith('Timestamp') else cell(value)}")
    sys.stdout.flush()
