"""A client counts as connected while it has streams or makes calls, and for some time after the last of them."""

import asyncio
from typing import Any

import pytest
from rocketmq_v2 import service_pb2 as s

from broker_service.errors import SystemBusy
from broker_service.wire import clients as module
from broker_service.wire.clients import (
    MAX_COMMAND_BYTES,
    MAX_COMMANDS,
    MAX_STREAMS_OF_CLIENT,
    MAX_TOPICS,
    SILENT_S,
    STREAM_GONE_S,
    Clients,
    ClientStream,
)
from testbed.polling import PATIENCE_S, until


def stream_of(client_id: str, context: Any) -> ClientStream:
    return ClientStream(client_id, context, lambda check: s.TelemetryCommand())


class Setup:
    def __init__(self) -> None:
        self.now = 100.0
        self.gone: list[str] = []
        self.clients = Clients(lambda: self.now)
        self.clients.gone.append(self.gone.append)

    def stream(self, client_id: str = "c") -> ClientStream:
        stream = stream_of(client_id, None)
        self.clients.opened(stream)
        return stream

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.clients.sweep()


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_a_client_is_there_while_it_has_a_stream(setup: Setup) -> None:
    setup.stream()
    setup.after(1e6)
    assert setup.clients.is_connected("c") and setup.gone == []
    assert not setup.clients.is_connected("other")


async def test_a_client_is_gone_some_seconds_after_its_last_stream(setup: Setup) -> None:
    first, second = setup.stream(), setup.stream()
    setup.clients.ended(first)
    setup.after(1000)
    assert setup.clients.is_connected("c")
    setup.clients.ended(second)
    setup.after(STREAM_GONE_S - 0.1)
    assert setup.clients.is_connected("c") and setup.gone == []
    setup.after(0.2)
    assert not setup.clients.is_connected("c") and setup.gone == ["c"]
    assert len(setup.clients) == 0


async def test_the_end_of_a_stream_is_noticed_in_time_though_others_may_be_silent_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that has made a call and has no stream yet may be silent for `SILENT_S`, which must not delay the notice
    that another client's stream has ended.
    """
    loop = asyncio.get_running_loop()
    clients = Clients(loop.time)
    sweeps: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def noted(when: float, work: Any, *given: Any, **options: Any) -> asyncio.TimerHandle:
        sweeps.append(call_at(when, work, *given, **options))
        return sweeps[-1]

    monkeypatch.setattr(loop, "call_at", noted)
    clients.called("silent")
    stream = stream_of("c", None)
    clients.opened(stream)
    clients.ended(stream)
    later, sooner = sweeps
    assert later.cancelled() and sooner.when() <= loop.time() + STREAM_GONE_S
    clients.called("silent")
    assert sweeps == [later, sooner]
    clients.close()
    assert sooner.cancelled()


async def test_a_client_that_reconnects_in_time_was_never_gone(setup: Setup) -> None:
    setup.clients.ended(setup.stream())
    setup.after(STREAM_GONE_S / 2)
    setup.stream()
    setup.after(STREAM_GONE_S)
    assert setup.clients.is_connected("c") and setup.gone == []


async def test_a_client_without_a_stream_is_there_until_it_is_silent(setup: Setup) -> None:
    """Python's push consumer may lose its stream and continue with only a heartbeat every ten seconds."""
    setup.clients.ended(setup.stream())
    for _ in range(10):
        setup.clients.called("c")
        setup.after(10)
        assert setup.clients.is_connected("c")
    setup.after(SILENT_S)
    assert setup.gone == ["c"]


async def test_a_goodbye_counts_at_once_and_once(setup: Setup) -> None:
    stream = setup.stream()
    setup.clients.terminated("c")
    assert setup.gone == ["c"] and not setup.clients.is_connected("c")
    setup.clients.ended(stream)
    setup.after(1000)
    assert setup.gone == ["c"]


async def test_a_goodbye_counts_of_a_client_that_the_master_before_knew(setup: Setup) -> None:
    setup.clients.terminated("c")
    assert setup.gone == ["c"] and not setup.clients.is_connected("c") and len(setup.clients) == 0


async def test_streams_are_bounded_and_one_that_ends_makes_room(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 2)
    first, _ = setup.stream("a"), setup.stream("b")
    with pytest.raises(SystemBusy, match="2 streams"):
        setup.stream("c")
    assert not setup.clients.is_connected("c") and len(setup.clients) == 2
    setup.clients.ended(first)
    setup.stream("c")
    assert setup.clients.is_connected("c")


async def serve(setup: Setup) -> None:
    """Serves a Telemetry call: opens the client's stream, and ends the stream when the call ends."""
    stream = setup.stream()
    try:
        await asyncio.Event().wait()
    finally:
        setup.clients.ended(stream)


