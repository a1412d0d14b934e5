"""The server of the remoting protocol endures connections that are slow, lie, flood or do not read, and has limits."""

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from rocketsim_proto.remoting.frame import HEAD, IS_ONE_WAY, Form, Header, encode

from broker_service.errors import InvalidParameter
from broker_service.runtime.certificates import Certificates
from broker_service.runtime.remoting import server as module
from broker_service.runtime.remoting.calls import Answer, Calls, Outcome, Request
from broker_service.runtime.remoting.memory_budget import MemoryBudget
from broker_service.runtime.remoting.server import RemotingServer
from testbed.polling import until
from tests.support.remoting import Client, closed
from tests.support.tls import CA, DATA

ECHO, HELD, WRONG, BROKEN, LARGE, AT_ONCE = 1, 2, 3, 4, 5, 6


class Answers:
    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.holding = 0
        self.begun: list[str] = []
        self.at_once: list[int] = []  # how many requests came together

    async def echo(self, request: Request) -> Answer:
        return Answer(request.body, {"n": request.text("n", "")})

    async def hold(self, request: Request) -> Answer:
        self.holding += 1
        self.begun.append("held")
        await self.held.wait()
        return Answer(b"late")

    async def wait(self, request: Request) -> Answer:
        self.begun.append(request.text("n"))
        return Answer(fields=dict(request.fields))

    def answer_at_once(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        self.at_once.append(len(requests))
        return [self._outcome(request) for request in requests]

    def _outcome(self, request: Request) -> Outcome:
        match request.text("n"):
            case "wrong":
                return InvalidParameter("not so")
            case "broken":
                return ZeroDivisionError("here")
            case number:
                self.begun.append(number)
                return Answer(fields={"n": number})

    async def wrong(self, request: Request) -> Answer:
        raise InvalidParameter("not so")

    async def broken(self, request: Request) -> Answer:
        raise ZeroDivisionError

    async def large(self, request: Request) -> Answer:
        return Answer(bytes(request.number("n")))


@asynccontextmanager
async def serving(certificates: Certificates | None = None) -> AsyncIterator[tuple[RemotingServer, Answers]]:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    answers = Answers()
    handlers: dict[int, Callable[[Request], Awaitable[Answer]]] = {
        ECHO: answers.echo,
        HELD: answers.hold,
        WRONG: answers.wrong,
        BROKEN: answers.broken,
        LARGE: answers.large,
        AT_ONCE: answers.wait,
    }
    calls = Calls(handlers, {AT_ONCE: answers.answer_at_once})  # type: ignore[arg-type, dict-item]
    made = RemotingServer("remotingPort", [listening], calls, certificates)
    running = asyncio.create_task(made.run())
    try:
        yield made, answers
    finally:
        answers.held.set()
        await made.stop(5)
        running.cancel()
        await asyncio.wait([running])
        assert not made.connections


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        await closed(writer)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("form", Form)
async def test_a_request_of_either_form_is_answered(form: Form) -> None:
    async with serving() as (made, _), await Client.connect(made.port) as client:
        assert await client.call(ECHO, b"body", form, n="ü") == ({"n": "ü"}, b"body")


async def test_an_answer_does_not_wait_for_those_of_requests_before_it() -> None:
    async with serving() as (made, answers), await Client.connect(made.port) as client:
        held = client.ask(HELD)
        assert (await client.call(ECHO, b"first"))[1] == b"first"
        assert not held.done()
        answers.held.set()
        assert (await held)[1] == b"late"


async def test_requests_that_come_together_are_answered_without_a_task() -> None:
    async with serving() as (made, answers), await Client.connect(made.port) as client:
        headers = await client.together(*[(AT_ONCE, {"n": number}, b"") for number in range(5)], (ECHO, {"n": 5}, b""))
        assert [header.fields["n"] for header in headers] == ["0", "1", "2", "3", "4", "5"]
        assert answers.at_once == [5]
        assert await client.refused(AT_ONCE, n="wrong") == 29
        assert await client.refused(AT_ONCE, n="broken") == 1
        answers.at_once = None  # type: ignore[assignment]  # so that the function itself fails
        assert await client.refused(AT_ONCE, n=1) == 1


async def test_requests_begin_in_their_order_even_if_the_first_one_has_to_wait() -> None:
    async with serving() as (made, answers), await Client.connect(made.port) as client:
        held = asyncio.create_task(client.together((HELD, {}, b""), (AT_ONCE, {"n": 1}, b"")))
        await until(lambda: bool(answers.begun), "the first request has begun")
        assert (await client.call(AT_ONCE, n=2))[0] == {"n": "2"}
        assert answers.begun == ["held", "1", "2"]
        answers.held.set()
        assert [header.code for header in await held] == [0, 0]


async def test_a_request_before_garbage_is_answered() -> None:
    async with serving() as (made, _), connected(made.port) as (reader, writer):
        writer.write(encode(Header(AT_ONCE, 7, fields={"n": "1"})) + GARBAGE["http"])
        async with asyncio.timeout(60):
            assert b'"opaque":7' in await reader.read()


async def test_refusals_and_failures_are_answers_and_end_no_other_call(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (made, _), await Client.connect(made.port) as client:
        assert await client.refused(WRONG) == 29
        assert await client.refused(99) == 3
        assert await client.refused(BROKEN) == 1
        assert "ZeroDivisionError" in caplog.text
        assert (await client.call(ECHO, b"still here"))[1] == b"still here"


async def test_a_one_way_request_gets_no_answer_not_even_an_error() -> None:
    async with serving() as (made, answers), await Client.connect(made.port) as client:
        unanswered = [client.ask(code, flag=IS_ONE_WAY) for code in (ECHO, WRONG, HELD)]
        await until(lambda: answers.holding == 1, "the one-way requests have come")
        answers.held.set()
        assert (await client.call(ECHO, b"next"))[1] == b"next"
        assert not any(one.done() for one in unanswered)


async def test_an_answer_that_fits_into_no_frame_is_an_error() -> None:
    async with serving() as (made, _), await Client.connect(made.port) as client:
        assert await client.refused(LARGE, n=17 << 20) == 1


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303"),
    "too long": HEAD.pack(17 << 20, 10) + bytes(10),
    "a header longer than its frame": HEAD.pack(20, 100) + bytes(100),
    "no header": HEAD.pack(4, 0),
    "a header that is no json": HEAD.pack(7, 3) + b"abc",
    "a code that is no number": HEAD.pack(4 + 14, 14) + b'{"code":"ten"}',
    "a binary header with wrong lengths": HEAD.pack(4 + 21, 1 << 24 | 21)
    + struct.pack(">hBhiiii", 1, 0, 1, 1, 0, 99, 0),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_ends_its_connection_and_no_other(what: str) -> None:
    async with serving() as (made, _), await Client.connect(made.port) as other:
        async with connected(made.port) as (reader, writer):
            writer.write(GARBAGE[what])
            async with asyncio.timeout(60):
                assert await is_closed(reader)
            assert (await other.call(ECHO, b"here"))[1] == b"here"


@pytest.mark.parametrize("sent", [b"", HEAD.pack(100, 50)[:5], HEAD.pack(100, 50) + b"{"])
async def test_a_connection_that_sends_no_whole_request_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_S", "FRAME_S", "CHECK_TIMES_EVERY_S"):
        monkeypatch.setattr(module, name, 0.05)
    async with serving() as (made, _):
        async with connected(made.port) as (reader, writer):
            writer.write(sent)
            async with asyncio.timeout(60):
                assert await is_closed(reader)


def client_hello() -> bytes:
    """Returns the bytes with which a client begins a TLS handshake."""
    hello = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return hello.read()


@pytest.mark.parametrize("part", ["nothing", "half of the hello", "the hello"])
async def test_a_tls_handshake_without_an_end_is_closed_and_takes_no_slot_and_no_thread(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only slot is free again once the connection is closed.  The handshake has a time limit of its own, because
    the limit for the first request begins after it.
    """
    monkeypatch.setattr(module, "most_connections", lambda _: 1)
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_MS", 50)
    hello = client_hello()
    sent = {"nothing": b"", "half of the hello": hello[: len(hello) // 2], "the hello": hello}[part]
    async with serving(Certificates(DATA / "server.pem", DATA / "server.key")) as (made, _):
        threads = {*threading.enumerate()}
        async with connected(made.port) as (reader, writer):
            writer.write(sent)
            async with asyncio.timeout(20):  # without a time limit of the server, asyncio ends a handshake after 60 s
                with suppress(ConnectionError):
                    await reader.read()  # to its end, because the server answers a whole hello
            assert {*threading.enumerate()} <= threads
        monkeypatch.undo()
        async with await Client.connect(made.port, context=ssl.create_default_context(cafile=CA)) as client:
            assert (await client.call(ECHO, b"here"))[1] == b"here"
        assert made.refused == 0


async def test_an_idle_connection_is_closed_and_one_that_waits_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDLE_S", "CHECK_TIMES_EVERY_S"):
        monkeypatch.setattr(module, name, 0.05)
    async with serving() as (made, answers), await Client.connect(made.port) as waits:
        held = waits.ask(HELD)
        await until(lambda: answers.holding == 1, "the call is held")
        async with await Client.connect(made.port) as idle:
            await idle.call(ECHO)
            await asyncio.wait([idle.reading])
        assert not held.done()
        answers.held.set()
        assert (await held)[1] == b"late"


async def test_connections_beyond_the_limit_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "most_connections", lambda _: 1)
    async with serving() as (made, _), await Client.connect(made.port) as first:
        await first.call(ECHO)
        async with connected(made.port) as (reader, _):
            async with asyncio.timeout(60):
                assert await is_closed(reader)
            assert made.refused == 1
            assert (await first.call(ECHO, b"here"))[1] == b"here"


async def test_requests_beyond_the_memory_for_them_are_not_read_until_others_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_REQUEST_BYTES", 1 << 20)
    budgets: dict[int, MemoryBudget] = {}

    def budget_of(most_bytes: int) -> MemoryBudget:
        return budgets.setdefault(most_bytes, MemoryBudget(most_bytes))

    monkeypatch.setattr(module, "MemoryBudget", budget_of)
    async with serving() as (made, answers):
        clients = [await Client.connect(made.port) for _ in range(4)]
        held = [client.ask(HELD, body=bytes(400_000)) for client in clients]
        await until(lambda: answers.holding == 2, "as many requests have come as there is room for")
        figures = {figure.name: next(iter(figure.samples))[1] for figure in made.figures()}
        assert 800_000 < figures["rocketsim_remoting_request_bytes"]
        assert budgets[1 << 20].taken_bytes <= 1 << 20
        answers.held.set()
        for one in held:
            assert (await one)[1] == b"late"
        for client in clients:
            await client.__aexit__()
        await until(lambda: made.request_bytes == 0, "all memory is given back")


async def test_a_large_request_whose_call_waits_for_memory_counts_as_arriving(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call has the memory for requests, one request waits for it, and the others are not read."""
    for limit in ("MAX_REQUEST_BYTES", "MAX_ARRIVING_BYTES"):
        monkeypatch.setattr(module, limit, 4 << 20)
    async with serving() as (made, answers), AsyncExitStack() as stack:
        writers = [(await stack.enter_async_context(connected(made.port)))[1] for _ in range(6)]
        for number, writer in enumerate(writers):
            writer.write(encode(Header(HELD, number), bytes(4_000_000)))
        await until(lambda: made.request_bytes > 8_000_000, "one request waits for memory behind a call")
        for _ in range(1000):  # turns in which the loop could read more
            await asyncio.sleep(0)
            assert made.request_bytes > 8_000_000
        assert answers.holding == 1
        answers.held.set()
        await until(lambda: answers.holding == 6 and not made.request_bytes, "all have been answered")


async def test_large_requests_that_do_not_come_to_their_end_keep_no_small_ones_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ARRIVING_BYTES", 1 << 20)
    async with serving() as (made, _), AsyncExitStack() as stack:
        for _ in range(3):
            _, writer = await stack.enter_async_context(connected(made.port))
            writer.write(encode(Header(ECHO, 1), bytes(600_000))[:100_000])
        await until(lambda: made.request_bytes > 500_000, "one of them has room")
        assert made.request_bytes <= 1 << 20
        client = await stack.enter_async_context(await Client.connect(made.port))
        assert (await client.call(ECHO, b"small"))[1] == b"small"


async def test_what_has_come_of_a_request_takes_no_memory_once_its_connection_ends() -> None:
    async with serving() as (made, _):
        async with connected(made.port) as (_, writer):
            writer.write(encode(Header(ECHO, 1), bytes(600_000))[:500_000])
            await until(lambda: made.request_bytes > 400_000, "the first part has come")
            writer.transport.abort()
            await until(lambda: made.request_bytes == 0, "it is given back")


async def test_a_client_that_does_not_read_its_answers_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES_OF_ONE", 4 << 20)
    async with serving() as (made, _), await Client.connect(made.port) as other:
        await other.call(ECHO)
        async with connected(made.port) as (_, writer):
            for number in range(40):
                writer.write(encode(Header(LARGE, number, fields={"n": str(1 << 20)})))
            await until(lambda: made.connections == 1, "the one that does not read is gone")
            assert (await other.call(ECHO, b"here"))[1] == b"here"


async def test_a_client_that_stops_reading_for_long_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STALLED_S", "CHECK_TIMES_EVERY_S"):
        monkeypatch.setattr(module, name, 0.05)
    async with serving() as (made, _):
        async with connected(made.port) as (_, writer):
            writer.write(encode(Header(LARGE, 1, fields={"n": str(15 << 20)})))
            await until(lambda: made.unsent_bytes > 0, "its answer waits")
            await until(lambda: made.connections == 0, "it is gone")


async def test_a_connection_whose_client_has_ended_counts_until_its_answers_are_read_or_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHECK_TIMES_EVERY_S", 0.05)
    ended, close = asyncio.Event(), module.Connection.close

    def closing(one: module.Connection) -> None:
        close(one)
        ended.set()

    monkeypatch.setattr(module.Connection, "close", closing)
    async with serving() as (made, _):
        async with connected(made.port) as (_, writer):
            writer.write(encode(Header(LARGE, 1, fields={"n": str(15 << 20)})))
            await until(lambda: made.unsent_bytes > 0, "its answer waits")
            writer.write_eof()
            await ended.wait()
            assert made.connections == 1 and made.unsent_bytes > 0
            monkeypatch.setattr(module, "STALLED_S", 0.05)
            await until(lambda: made.connections == 0, "it is gone")
