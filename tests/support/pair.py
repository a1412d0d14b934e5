"""Runs a master and its slaves in one process on real gRPC and sockets: the replication code around any log."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.metadata_pb2 import Metadata

from broker_service.put_result import PutStatus
from broker_service.replication import master_frame
from broker_service.replication.acknowledgement import AckLevels, Acknowledgements
from broker_service.replication.catch_up import Cut
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.flusher import Flusher
from broker_service.replication.handshake import Identity
from broker_service.replication.master import ReplicationMaster
from broker_service.replication.promise import Promise
from broker_service.replication.slave import ReplicationSlave, SlaveSettings
from broker_service.replication.tracker import SlaveProgress, Tracker
from broker_service.replication.transfer import TransferSettings
from broker_service.runtime.server import Network, OpenChannel
from broker_service.wire.own.range_streams import RangeStreams
from testbed.polling import PATIENCE_S

logging.getLogger("grpc").setLevel(logging.ERROR)


async def until(holds: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
    """Lets the event loop run until `holds()` is true."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - no event exists for an arbitrary condition
            await asyncio.sleep(0.002)


@dataclass
class FakeBroker:
    """Implements what replication needs of the broker, for a master and for a slave, and records the calls."""

    master: bool = True
    writes: bool = True
    snapshot: Metadata = field(default_factory=lambda: Metadata(complete=True))
    to_hand_back: Metadata | None = None
    joined: list[int] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    handed_back: list[Metadata] = field(default_factory=list)
    all_handed_back: list[int] = field(default_factory=list)
    applied: list[Metadata] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    cuts_announced: list[int] = field(default_factory=list)
    visible: list[int | None] = field(default_factory=list)
    replicated_to: int = 0
    master_waits_for: tuple[bool, bool] | None = None

    def is_master(self) -> bool:
        return self.master

    def takes_writes(self) -> bool:
        return self.writes

    def metadata(self) -> Metadata:
        return self.snapshot

    def accept_offsets(self, slave_id: int, offsets: Metadata) -> None:
        if any(entry.offset < 0 for entry in offsets.consumer_offsets):
            raise ValueError("a negative offset")
        self.handed_back.append(offsets)

    def fenced(self, epoch: int, by: str) -> None:
        self.fences.append(epoch)
        self.master = False

    def follows_master_that_waits(self, *, for_slave: bool, for_flush: bool) -> None:
        self.master_waits_for = for_slave, for_flush

    def slave_joined(self, slave: SlaveProgress) -> None:
        self.joined.append(slave.slave_id)

    def offsets_handed_back(self, slave: SlaveProgress) -> None:
        self.all_handed_back.append(slave.slave_id)

    def follows(self) -> str:
        return ""

    def candidate_epoch(self) -> int:
        return 0

    def promise(self, candidate: Promise) -> str:
        return "is a fake"

    def newer_master(self, master: Promise) -> None:
        pass

    def changed(self, visible_offset: int | None) -> None:
        self.visible.append(visible_offset)

    def apply_metadata(self, metadata: Metadata) -> None:
        self.applied.append(metadata)

    def offsets_to_hand_back(self) -> Metadata | None:
        return self.to_hand_back

    def replicated(self, visible_offset: int) -> None:
        self.replicated_to = visible_offset

    def log_will_be_cut(self, end_offset: int) -> None:
        self.cuts_announced.append(end_offset)

    def log_cut(self, cut: Cut) -> None:
        self.cuts.append(cut)


