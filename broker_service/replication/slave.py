"""The slave's side of replication on the network.  `follower.py` decides what follows from a master's message."""

import asyncio
import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.broker_pb2 import StreamOffer
from rocketsim_proto.metadata_pb2 import Metadata
from rocketsim_proto.replication_pb2_grpc import ReplicationStub

from broker_service.errors import DiskFull, RocketSimError, ServiceNotAvailable
from broker_service.replication import master_frame, socket_streams
from broker_service.replication.catch_up import Cut
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.flusher import Flusher
from broker_service.replication.follower import Follower
from broker_service.replication.handshake import Identity
from broker_service.replication.metadata_parts import parts
from broker_service.replication.protocols import ReplicatedLog, SlaveBroker
from broker_service.replication.refusals import ProtocolViolation
from broker_service.replication.stream_tasks import end_in_silence, run_together
from broker_service.runtime.peer_call import TRIED_AGAIN, PeerLost, ask, read_ahead, write_stream
from broker_service.runtime.server import OpenChannel

logger = logging.getLogger(__name__)

LARGE_BYTES = 256 << 10  # of a message with log bytes: reading ahead costs more than it saves if messages are smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveSettings:
    housekeeping_s: float = 20.0  # haHousekeepingInterval
    metadata_interval_s: float = 10.0
    metadata_timeout_s: float = 5.0
    refill_frame_bytes: int = 1 << 20
    retry_first_s: float = 0.2
    retry_last_s: float = 2.0
    # A silent connection is closed after keepalive_s + keepalive_timeout_s.  With TCP's own timeouts, a dead
    # connection could last long, because TCP retransmits more and more rarely, and the other side may have given up.
    keepalive_s: float = 6.0
    keepalive_timeout_s: float = 4.0
    message_max_bytes: int = 64 << 20  # a metadata snapshot is the largest message
    plain_sockets: bool = True  # pullRangeStreamEnable
    tcp_sockets: bool = True  # False: with TLS between the brokers, only a Unix socket may take its place


class Stream(Protocol):
    """One connection to a master."""

    @property
    def is_accepted(self) -> bool: ...

    @property
    def uses_socket(self) -> bool: ...

    @property
    def master_min_offset(self) -> int | None: ...

    def hand_back(self) -> None: ...

    async def show_unacknowledged(self) -> None: ...


