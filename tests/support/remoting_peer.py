"""A server of the remoting protocol that replays what a real RocketMQ has answered, so that tests need no Java.

    python -m tests.support.remoting_peer 5.5.0 > tests/data/remoting/5.5.0.json

starts a RocketMQ of that version, creates a topic and a group there, and records the requests and answers of a short
session.  In the record, the peer's address replaces the addresses of the real broker.
"""

import base64
import json
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocketsim_proto.records import record
from rocketsim_proto.remoting import frame, message_batch
from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import IS_ANSWER, Form, Header

RECORDED = Path(__file__).parents[1] / "data" / "remoting"
BROKER = "broker:1"  # in a recording
TOPIC, GROUP = "recorded", "recorded_group"
MESSAGES = 40  # in queue 0: more than a broker returns for one pull

# The fields of a request by which the peer finds its answer.
KEYS = ("topic", "queueId", "queueOffset", "consumerGroup", "b", "e", "key", "timestamp", "subscription")
Answer = Callable[[Header, bytes], "bytes | None"]


def key_of(code: int, fields: Mapping[str, str]) -> str:
    return json.dumps([int(code), {name: fields[name] for name in KEYS if name in fields}], sort_keys=True)


def readers() -> list[str]:
    """Returns the names of the client's threads that read answers, one for each connection over remoting."""
    return [one.name for one in threading.enumerate() if one.name.startswith("rocketsim-remoting")]


