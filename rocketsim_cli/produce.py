"""`rocketsim produce`: sends messages from arguments or standard input."""

import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli.connection import connection_to
from rocketsim_cli.options import NameServer, Topic
from rocketsim_cli.tables import console, note, show_json
from rocketsim_cli.trouble import EXIT_LESS_SAFE, Trouble, WrongCommandLine

if TYPE_CHECKING:
    from rocketsim_client import Message, Producer, SendResult

# The most sends that wait for an answer: enough to fill batches, but so few that the command ends soon after a failure.
IN_FLIGHT = 4096


def produce(
    context: typer.Context,
    name_server: NameServer,
    topic: Topic,
    bodies: Annotated[
        list[str] | None, typer.Argument(help="The bodies. Default: the lines of standard input.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="The tag of the messages (RocketMQ's TAGS).")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="The key of the messages (RocketMQ's KEYS), by which queryMsgByKey finds them."),
    ] = None,
    count: Annotated[int, typer.Option(help="How often to send all bodies.", min=1)] = 1,
    rate: Annotated[float | None, typer.Option(help="How many messages to send per second at most.", min=0.001)] = None,
    group: Annotated[str, typer.Option(help="The producer group.")] = "rocketsim-produce",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON line for each message; errors are JSON on standard error.")
    ] = False,
) -> None:
    """Send messages and show where each one was stored.  Brokers with autoCreateTopicEnable create a missing topic.

    The exit status is 0 if every message is as safe as the broker's mode asks for.  The status is 1 if a message was
    not sent, or may not have been sent.  The status is 3 if all messages are stored, but some less safely
    (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE), which means only on the master or not yet on the
    disk.
    """
    from rocketsim_client import Message, Producer

    def messages() -> "Iterator[Message]":
        given = bodies if bodies else None
        for _ in range(count if given else 1):
            lines = given if given else (line.rstrip("\n") for line in sys.stdin)
            for body in lines:
                yield Message(topic, body.encode(), tags=tag, keys=key)

    if count > 1 and not bodies:
        raise WrongCommandLine("--count repeats bodies given as arguments; standard input can be read only once")
    started = time.monotonic()
    statuses: Counter[str] = Counter()
    with Producer(connection_to(name_server, context), group=group) as producer:
        # On a terminal each answer is shown before the next line is read.
        in_flight = 1 if not bodies and sys.stdin.isatty() else IN_FLIGHT
        if _is_new(producer, topic):
            note(f"no broker has topic {topic!r}: the first message makes it", as_json=as_json)
        for result in _results(producer, messages(), rate, in_flight):
            statuses[result.send_status.name] += 1
            _show_sent(result, as_json, sum(statuses.values()))
    total = sum(statuses.values())
    if total == 0:
        raise Trouble("no message to send: give bodies as arguments, or lines on standard input")
    took_s = round(time.monotonic() - started, 2)
    if as_json:
        show_json({"kind": "summary", "messages": total, "seconds": took_s, "statuses": dict(statuses)}, stderr=True)
    elif total > 1:
        words = ", ".join(f"{name} {number}" for name, number in statuses.items())
        console(stderr=True).print(f"{total} messages in {took_s:.2f} s: {words}")
    if statuses.keys() - {"SEND_OK"}:
        raise typer.Exit(EXIT_LESS_SAFE)


def _is_new(producer: "Producer", topic: str) -> bool:
    """Returns True if the name servers know no broker with the topic.  Errors of this request are ignored, because the
    send will raise them again.
    """
    from rocketsim_client.errors import NoRoute, RocketSimError

    try:
        producer.cluster.route(topic)
    except NoRoute:
        return True
    except RocketSimError:
        pass
    return False


def _results(
    producer: "Producer", messages: "Iterator[Message]", rate: float | None, in_flight: int
) -> "Iterator[SendResult]":
    """Sends as fast as `rate` allows, and yields the results in the order of the messages.  Raises the error of the
    first failed send, and sends no more.
    """
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
        show_json(facts)
    elif sys.stdout.isatty() and number > 20:
        print(f"\r{number} messages", end="", file=sys.stderr)
    else:
        where = f"{queue.broker_name} queue {queue.queue_id} offset {result.queue_offset}"
        print(f"{result.send_status.name} {result.msg_id} {where}", flush=True)
