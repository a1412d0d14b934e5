"""`rocketsim produce`: messages by hand and by pipe."""

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli.options import NameServer, Topic
from rocketsim_cli.tables import console
from rocketsim_cli.trouble import Trouble

if TYPE_CHECKING:
    from rocketsim_client import Message, Producer, SendResult

# Sends on their way at once: enough to fill batches, few enough to stop soon after the first failure.
IN_FLIGHT = 4096


def produce(
    name_server: NameServer,
    topic: Topic,
    bodies: Annotated[list[str] | None, typer.Argument(help="Bodies. None: the lines of standard input.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="RocketMQ's TAGS.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="RocketMQ's KEYS: findable with queryMsgByKey.")] = None,
    count: Annotated[int, typer.Option(help="Send everything that often.", min=1)] = 1,
    rate: Annotated[float | None, typer.Option(help="At most so many messages a second.", min=0.001)] = None,
    group: Annotated[str, typer.Option(help="The producer group.")] = "rocketsim-produce",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line a message.")] = False,
) -> None:
    """Send messages and say where each one went."""
    from rocketsim_client import Message, Producer

    def messages() -> "Iterator[Message]":
        given = bodies if bodies else None
        for _ in range(count if given else 1):
            lines = given if given else (line.rstrip("\n") for line in sys.stdin)
            for body in lines:
                yield Message(topic, body.encode(), tags=tag, keys=key)

    if count > 1 and not bodies:
        raise Trouble("--count repeats bodies given as arguments; standard input can be read only once")
    started = time.monotonic()
    statuses: Counter[str] = Counter()
    with Producer(name_server=name_server, group=group) as producer:
        # Who types wants to see each answer before the next line.
        in_flight = 1 if not bodies and sys.stdin.isatty() else IN_FLIGHT
        for result in _results(producer, messages(), rate, in_flight):
            statuses[result.send_status.name] += 1
            _show_sent(result, as_json, sum(statuses.values()))
    total = sum(statuses.values())
    if total == 0:
        raise Trouble("there was nothing to send: give bodies as arguments, or lines on standard input")
    words = ", ".join(f"{name} {number}" for name, number in statuses.items())
    if total > 1:
        console(stderr=True).print(f"{total} messages in {time.monotonic() - started:.2f} s: {words}")


def _results(
    producer: "Producer", messages: "Iterator[Message]", rate: float | None, in_flight: int
) -> "Iterator[SendResult]":
    """Send as fast as allowed and give the results in the order of the messages; the first failure ends it."""
    waiting: deque[Future[SendResult]] = deque()
    started = time.monotonic()
    for number, message in enumerate(messages):
        if rate is not None:
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
        waiting.append(producer.send_async(message))
        while waiting and (waiting[0].done() or len(waiting) >= in_flight):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _show_sent(result: "SendResult", as_json: bool, number: int) -> None:
    queue = result.message_queue
    if as_json:
        facts = {
            "status": result.send_status.name,
            "msgId": result.msg_id,
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "queueOffset": result.queue_offset,
        }
        print(json.dumps(facts), flush=True)
    elif sys.stdout.isatty() and number > 20:
        print(f"\r{number} messages", end="", file=sys.stderr)
    else:
        where = f"{queue.broker_name} queue {queue.queue_id} offset {result.queue_offset}"
        print(f"{result.send_status.name} {result.msg_id} {where}", flush=True)