class ReplicationSlave:
    def __init__(
        self,
        *,
        log: ReplicatedLog,
        epochs: EpochFile,
        identity: Identity,
        flusher: Flusher,
        broker: SlaveBroker,
        diverged: Path,
        settings: SlaveSettings | None = None,
        open_channel: OpenChannel | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._log = log
        self._epochs = epochs
        self._identity = identity
        self._flusher = flusher
        self._broker = broker
        self._diverged = diverged
        self._settings = settings or SlaveSettings()
        self._open_channel = open_channel or grpc.aio.insecure_channel
        self._chance = chance or random.Random()
        self._stream: Stream | None = None
        self._notified = asyncio.Event()
        # False after a stream over a plain socket has ended before the master accepted it
        self._may_use_socket = True
        # 0 until the master sends its minimum; with 0 this slave deletes no log file
        self._master_min_offset: int | None = 0

    async def follow(self, master_address: str) -> NoReturn:
        """Follows this master until it is cancelled.  Once the cancelled task has ended, nothing is appended."""
        try:
            await self._follow_always(master_address)
        finally:
            self._stream = None

    async def _follow_always(self, master_address: str) -> NoReturn:
        retry_s = self._settings.retry_first_s
        trouble = ""
        while True:
            self._notified.clear()
            try:
                await self._follow_once(master_address)
            except (RocketSimError, OSError) as error:  # an OSError comes from this broker's own disk
                reason = str(error)
            stream, self._stream = self._stream, None
            self._may_use_socket = stream is None or stream.is_accepted or not stream.uses_socket
            if stream is not None and stream.is_accepted:
                retry_s, trouble = self._settings.retry_first_s, ""
                await stream.show_unacknowledged()
            if reason != trouble:  # the same reason is logged once, not at every attempt
                logger.warning("master %s lost: %s; trying again", master_address, reason)
                trouble = reason
            await self._pause(retry_s * self._chance.uniform(0.8, 1.2))
            retry_s = min(retry_s * 2, self._settings.retry_last_s)

    def notify(self) -> None:
        """Ends the pause before the next attempt, because the master is back.

        If an attempt is under way and fails, the next attempt follows at once.
        """
        self._notified.set()

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._notified.wait()
        except TimeoutError:
            pass

    def hand_back(self) -> None:
        """Sends the committed offsets that the master lacks; without a stream, the next connect sends them."""
        if self._stream is not None:
            self._stream.hand_back()

    @property
    def master_min_offset(self) -> int | None:
        """The start of the master's log, as it was last received; None if the master's version does not send it."""
        if self._stream is not None and self._stream.is_accepted:
            self._master_min_offset = self._stream.master_min_offset
        return self._master_min_offset

    def is_following(self) -> bool:
        return self._stream is not None and self._stream.is_accepted

    async def _follow_once(self, master_address: str) -> NoReturn:
        options = [
            *TRIED_AGAIN,
            ("grpc.max_receive_message_length", self._settings.message_max_bytes),
            ("grpc.keepalive_time_ms", round(self._settings.keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(self._settings.keepalive_timeout_s * 1000)),
        ]
        async with self._open_channel(master_address, options) as channel:
            cuts = _LoggedCuts(master_address, self._broker)
            follower = Follower(self._log, self._epochs, self._identity, self._diverged, cuts)
            self._stream = stream = _MasterStream(
                master_address, master_frame.stub(channel), follower, self._flusher, self._broker, self._settings
            )
            accepts_socket = self._settings.plain_sockets and self._may_use_socket
            await stream.run(self._metadata_request, accepts_socket)
        raise AssertionError("the stream has ended without an exception")

    def _metadata_request(self) -> pb.GetMetadataRequest:
        return pb.GetMetadataRequest(
            broker_name=self._identity.broker_name,
            broker_id=self._identity.broker_id,
            epoch=self._epochs.epochs.last,
        )

    def __str__(self) -> str:
        return str(self._stream) if self._stream is not None else "no master"


class _LoggedCuts:
    """Passes cuts on to the broker, and logs them with the address of the master that has asked for them."""

    def __init__(self, master_address: str, broker: SlaveBroker) -> None:
        self._master_address = master_address
        self._broker = broker

    def log_will_be_cut(self, end_offset: int) -> None:
        self._broker.log_will_be_cut(end_offset)

    def log_cut(self, cut: Cut) -> None:
        logger.warning("master %s: %s", self._master_address, cut)
        self._broker.log_cut(cut)


class _Offered(Exception):
    """The master has offered a plain socket, and ends this stream."""

    def __init__(self, offer: StreamOffer) -> None:
        super().__init__("the master offers a plain socket")
        self.offer = offer


class _MasterStream:
    """One connection to a master: tasks that receive, send, poll metadata and watch for silence, around a Follower."""

    def __init__(
        self,
        address: str,
        stub: ReplicationStub,
        follower: Follower,
        flusher: Flusher,
        broker: SlaveBroker,
        settings: SlaveSettings,
    ) -> None:
        self.is_accepted = False
        self.uses_socket = False
        self._address = address
        self._stub = stub
        self._follower = follower
        self._flusher = flusher
        self._broker = broker
        self._settings = settings
        self._notified = asyncio.Event()
        self._ack_due = False
        self._hand_back_due = False
        self._in_snapshot = False  # True between the first and the last part of a snapshot
        self._lacks_metadata = False  # the disk had no room for some of the master's metadata
        self._sequence = 0  # the number of the last change that was received on this stream
        self._heard_at = _now()
        self._welcomed = asyncio.Event()
        # the versions of the newest tables that were received from this master
        self._versions: tuple[int, ...] = (0, 0, 0, 0)

    @property
    def master_min_offset(self) -> int | None:
        return self._follower.master_min_offset

    def hand_back(self) -> None:
        self._hand_back_due = True
        self._notified.set()

    async def run(self, metadata_request: Any, accepts_socket: bool) -> None:
        """Runs until a task fails, and raises its error.

        If the slave accepts a plain socket and the master offers one, the stream moves there before anything is
        received.  If the slave cannot connect to it, or knows the master by another address than the master's own, the
        stream stays on gRPC.
        """
        try:
            await self._run(self._stub.Replicate(), metadata_request, accepts_socket)
        except _Offered as offered:
            offer = offered.offer
        is_direct = offer.address == self._address  # else a proxy between the brokers would be evaded
        tcp = self._settings.tcp_sockets
        call = await socket_streams.connect(self._address, offer, tcp=tcp) if is_direct else None
        self.uses_socket = call is not None
        await self._run(call or self._stub.Replicate(), metadata_request, False)

    async def _run(self, call: Any, metadata_request: Any, accepts_socket: bool) -> None:
        """Runs one call, and raises the error of the task that fails.

        If several tasks have failed, the receiver's error is raised, since it has the master's reason.
        """
        self._heard_at = _now()
        silence = end_in_silence(lambda: self._heard_at, self._settings.housekeeping_s)
        work = (
            self._receive(call, accepts_socket),
            self._send(call, accepts_socket),
            silence,
            self._poll_metadata(metadata_request),
        )
        try:
            await run_together(*work)
        finally:
            call.cancel()

    async def show_unacknowledged(self) -> None:
        """Makes the records visible that this slave has not acknowledged.

        The master may have shown unacknowledged records to consumers while it had no connection to this slave.
        """
        end_offset = self._follower.end_offset
        try:
            if self._follower.sync_flush:
                await self._flusher.wait(end_offset)
        except ServiceNotAvailable:
            return  # The master requires a flush, and flushing has failed for good.
        self._broker.replicated(end_offset)

    async def _receive(self, call: Any, accepts_socket: bool) -> NoReturn:
        async for message, data in read_ahead(call, lambda frame: len(frame.data) >= LARGE_BYTES):
            self._heard_at = _now()
            match message.WhichOneof("kind"):
                case "handshake":
                    self._on_handshake(message.handshake)
                case "log":
                    self._follower.receive(message.log, data)
                    self._ack_due = True
                case "metadata":
                    self._on_metadata(message.metadata)
                case "stream" if accepts_socket:
                    raise _Offered(message.stream)
                case kind:
                    raise ProtocolViolation(f"the master sends a message of the unexpected kind {kind}")
            self._notified.set()
        raise PeerLost("it ended the stream")

    def _on_metadata(self, metadata: Metadata) -> None:
        self._take(metadata)
        self._in_snapshot |= metadata.complete
        if metadata.sequence and not self._lacks_metadata:
            # Metadata that `_take` skipped counts as received, too: newer metadata, which includes it, was applied.
            self._sequence = metadata.sequence
            self._hand_back_due |= self._in_snapshot  # The snapshot has shown which offsets the master lacks.
            self._in_snapshot = False
            self._ack_due = True

    def _take(self, metadata: Metadata) -> bool:
        """Applies metadata; returns False if it is skipped because newer metadata was applied already.

        Answers to polls and changes from the stream may arrive out of order.
        """
        tables = metadata.topics_version, metadata.groups_version, metadata.users_version, metadata.acls_version
        versions = tuple(version.counter for version in tables)
        if any(version < known for version, known in zip(versions, self._versions, strict=True)):
            return False
        try:
            self._broker.apply_metadata(metadata)
        except DiskFull as error:
            # The log is still replicated, but no later change on this stream is acknowledged.  The next poll fetches a
            # snapshot of the metadata.
            if not self._lacks_metadata:
                logger.error("metadata of master %s cannot be stored yet: %s", self._address, error)
            self._lacks_metadata = True
            return True
        except ValueError as error:
            raise ProtocolViolation(f"the master sends impossible metadata: {error}") from error
        if self._lacks_metadata and metadata.complete:
            raise PeerLost("the disk has room for metadata again; connecting again to fetch what was missed")
        self._versions = versions
        return True

    def _on_handshake(self, reply: pb.HandshakeReply) -> None:
        self._follower.welcome(reply)
        if not self.is_accepted:
            over = "a plain socket" if self.uses_socket else "gRPC"
            logger.info("following %s over %s: %s", self._address, over, self._follower)
            self._broker.follows_master_that_waits(for_slave=reply.sync_master, for_flush=reply.sync_flush)
            self._hand_back_due = True
        self.is_accepted = True
        self._welcomed.set()
        self._ack_due = True

    async def _send(self, call: Any, accepts_socket: bool) -> NoReturn:
        """Sends all messages of this stream; no other code writes to it."""
        handshake = self._follower.handshake()
        handshake.accepts_stream = accepts_socket
        await write_stream(call, pb.SlaveMessage(handshake=handshake))
        await self._welcomed.wait()
        while (refill := self._follower.next_refill(self._settings.refill_frame_bytes)) is not None:
            await write_stream(call, pb.SlaveMessage(refill=refill))
        while True:
            # If a change shows that the master lacks committed offsets, the slave sends these offsets before the ack
            # that confirms the change.
            self._follower.metadata_sequence = self._sequence
            if self._hand_back_due:
                self._hand_back_due = False
                offsets = self._broker.offsets_to_hand_back()
                for part in parts(offsets) if offsets is not None else ():
                    await write_stream(call, pb.SlaveMessage(offsets=part))
            if self._ack_due:
                self._ack_due = False
                await self._send_ack(call)
            elif not self._hand_back_due:
                self._notified.clear()
                await self._notified.wait()

    async def _send_ack(self, call: Any) -> None:
        """Sends an ack, after a flush if the master uses SYNC_FLUSH.

        One flush serves all frames that arrived during the previous flush.
        """
        if self._follower.sync_flush:
            await self._flusher.wait(self._follower.end_offset)
        ack = self._follower.ack(self._flusher.flushed_offset)
        await write_stream(call, pb.SlaveMessage(ack=ack))
        self._broker.replicated(ack.ack_offset)

    async def _poll_metadata(self, metadata_request: Any) -> NoReturn:
        await self._welcomed.wait()
        while True:
            try:
                timeout_s = self._settings.metadata_timeout_s
                metadata = await ask(self._stub.GetMetadata(metadata_request(), timeout=timeout_s))
            except PeerLost as lost:
                logger.warning("metadata of master %s: %s", self._address, lost)
            else:
                if self._take(metadata):
                    self.hand_back()  # the snapshot has shown which offsets the master lacks
                else:
                    # The answer was outdated.  Ask again until topics and groups do not change for one round trip.
                    continue
            await asyncio.sleep(self._settings.metadata_interval_s)

    def __str__(self) -> str:
        return f"{self._follower} master={self._address}"


def _now() -> float:
    return asyncio.get_running_loop().time()
