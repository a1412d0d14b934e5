"""The master's side of replication on the network: one stream per slave.  `transfer.py` decides what to send."""

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Any, Protocol

import grpc
from rocketsim_proto import range_stream
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.broker_pb2 import StreamOffer
from rocketsim_proto.metadata_pb2 import Metadata
from rocketsim_proto.range_stream import Kind
from rocketsim_proto.replication_pb2_grpc import ReplicationServicer
from rocketsim_proto.reserved import MASTER_ID

from broker_service.errors import RocketSimError, ServiceNotAvailable, StaleEpoch
from broker_service.replication.acknowledgement import Acknowledgements
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import ID_BITS, NO_EPOCH
from broker_service.replication.flusher import Flusher
from broker_service.replication.handshake import Identity, epoch_messages
from broker_service.replication.master_frame import MasterFrame
from broker_service.replication.promise import Promise
from broker_service.replication.protocols import MasterBroker, ReplicatedLog
from broker_service.replication.refusals import PeerSilent, ProtocolViolation, Replaced, status_of
from broker_service.replication.slave_streams import SlaveStreams
from broker_service.replication.socket_streams import SlaveSocket
from broker_service.replication.transfer import State, Transfer, TransferSettings
from broker_service.runtime import cold_reads
from broker_service.runtime.rpc_errors import refusal_of

logger = logging.getLogger(__name__)

LAST_WRITE_S = 2.0  # how long closing a stream waits for the write that is in progress
CLOSE_S = 2 * LAST_WRITE_S  # how long a stream over a plain socket may take to end: its last write, and the refusal
MAX_SOCKETS = 64  # the most slaves that are served over plain sockets; more than any cluster has

Context = grpc.aio.ServicerContext
Write = Callable[[MasterFrame], Awaitable[None]]


class SlaveSockets(Protocol):
    """The plain sockets at which slaves may connect to this broker."""

    def offer_to_slave(self) -> StreamOffer | None:
        """Returns where slaves may connect; None if nowhere, so that their streams stay on gRPC."""