async def test_of_one_clients_streams_the_oldest_ends(setup: Setup) -> None:
    calls = [asyncio.create_task(serve(setup)) for _ in range(MAX_STREAMS_OF_CLIENT)]
    await asyncio.sleep(0)
    assert setup.clients.stream_count == MAX_STREAMS_OF_CLIENT
    newest = setup.stream()
    await asyncio.gather(calls[0], return_exceptions=True)
    assert [call.done() for call in calls] == [True] + [False] * (MAX_STREAMS_OF_CLIENT - 1)
    assert setup.clients.stream_count == MAX_STREAMS_OF_CLIENT and setup.clients.stream_of("c") is newest
    assert setup.clients.is_connected("c") and setup.gone == []
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_when_the_port_closes_no_client_counts_as_gone(setup: Setup) -> None:
    """The clients go to the next master, which knows what they have under way."""
    serving = asyncio.create_task(serve(setup))
    await asyncio.sleep(0)
    setup.clients.close()
    await asyncio.gather(serving, return_exceptions=True)
    assert serving.cancelled() and setup.gone == []


async def test_a_producer_of_a_topic_is_the_client_that_is_named_else_one_that_is_connected(setup: Setup) -> None:
    clients = setup.clients
    assert clients.producer_of("t", "a", 0) is None
    a, b, c = setup.stream("a"), setup.stream("b"), setup.stream("c")
    for client_id in "bc":
        clients.publishes(client_id, "t")
    assert clients.producer_of("t", "a", 1) is a
    clients.ended(a)
    assert [clients.producer_of("t", "a", turn) for turn in range(3)] == [b, c, b]
    clients.ended(b)
    assert {clients.producer_of("t", "a", turn) for turn in range(3)} == {c}
    clients.terminated("c")
    assert clients.producer_of("t", "a", 0) is None
    setup.after(2 * STREAM_GONE_S)
    setup.stream("c")
    assert clients.producer_of("t", "a", 0) is None, "what it published to is forgotten with it"


async def test_what_is_remembered_of_a_producer_is_bounded(setup: Setup) -> None:
    stream = setup.stream("a")
    for number in range(2 * MAX_TOPICS):
        setup.clients.publishes("a", str(number))
    setup.clients.publishes("without a stream", "0")
    found = [setup.clients.producer_of(str(number), "", 0) for number in range(2 * MAX_TOPICS)]
    assert found == [stream] * MAX_TOPICS + [None] * MAX_TOPICS
    late = setup.stream("without a stream")
    assert late not in [setup.clients.producer_of("0", "", turn) for turn in range(2)]


class SilentContext:
    """The call context of a client that reads nothing."""

    async def write(self, command: Any) -> None:
        await asyncio.Event().wait()


async def test_a_command_waits_for_a_client_that_reads_and_not_for_one_that_does_not(setup: Setup) -> None:
    large = s.TelemetryCommand()
    large.recover_orphaned_transaction_command.message.body = bytes(MAX_COMMAND_BYTES // 2)
    read: list[Any] = []

    class SlowContext:
        async def write(self, command: Any) -> None:
            await asyncio.sleep(0)
            read.append(command)

    slow = stream_of("slow", SlowContext())
    assert [await slow.send_in_turn(large, 60) for _ in range(10)] == [True] * 10
    await until(lambda: len(read) == 10, "all are read")
    silent = stream_of("silent", SilentContext())
    assert [await silent.send_in_turn(large, 0.01) for _ in range(3)] == [True, False, False]
    assert await asyncio.wait_for(silent.send_in_turn(large, 3600), PATIENCE_S) is False, "at once"
    silent.drop_commands()


async def test_commands_to_a_client_that_reads_none_are_bounded(setup: Setup) -> None:
    stream = stream_of("c", SilentContext())
    huge = s.TelemetryCommand()
    huge.recover_orphaned_transaction_command.message.body = bytes(MAX_COMMAND_BYTES + 1)
    large = s.TelemetryCommand()
    large.recover_orphaned_transaction_command.message.body = bytes(MAX_COMMAND_BYTES // 4)
    assert [stream.send(huge), stream.send(large)] == [True, False]
    stream.drop_commands()
    await until(lambda: stream.send(large), "the command is dropped")
    assert [stream.send(large) for _ in range(4)] == [True, True, False, False]
    stream.drop_commands()
    await until(lambda: stream.send(large), "the commands are dropped")
    stream.drop_commands()
    stream = stream_of("d", SilentContext())
    assert [stream.send(s.TelemetryCommand()) for _ in range(MAX_COMMANDS + 1)] == [True] * MAX_COMMANDS + [False]
    stream.drop_commands()