class Node:
    """The replication parts of one broker.  Use `following` to make the node a slave, and `serving` to make it a
    master.
    """

    plain_sockets = ""  # which plain socket masters offer their slaves: "unix" or "tcp"; "": none

    def __init__(
        self,
        log: Any,
        directory: Path,
        broker_id: int,
        *,
        levels: AckLevels | None = None,
        transfer: TransferSettings | None = None,
        slave: SlaveSettings | None = None,
        fall_behind_max: int = 256 << 20,
        flush_interval_s: float = 0.05,
        broker_name: str = "broker-a",
        open_channel: OpenChannel | None = None,
    ) -> None:
        self.log = log
        self.broker = FakeBroker()
        self.failures: list[BaseException] = []
        self.identity = Identity(
            cluster_name="DefaultCluster",
            broker_name=broker_name,
            broker_id=broker_id,
            address=f"127.0.0.1:{10911 + broker_id}",
            mapped_file_size_commit_log=1,  # 1, because a log in memory may begin at any offset
            mapped_file_size_consume_queue=6_000_000,
        )
        self.epochs = EpochFile(directory / "epochs.json", log.end_offset)
        self.flusher = Flusher(log, interval_s=flush_interval_s)
        self.flusher.flushed.append(self._on_flushed)
        self.flusher.failed.append(self.failures.append)
        self.acks = Acknowledgements(
            levels or AckLevels(sync_master=True, sync_flush=False, slave_timeout_s=PATIENCE_S),
            Tracker(fall_behind_max),
            log,
            self.flusher,
            self.broker,
        )
        self.master = ReplicationMaster(
            log=log,
            epochs=self.epochs,
            identity=self.identity,
            acks=self.acks,
            flusher=self.flusher,
            broker=self.broker,
            settings=transfer,
        )
        self.slave = ReplicationSlave(
            log=log,
            epochs=self.epochs,
            identity=self.identity,
            flusher=self.flusher,
            broker=self.broker,
            diverged=directory / "diverged",
            settings=slave or SlaveSettings(retry_first_s=0.01, retry_last_s=0.05),
            open_channel=open_channel,
        )
        self.address = ""

    def _on_flushed(self, offset: int) -> None:
        self.acks.on_flushed(offset)

    def put(self, *bodies: bytes) -> int:
        end = self.log.append(*bodies)
        self.master.streams.notify()
        return end

    async def put_and_wait(self, body: bytes = b"body", timeout_s: float = PATIENCE_S) -> PutStatus:
        return await self.acks.wait(self.put(body), timeout_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        self.flusher.start()
        try:
            yield self
        finally:
            await self.flusher.close()

    @asynccontextmanager
    async def serving(self, *, begin: bool = True) -> AsyncIterator["Node"]:
        async with self.running():
            server = grpc.aio.server()
            master_frame.add_to_server(self.master, server)
            self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            self.master.identity = replace(self.master.identity, address=self.address)
            await server.start()
            if begin:
                await self.master.begin_epoch()
            try:
                async with self._offering_sockets():
                    yield self
            finally:
                self.master.disconnect("the master stops")
                await self.master.close_sockets()
                await server.stop(1)

    @asynccontextmanager
    async def _offering_sockets(self) -> AsyncIterator[None]:
        if not self.plain_sockets:
            yield
            return
        nothing: Any = None  # no client pulls or sends here
        streams = RangeStreams(nothing, nothing, nothing)
        self.master.sockets, streams.take_slave = streams, self.master.take
        if self.plain_sockets == "unix":
            listening = Network().listen_for_streams(streams.unix_name, "127.0.0.1", 0)
        else:
            listening = [socket.create_server(("127.0.0.1", 0))]
            listening[0].setblocking(False)
        accepting = asyncio.create_task(streams.serve(listening))
        await asyncio.sleep(0)  # from now on there is an offer
        try:
            yield
        finally:
            await streams.stop(0)
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)

    @asynccontextmanager
    async def following(self, master: "Node") -> AsyncIterator["Node"]:
        async with AsyncExitStack() as stack:
            if not self.flusher.is_running():
                await stack.enter_async_context(self.running())
            task = asyncio.create_task(self.slave.follow(master.address))
            try:
                yield self
            finally:
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    pass

    def is_in_step_with(self, master: "Node") -> bool:
        return bool(self.log.end_offset == master.log.end_offset)


def hello(master: Node, *, epochs: Iterable[tuple[int, int]] = (), **fields: Any) -> pb.SlaveMessage:
    """Makes the handshake of a slave of this master, whose messages a test writes itself."""
    known: dict[str, Any] = dict(
        cluster_name=master.identity.cluster_name,
        broker_name=master.identity.broker_name,
        broker_id=1,
        address="by-hand:1",
        mapped_file_size_commit_log=master.identity.mapped_file_size_commit_log,
        mapped_file_size_consume_queue=master.identity.mapped_file_size_consume_queue,
        epochs=[pb.Epoch(epoch=epoch, start_offset=start) for epoch, start in epochs],
    )
    return pb.SlaveMessage(handshake=pb.Handshake(**{**known, **fields}))