class ReplicationMaster(ReplicationServicer):
    """The Replication service.  A slave serves this service, too, but refuses streams and metadata."""

    def __init__(
        self,
        *,
        log: ReplicatedLog,
        epochs: EpochFile,
        identity: Identity,
        acks: Acknowledgements,
        flusher: Flusher,
        broker: MasterBroker,
        settings: TransferSettings | None = None,
        streams: "SlaveStreams[_SlaveStream] | None" = None,
        chance: random.Random | None = None,
        sockets: SlaveSockets | None = None,
    ) -> None:
        self._chance = chance or random.Random()
        self.sockets = sockets
        self._socket_streams: set[asyncio.Task[None]] = set()
        self.log = log
        self.epochs = epochs
        self.identity = identity
        self.acks = acks
        self.flusher = flusher
        self.broker = broker
        self.settings = settings or TransferSettings()
        # This lock is held from a slave's handshake until its refill is complete, because the next handshake needs the
        # whole log.
        self.greeting = asyncio.Lock()
        self.streams: SlaveStreams[_SlaveStream] = streams if streams is not None else SlaveStreams()

    # --- for the broker -------------------------------------------------------------------------------------------

    async def begin_epoch(self, *, promotion: bool = False, above: int = NO_EPOCH) -> int:
        """Begins a new epoch and returns its number; must be awaited before the first write of a start or promotion.

        The epoch is on disk on return.  A promotion's epoch gets a number greater than `above`.  If a slave is sending
        bytes that this master lost, the call waits for them, because they belong to the previous epoch.
        """
        async with self.greeting:
            await self.flusher.wait(self.log.end_offset)  # an epoch must not start beyond the flushed end
            epoch = self.epochs.epochs.next(promotion=promotion, above=above)
            begun = self.epochs.epochs.begin(epoch, self.log.end_offset, self._chance.getrandbits(ID_BITS) or 1)
            self.epochs.save(begun, begun_here=True, may_resume=True, promotion=promotion)
            self.acks.begin()
            self.streams.notify()
            logger.info("epoch %d begins at log offset %d", epoch, self.log.end_offset)
            return epoch

    def take_back_epoch(self) -> None:
        """Undoes the epoch of a promotion that has failed; no other broker has seen it."""
        self.epochs.forget_promotion(self.log.end_offset)

    def disconnect(self, reason: str) -> None:
        """Ends all streams, because this broker is no longer master, or stops."""
        for stream in self.streams:
            stream.close(ServiceNotAvailable(reason))

    async def close_sockets(self) -> None:
        """Waits until the streams over plain sockets, which `disconnect` ends, have closed their sockets.  A stream
        that began after `disconnect` is cancelled.
        """
        if self._socket_streams:
            await asyncio.wait(self._socket_streams, timeout=CLOSE_S)
        for task in self._socket_streams:
            task.cancel()
        await asyncio.gather(*self._socket_streams, return_exceptions=True)

    def __str__(self) -> str:
        return str(self.acks)

    # --- the service ----------------------------------------------------------------------------------------------

    async def Replicate(self, requests: AsyncIterator[pb.SlaveMessage], context: Context[Any, Any]) -> None:
        offer = self.sockets.offer_to_slave() if self.sockets is not None else None
        refusal = await self._serve(requests, context.write, offer)
        if refusal is not None:
            await context.abort(status_of(refusal), str(refusal))

    def take(self, connection: socket.socket) -> None:
        """Serves a slave that has connected to a plain socket, and closes the connection when its stream ends."""
        if len(self._socket_streams) >= MAX_SOCKETS:
            with connection, suppress(OSError):
                connection.send(range_stream.answer(Kind.NO_ROOM))
            return
        task = asyncio.create_task(self._serve_socket(SlaveSocket(connection)), name="slave-stream")
        self._socket_streams.add(task)
        task.add_done_callback(self._socket_streams.discard)

    async def _serve_socket(self, slave: SlaveSocket) -> None:
        try:
            if (refusal := await self._serve(slave, slave.write)) is not None:
                await slave.refuse(refusal)
        except Exception:
            logger.exception("the stream of a slave over a plain socket has failed")
        finally:
            slave.close()

    async def _serve(
        self, requests: AsyncIterator[pb.SlaveMessage], write: Write, offer: StreamOffer | None = None
    ) -> RocketSimError | None:
        """Serves a slave until its stream ends.  Returns the refusal that ends it, or None if the slave has left.

        `offer` has the plain sockets at which the slave may begin its stream again.
        """
        stream = _SlaveStream(self, requests, write, offer)
        self.streams.add(stream)
        refusal = None
        try:
            await stream.run()
        except (RocketSimError, OSError) as error:  # an OSError comes from this broker's own disk
            refusal = refusal_of(error)
        except asyncio.CancelledError:
            if not stream.has_offered:
                logger.warning("%s lost", stream.transfer.name)
            raise
        finally:
            self.streams.remove(stream)
            stream.transfer.leave()
        if refusal is None:
            if not stream.has_offered:
                logger.info("%s left", stream.transfer.name)
            return None
        logger.warning("stream of %s closed: %s", stream.transfer.name, refusal)
        if isinstance(refusal, StaleEpoch) and stream.newer_epoch > self.epochs.epochs.last:
            self.broker.fenced(stream.newer_epoch, stream.transfer.name)
        return refusal

    async def GetMember(self, request: pb.GetMemberRequest, context: Context[Any, Any]) -> pb.GetMemberResponse:
        await self._check_caller(request, context)
        if request.broker_id == MASTER_ID and request.address:
            self.broker.newer_master(Promise(request.epoch, request.broker_id, request.address))
        return self._member()

    async def PromiseEpoch(
        self, request: pb.PromiseEpochRequest, context: Context[Any, Any]
    ) -> pb.PromiseEpochResponse:
        await self._check_name(request.broker_name, context)
        refusal = self.broker.promise(Promise(request.epoch, request.broker_id, request.address))
        return pb.PromiseEpochResponse(refusal=refusal, member=self._member())

    def _member(self) -> pb.GetMemberResponse:
        promised = self.epochs.promised
        return pb.GetMemberResponse(
            broker_id=self.identity.broker_id,
            epoch=self.epochs.epochs.last,
            end_offset=self.log.end_offset,
            epochs=epoch_messages(self.epochs.epochs),
            min_offset=self.log.min_offset,
            follows=self.broker.follows(),
            promised_epoch=promised.epoch if promised is not None else NO_EPOCH,
            candidate_epoch=self.broker.candidate_epoch(),
        )

    async def GetMetadata(self, request: pb.GetMetadataRequest, context: Context[Any, Any]) -> Metadata:
        await self._check_caller(request, context)
        if not self.broker.is_master():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this broker is not a master")
        return self.broker.metadata()

    async def _check_caller(
        self, request: pb.GetMemberRequest | pb.GetMetadataRequest, context: Context[Any, Any]
    ) -> None:
        await self._check_name(request.broker_name, context)
        if request.epoch > self.epochs.epochs.last:
            self.broker.fenced(request.epoch, f"broker {request.broker_id}")

    async def _check_name(self, broker_name: str, context: Context[Any, Any]) -> None:
        if broker_name != self.identity.broker_name:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"brokerName is {self.identity.broker_name} here, not {broker_name}",
            )


