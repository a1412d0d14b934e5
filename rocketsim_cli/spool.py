"""`rocketsim spool`: shows the waiting and the dead messages of a producer's spool."""

import base64
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli.options import AsJson
from rocketsim_cli.tables import note, show_json, show_rows, when

if TYPE_CHECKING:
    from rocketsim_client.sending.spool_file import Dead, SpoolView

COLUMNS = ("topic", "waiting", "bytes", "oldest", "dead")
DEAD_COLUMNS = ("topic", "msgId", "spooled", "refused", "reason")


def spool(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The directory passed as Producer(spool=).", exists=True, file_okay=False),
    ],
    dead: Annotated[
        bool,
        typer.Option("--dead", help="Show the dead messages; with --json also their properties and bodies (base64)."),
    ] = False,
    discard_dead: Annotated[
        bool, typer.Option("--discard-dead", help="Delete the dead messages. No producer may have DIR open.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how many messages wait for brokers in a producer's spool, since when, and how many are dead.

    A dead message is damaged, or a broker has refused it for good. A producer can use the spool while this command
    reads it.
    """
    from rocketsim_client.sending.spool_file import SpoolFile, SpoolView

    with SpoolView(directory) as view:
        if dead and as_json:
            for one in view.dead():
                show_json(_facts(one))
        elif dead:
            rows = [
                {
                    "topic": one.topic,
                    "msgId": one.msg_id,
                    "spooled": when(one.spooled_ms),
                    "refused": when(one.dead_ms),
                    "reason": one.reason,
                }
                for one in view.dead()
            ]
            show_rows(DEAD_COLUMNS, rows, as_json=False)
        elif not discard_dead:
            show_rows(COLUMNS, _topics(view), as_json=as_json, formats={"oldest": when})
    if discard_dead:
        file = SpoolFile(directory)
        try:
            with file.transaction():
                count = file.discard_dead()
            file.give_back()
        finally:
            file.close()
        note(f"{directory}: {count} dead messages are deleted", as_json=as_json)


def _topics(view: "SpoolView") -> list[dict[str, object]]:
    waiting, sizes, dead = Counter[str](), Counter[str](), Counter(one.topic for one in view.dead())
    oldest: dict[str, int] = {}
    for one in view.waiting():
        waiting[one.topic] += one.records
        sizes[one.topic] += one.size_bytes
        oldest[one.topic] = min(one.oldest_ms, oldest.get(one.topic, one.oldest_ms))
    return [
        {
            "topic": topic,
            "waiting": waiting[topic],
            "bytes": sizes[topic],
            "oldest": oldest.get(topic),
            "dead": dead[topic],
        }
        for topic in sorted(waiting.keys() | dead.keys())
    ]


def _facts(one: "Dead") -> dict[str, object]:
    from rocketsim_proto.records import record
    from rocketsim_proto.records.compression import CompressionError, decompress

    facts: dict[str, object] = {
        "topic": one.topic,
        "msgId": one.msg_id,
        "spooledTimestamp": one.spooled_ms,
        "deadTimestamp": one.dead_ms,
        "reason": one.reason,
    }
    try:
        found = record.decode(one.record)
        body = found.body
        if found.sys_flag & record.SYS_FLAG_COMPRESSED:
            body = decompress(body, found.sys_flag)
    except (record.RecordError, CompressionError):  # the damaged record is shown as it is, in base64
        return facts | {"record": base64.b64encode(one.record).decode()}
    return facts | {
        "bornTimestamp": found.born_timestamp,
        "flag": found.flag,
        "properties": found.properties,
        "body": base64.b64encode(body).decode(),
    }