class RemotingPeer:
    """Listens while the context is open.  `answer` makes the bytes to send for a request, or returns None to send
    nothing. `tls` is a folder with the server's certificate and key.  With `client_ca`, clients need a certificate of
    this CA.  With `alpn`, the TLS handshake agrees on one of these protocols.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        greeting: bytes = b"",
        tls: Path | None = None,
        client_ca: Path | None = None,
        alpn: Sequence[str] = (),
    ) -> None:
        self._answer = answer
        self._tls: ssl.SSLContext | None = None
        if tls is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(tls / "server.pem", tls / "server.key")
            if alpn:
                self._tls.set_alpn_protocols(list(alpn))
            if client_ca is not None:
                self._tls.load_verify_locations(client_ca)
                self._tls.verify_mode = ssl.CERT_REQUIRED
        self._greeting = greeting
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests: list[Header] = []
        self.accepted = 0  # connections of clients

    def __enter__(self) -> "RemotingPeer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # without this, the waiting `accept` keeps the socket open
        self._listening.close()
        self.drop()

    def send(self, data: bytes) -> None:
        """Sends bytes over all connections."""
        for one in self._connections:
            one.sendall(data)

    def drop(self) -> None:
        """Ends all connections."""
        connections, self._connections = self._connections, []
        for one in connections:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()

    def _accept(self) -> None:
        try:
            while True:
                one, _ = self._listening.accept()
                self.accepted += 1
                self._connections.append(one)
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()
        except OSError:
            pass

    def _serve(self, one: socket.socket) -> None:
        try:
            if self._tls is not None:
                one = self._tls.wrap_socket(one, server_side=True)
            one.sendall(self._greeting)
            with one.makefile("rb") as stream:
                while len(head := stream.read(8)) == 8:
                    form, header_bytes, body_bytes = frame.lengths(head)
                    header = frame.decode_header(form, stream.read(header_bytes))
                    self.requests.append(header)
                    answer = self._answer(header, stream.read(body_bytes))
                    if answer is not None:
                        one.sendall(answer)
        except (OSError, ValueError):
            pass
        finally:
            one.close()


def answer_to(request: Header, code: int = 0, remark: str = "", body: bytes = b"", **fields: object) -> bytes:
    texts = {name: frame.text(value) for name, value in fields.items()}
    return frame.encode(Header(code, request.opaque, IS_ANSWER, remark, texts, "JAVA", 513), body)


class Recording:
    """The recorded answers of one RocketMQ version.  `form` says how the answers' headers are written.  `changed`
    returns what to send for a request's code and the recorded body of its answer.
    """

    def __init__(
        self, version: str, form: Form = Form.JSON, changed: Callable[[int, bytes], bytes] = lambda _, body: body
    ) -> None:
        self._answers: dict[str, Any] = json.loads((RECORDED / f"{version}.json").read_text())
        self._form = form
        self._changed = changed
        self.address = BROKER  # the peer's address, once the peer listens

    def __call__(self, request: Header, _: bytes) -> bytes | None:
        found = self._answers.get(key_of(request.code, request.fields))
        if found is None:
            return answer_to(request, 3, f"not recorded: {key_of(request.code, request.fields)}")
        header = Header(**{**found["header"], "opaque": request.opaque})
        body = base64.b64decode(found["body"]).replace(BROKER.encode(), self.address.encode())
        return frame.encode(header, self._changed(request.code, body), self._form)


def replaying(
    version: str, form: Form = Form.JSON, *, tls: Path | None = None, client_ca: Path | None = None
) -> RemotingPeer:
    """Returns a peer that plays both the name server and the broker."""
    recording = Recording(version, form)
    peer = RemotingPeer(recording, tls=tls, client_ca=client_ca)
    recording.address = peer.address
    return peer


def record_visit(name_server: str) -> dict[str, Any]:
    from rocketsim_client.connection import Connection
    from rocketsim_client.transport.remoting.connections import Connections, Request
    from rocketsim_client.transport.remoting.reads import READER_GROUP

    connections = Connections(Connection.of(name_server, protocol="remoting"))
    found: dict[str, Any] = {}
    broker = ""

    def ask(address: str, code: int, fields: Mapping[str, object], body: bytes = b"", keep: bool = True) -> bytes:
        texts = {name: frame.text(value) for name, value in fields.items()}
        (reply,) = connections.calls(address, [Request(code, str(code), texts, body)], 10.0)
        header = {name: getattr(reply.header, name) for name in Header.__slots__}
        if keep:
            clean = reply.body.replace(broker.encode(), BROKER.encode()) if broker else reply.body
            found[key_of(code, texts)] = {"header": header, "body": base64.b64encode(clean).decode()}
        return reply.body

    clusters = ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, {}, keep=False).decode()
    broker = clusters.split('brokerAddrs":{0:"')[1].split('"')[0]
    made = {"defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
    queues = {"readQueueNums": 2, "writeQueueNums": 2}
    ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": TOPIC, **queues, **made}, keep=False)
    time.sleep(3)
    messages = [
        message_batch.BatchMessage(
            0,
            b"body %d" % number,
            record.encode_properties({"UNIQ_KEY": f"{number:032X}", "TAGS": "ab"[number % 2], "KEYS": f"k{number}"}),
        )
        for number in range(MESSAGES)
    ]
    send = {
        "a": "p",
        "b": TOPIC,
        "c": "TBW102",
        "d": 2,
        "e": 0,
        "f": 0,
        "g": int(time.time() * 1000),
        "h": 0,
        "m": True,
    }
    ask(broker, RequestCode.SEND_BATCH_MESSAGE, send, message_batch.encode(messages))
    time.sleep(2)
    ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, {})
    ask(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC, "acceptStandardJsonOnly": True})
    ask(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "no_such_topic", "acceptStandardJsonOnly": True})
    ask(name_server, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
    ask(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    ask(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "%RETRY%" + GROUP})
    pull = {
        **{"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "maxMsgNums": 1024, "sysFlag": 4, "commitOffset": 0},
        **{"suspendTimeoutMillis": 0, "subVersion": 0, "expressionType": "TAG"},
    }
    for subscription in ("*", "a"):
        for offset in (0, 32, 40):
            ask(broker, RequestCode.PULL_MESSAGE, {**pull, "queueOffset": offset, "subscription": subscription})
    for offset in (20, 10, 5, 2, 1, 0):  # where the client looks for the first message at a broker of 4.x
        of_nobody = {"consumerGroup": READER_GROUP, "queueOffset": offset, "subscription": "*"}
        ask(broker, RequestCode.PULL_MESSAGE, {**pull, **of_nobody})
    group = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
    ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, {**group, "setZeroIfNotFound": False})
    ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET, {})
    ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, {**group, "commitOffset": 40})
    ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "%RETRY%" + GROUP, **queues, **made})
    ask(broker, RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP})
    ask(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
    ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO, {})
    ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": TOPIC, "queueId": 0, "timestamp": 1})
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
        ask(broker, code, {"topic": TOPIC, "queueId": 0})
    ask(
        broker,
        RequestCode.QUERY_MESSAGE,
        {"topic": TOPIC, "key": "k7", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**63 - 1},
    )
    connections.close()
    return found


def main(version: str) -> None:
    from testbed.real_rocketmq import running

    settings = {"autoCreateSubscriptionGroup": "true"}
    with tempfile.TemporaryDirectory() as work, running(Path(work), version=version, settings=settings) as rocketmq:
        rocketmq.wait_registered()
        print(json.dumps(record_visit(rocketmq.name_server), indent=0))


if __name__ == "__main__":
    main(sys.argv[1])