class _SlaveStream:
    """One connection of a slave: tasks that receive, send and watch for silence, around a Transfer."""

    def __init__(
        self,
        master: ReplicationMaster,
        requests: AsyncIterator[pb.SlaveMessage],
        write: Write,
        offer: StreamOffer | None,
    ) -> None:
        self.transfer = Transfer(
            master.log,
            master.epochs,
            master.identity,
            master.acks,
            master.settings,
            sync_master=master.acks.levels.sync_master,
            sync_flush=master.acks.levels.sync_flush,
            now=_now(),
        )
        self._notified = asyncio.Event()
        self._next_check_at = -inf  # when the sleeping sender wakes up without being notified
        self.newer_epoch = 0
        self.slave_id: int | None = None
        self._master = master
        self._requests = requests
        self._write = write
        self._offer = offer
        self.has_offered = False  # True: the slave leaves this stream for a plain socket
        self._stopped = False
        self._closing = asyncio.Event()
        self._close_reason: RocketSimError = ServiceNotAvailable("closed")

    def close(self, reason: RocketSimError) -> None:
        self._close_reason = reason
        self._closing.set()

    def publish(self, change: Metadata) -> None:
        self.transfer.offer_metadata(change)
        self._notified.set()

    def notify(self) -> None:
        """Wakes the sender if it has something to send before its next scheduled check."""
        if self.transfer.next_call() < self._next_check_at:
            self._notified.set()

    async def run(self) -> None:
        """Returns when the slave ends the stream; if anything else ends the stream, raises a RocketSimError with the
        reason.
        """
        sender = asyncio.create_task(self._send())
        tasks = [sender, asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # A write must not be cancelled, because gRPC could not send a status afterwards.
            self._stopped = True
            self._notified.set()
            await asyncio.wait([sender], timeout=LAST_WRITE_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _receive(self) -> None:
        message = await self._next()
        if message is None:
            return
        if message.WhichOneof("kind") != "handshake":
            raise ProtocolViolation(f"the first message is {message.WhichOneof('kind')}, not a handshake")
        if not self._master.broker.is_master():
            raise ServiceNotAvailable("this broker is not a master")
        if message.handshake.accepts_stream and self._offer is not None:
            offered = pb.MasterMessage(stream=self._offer)
            offered.stream.address = self._master.identity.address
            self.has_offered = True
            await self._write(MasterFrame(offered))  # allowed here, since `_send` writes nothing before `_greet`
            return
        self.slave_id = message.handshake.broker_id
        # An older stream of this slave is closed if it holds the `greeting` lock, or would get the lock before this
        # stream.
        self._replace_older(State.GREETING, State.REFILL)
        async with self._master.greeting:
            self._greet(message.handshake)
            # A running stream is closed only after `_greet` has accepted the handshake, because a broker that is no
            # slave of this master could also send this id.
            self._replace_older(State.TRANSFER)
            while self.transfer.state is State.REFILL:
                message = await self._next()
                if message is None:
                    return
                self._apply(message)
        assert self.transfer.slave is not None
        logger.info("%s", self.transfer)
        self._master.broker.slave_joined(self.transfer.slave)
        self._notified.set()
        while (message := await self._next()) is not None:
            self._apply(message)

    def _greet(self, handshake: pb.Handshake) -> None:
        self.newer_epoch = max((epoch.epoch for epoch in handshake.epochs), default=0)
        plan = self.transfer.greet(handshake, takes_writes=self._master.broker.takes_writes())
        logger.info("%s: %s", self.transfer.name, plan)
        self._notified.set()

    def _replace_older(self, *states: State) -> None:
        for stream in self._master.streams:
            if stream is not self and stream.slave_id == self.slave_id and stream.transfer.state in states:
                stream.close(Replaced(f"slave-{self.slave_id} has connected again"))

    def _apply(self, message: pb.SlaveMessage) -> None:
        if self._closing.is_set():
            return  # The stream is closing, and this broker may no longer have the role that it had at the handshake.
        match message.WhichOneof("kind"):
            case "ack":
                self.newer_epoch = message.ack.epoch
                self._ack(message.ack)
            case "refill":
                self.transfer.refill(message.refill)
            case "offsets":
                self._accept_offsets(message.offsets)
            case kind:
                raise ProtocolViolation(f"{self.transfer.name}: {kind} in the middle of a stream")
        self.notify()

    def _ack(self, ack: pb.Ack) -> None:
        slave = self.transfer.slave
        knew = slave is not None and slave.metadata_sequence is not None
        self.transfer.ack(ack)
        if slave is not None and slave.metadata_sequence is not None and not knew:
            self._master.broker.offsets_handed_back(slave)

    def _accept_offsets(self, offsets: Metadata) -> None:
        assert self.slave_id is not None
        try:
            self._master.broker.accept_offsets(self.slave_id, offsets)
        except ValueError as error:
            raise ProtocolViolation(f"{self.transfer.name}: sent impossible offsets: {error}") from error

    async def _next(self) -> pb.SlaveMessage | None:
        try:
            message = await anext(self._requests)
        except StopAsyncIteration:
            return None
        self.transfer.heard_at = _now()
        return message

    async def _send(self) -> None:
        """Sends all messages of this stream but an offer of a plain socket; no other code writes to it."""
        while not self._stopped:
            if self.transfer.wants_snapshot:
                self.transfer.give_snapshot(self._master.broker.metadata())
            message = await cold_reads.read(self._master.log, lambda: self.transfer.next_message(_now()))
            if message is not None:
                await self._write(message)
            else:
                await self._sleep(self.transfer.next_call())

    async def _sleep(self, until: float) -> None:
        self._notified.clear()
        self._next_check_at = until
        timer = asyncio.get_running_loop().call_at(until, self._notified.set)
        try:
            await self._notified.wait()
        finally:
            timer.cancel()
            self._next_check_at = -inf

    async def _watch(self) -> None:
        housekeeping_s = self._master.settings.housekeeping_s
        while (silent_until := self.transfer.heard_at + housekeeping_s) > _now():
            try:
                async with asyncio.timeout_at(silent_until):
                    await self._closing.wait()
            except TimeoutError:
                continue  # If a message has arrived during the wait, `heard_at` is later now.
            raise self._close_reason
        raise PeerSilent(f"{self.transfer.name}: nothing heard for {housekeeping_s} s")


def _now() -> float:
    return asyncio.get_running_loop().time()
