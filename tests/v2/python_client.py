"""Runs the official Python client in a program of its own, because this client and our broker cannot be in one process.

python_client.py all ENDPOINTS TOPIC FIFO_TOPIC     one JSON object
python_client.py fifo ENDPOINTS TOPIC               one JSON object; groups "simple" and "push" consume in order
python_client.py transact ENDPOINTS TOPIC           one JSON object
python_client.py filter ENDPOINTS TOPIC             what simple and push consumers got by conditions of SQL92
python_client.py delay ENDPOINTS DELAY_TOPIC        one JSON object
python_client.py tls ENDPOINTS TOPIC                what was sent and received over TLS
python_client.py keys ENDPOINTS TOPIC OTHER_TOPIC ACCESS_KEY SECRET_KEY    one JSON object
python_client.py produce ENDPOINTS TOPIC            a line for each body that was stored, until its input ends
python_client.py consume ENDPOINTS TOPIC            a line for each body, until there are no more
"""

import itertools
import json
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType


def message(topic: str, body: str, **more: str) -> Message:
    made = Message()
    made.topic, made.body = topic, body.encode()
    made.add_property("colour", "red")
    for name, value in more.items():
        setattr(made, name, value)
    return made


class Listener(MessageListener):
    """A listener that refuses each message the first time, and accepts it after that."""

    def __init__(self, wanted: int) -> None:
        self.got: list[tuple[str, int]] = []
        self.done = threading.Event()
        self._wanted = wanted
        self._lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        with self._lock:
            self.got.append((message.body.decode(), message.delivery_attempt))
            if message.delivery_attempt == 1:
                return ConsumeResult.FAILURE
            if sum(attempt > 1 for _, attempt in self.got) == self._wanted:
                self.done.set()
            return ConsumeResult.SUCCESS


def do_all(endpoints: str, topic: str, fifo_topic: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = Producer(configuration, (topic, fifo_topic))
    producer.startup()
    sent = [producer.send(message(topic, f"m{number}", tag="A", keys="k")) for number in range(3)]
    sent.append(producer.send_async(message(topic, "m3", tag="A", keys="k")).result())
    for number in range(3):
        producer.send(message(fifo_topic, f"f{number}", message_group="g"))

    simple = SimpleConsumer(configuration, "simple", {topic: FilterExpression("A")}, await_duration=5)
    simple.startup()
    received: list[Message] = []
    while len(received) < len(sent):
        received += simple.receive(32, 15)
    for one in received:
        simple.ack(one)
    left = simple.receive(32, 15)
    simple.shutdown()

    listener = Listener(len(sent))
    push = PushConsumer(configuration, "push", listener, {topic: FilterExpression()})
    push.startup()
    came_again = listener.done.wait(60)
    push.shutdown()
    producer.shutdown()
    found = {
        "sent": sorted(one.message_id for one in sent),
        "received": sorted(
            (one.body.decode(), one.tag, one.message_id, sorted(one.keys), one.properties) for one in received
        ),
        "left": len(left),
        "pushed": sorted(listener.got),
        "came_again": came_again,
    }
    print(json.dumps(found), flush=True)


class OrderedListener(MessageListener):
    """A listener that fails once for f-a-1, and every time for f-b-0."""

    def __init__(self, wanted: int) -> None:
        self.got: list[str] = []
        self.done = threading.Event()
        self._wanted = wanted
        self._lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        with self._lock:
            body = message.body.decode()
            self.got.append(body)
            if len(set(self.got)) == self._wanted:
                self.done.set()
            fails = body == "f-b-0" or (body == "f-a-1" and self.got.count(body) <= 1)
            return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def do_fifo(endpoints: str, topic: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = Producer(configuration, (topic,))
    producer.startup()
    for number in range(3):
        for group in "ab":
            producer.send(message(topic, f"f-{group}-{number}", message_group=group))
    producer.shutdown()

    simple = SimpleConsumer(configuration, "simple", {topic: FilterExpression()}, await_duration=5)
    simple.startup()
    received: list[str] = []
    while len(received) < 6:
        for one in simple.receive(2, 15):
            received.append(one.body.decode())
            simple.ack(one)
    simple.shutdown()

    listener = OrderedListener(6)
    push = PushConsumer(configuration, "push", listener, {topic: FilterExpression()})
    push.startup()
    done = listener.done.wait(60)
    push.shutdown()
    print(json.dumps({"received": received, "pushed": listener.got, "done": done}), flush=True)


class Checker(TransactionChecker):
    """A checker that does not know the answer when it is first asked.  When the checker is asked again, it answers what
    the message's body says.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.done = threading.Event()

    def check(self, message: Message) -> TransactionResolution:
        body = message.body.decode()
        self.asked.append((body, message.properties))
        times = [one for one, _ in self.asked].count(body)
        if times == 1:
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        if all([one for one, _ in self.asked].count(name) >= 2 for name in ("late commit", "late rollback")):
            self.done.set()
        return TransactionResolution.COMMIT if body == "late commit" else TransactionResolution.ROLLBACK


def transact(endpoints: str, topic: str) -> None:
    checker = Checker()
    producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,), checker=checker)
    producer.startup()
    ends = {"commit": "commit", "rollback": "rollback", "late commit": "", "late rollback": ""}
    for body, how in ends.items():
        transaction = producer.begin_transaction()
        producer.send(message(topic, body, tag="A"), transaction)
        if how:
            getattr(transaction, how)()
    was_asked = checker.done.wait(60)
    consumer = SimpleConsumer(
        ClientConfiguration(endpoints, Credentials()), "simple", {topic: FilterExpression("A")}, await_duration=5
    )
    consumer.startup()
    received: list[Message] = []
    while len(received) < 2:
        received += consumer.receive(32, 15)
    for one in received:
        consumer.ack(one)
    left = consumer.receive(32, 15)
    consumer.shutdown()
    producer.shutdown()
    found = {
        "was_asked": was_asked,
        "asked": sorted({body for body, _ in checker.asked}),
        "properties": checker.asked[0][1],
        "received": sorted((one.body.decode(), one.tag, one.properties["colour"]) for one in received),
        "left": len(left),
    }
    print(json.dumps(found), flush=True)


def filter_by_sql(endpoints: str, topic: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = Producer(configuration, (topic,))
    producer.startup()
    for number in range(10):
        one = message(topic, f"m{number}", tag="even" if number % 2 == 0 else "odd")
        one.add_property("price", str(number))
        producer.send(one)
    producer.shutdown()

    def condition(text: str) -> FilterExpression:
        return FilterExpression(text, FilterType.SQL)

    received = {}
    for group, text in (("by-price", "price > 3 AND price <= 6"), ("by-tag", "TAGS = 'odd' AND price < 4")):
        simple = SimpleConsumer(configuration, group, {topic: condition(text)}, await_duration=5)
        simple.startup()
        received[text] = []
        while found := simple.receive(32, 15):
            received[text] += [one.body.decode() for one in found]
            for one in found:
                simple.ack(one)
        simple.shutdown()

    bad = SimpleConsumer(configuration, "bad", {topic: condition("price >")}, await_duration=5)
    bad.startup()
    try:
        refused = repr(bad.receive(32, 15))
    except Exception as error:
        refused = str(error)
    bad.shutdown()

    listener = Listener(2)
    push = PushConsumer(configuration, "push-by-price", listener, {topic: condition("price BETWEEN 8 AND 9")})
    push.startup()
    came_again = listener.done.wait(60)
    push.shutdown()
    found = {"received": received, "refused": refused, "pushed": sorted(listener.got), "came_again": came_again}
    print(json.dumps(found), flush=True)


def delay(endpoints: str, topic: str) -> None:
    """Sends a message for the next second, and one for an hour later, and recalls the second."""
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = Producer(configuration, (topic,))
    producer.startup()
    due_s = int(time.time()) + 2
    sent = []
    for body, delivery_s in (("kept", due_s), ("recalled", due_s + 3600)):
        delayed = message(topic, body)
        delayed.delivery_timestamp = delivery_s
        sent.append(producer.send(delayed))
    recalled = producer.recall_message(topic, sent[1].recall_handle)
    consumer = SimpleConsumer(configuration, "simple", {topic: FilterExpression()}, await_duration=5)
    consumer.startup()
    received: list[Message] = []
    while not received:
        received += consumer.receive(32, 15)
    for one in received:
        consumer.ack(one)
    found = {
        "due": due_s * 1000,
        "recalled": recalled == sent[1].message_id,
        "received": [(one.body.decode(), one.message_id == sent[0].message_id) for one in received],
        "delivery_timestamp": received[0].delivery_timestamp,
        "received_at": time.time() * 1000,
    }
    consumer.shutdown()
    producer.shutdown()
    print(json.dumps(found), flush=True)


def produce(endpoints: str, topic: str) -> None:
    """Sends messages, and goes on after every failure."""
    producer = Producer(ClientConfiguration(endpoints, Credentials()), (topic,))
    producer.startup()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    for number in itertools.count():
        if ended.is_set():
            break
        try:
            producer.send(message(topic, f"m{number}"))
        except Exception as error:
            print(f"m{number}: {error}", file=sys.stderr, flush=True)
            ended.wait(0.05)
        else:
            print(f"m{number}", flush=True)
    producer.shutdown()


def consume(endpoints: str, topic: str) -> None:
    consumer = SimpleConsumer(
        ClientConfiguration(endpoints, Credentials()), "simple", {topic: FilterExpression()}, await_duration=2
    )
    consumer.startup()
    while received := consumer.receive(32, 15):
        for one in received:
            print(one.body.decode(), flush=True)
            consumer.ack(one)
    consumer.shutdown()


def with_keys(endpoints: str, topic: str, other: str, access_key: str, secret_key: str) -> None:
    """Tries which calls a user may make."""
    configuration = ClientConfiguration(endpoints, Credentials(access_key, secret_key))
    producer = Producer(configuration, (topic,))
    producer.startup()
    found = {}
    for name in (topic, other):
        try:
            found[name] = producer.send(message(name, "m")).message_id
        except Exception as error:
            found[name] = f"refused: {error}"
    consumer = SimpleConsumer(configuration, "g", {topic: FilterExpression()}, await_duration=2)
    consumer.startup()
    try:
        received = consumer.receive(32, 15)
        for one in received:
            consumer.ack(one)
        found["received"] = [one.message_id for one in received]
    except Exception as error:
        found["received"] = f"refused: {error}"
    consumer.shutdown()
    producer.shutdown()
    print(json.dumps(found), flush=True)


def over_tls(endpoints: str, topic: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = Producer(configuration, (topic,), tls_enable=True)
    producer.startup()
    sent = producer.send(message(topic, "m")).message_id
    consumer = SimpleConsumer(configuration, "g", {topic: FilterExpression()}, await_duration=5, tls_enable=True)
    consumer.startup()
    received: list[str] = []
    while sent not in received:
        for one in consumer.receive(32, 15):
            received.append(one.message_id)
            consumer.ack(one)
    consumer.shutdown()
    producer.shutdown()
    print(json.dumps({"received": len(received)}), flush=True)


if __name__ == "__main__":
    calls = {"all": do_all, "fifo": do_fifo, "transact": transact, "filter": filter_by_sql, "delay": delay}
    calls |= {"keys": with_keys, "tls": over_tls}
    (calls | {"produce": produce, "consume": consume})[sys.argv[1]](*sys.argv[2:])
