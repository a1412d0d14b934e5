"""Transfer is the master's side of one slave's stream.

A Transfer decides what to send next, and applies the slave's messages.  The class does no I/O except on the log, and
knows no event loop: `master.py` calls its methods and passes the time to them.

    GREETING --handshake--> REFILL --the lost tail has arrived--> TRANSFER
            '--------------nothing was lost-----------------------^
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol

from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.metadata_pb2 import Metadata, QueueFloor
from rocketsim_proto.records.record import RecordError, checksum
from rocketsim_proto.versions import REPLICATION

from broker_service.errors import StaleEpoch
from broker_service.replication import catch_up
from broker_service.replication.catch_up import LogState, Plan, Step
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.handshake import TAIL_BYTES, Identity, epoch_messages, log_state
from broker_service.replication.master_frame import MasterFrame
from broker_service.replication.metadata_parts import parts
from broker_service.replication.protocols import ReplicatedLog
from broker_service.replication.refusals import KEEP_THE_RIGHT_LOG, Diverged, Mismatch, ProtocolViolation
from broker_service.replication.tracker import AckRefused, SlaveProgress


class State(Enum):
    GREETING = "greeting"
    REFILL = "refill"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    frame_bytes: int = 4 << 20  # haTransferBatchSize
    # The limit for bytes that were sent and are not acknowledged.  The limit must exceed the largest record by far,
    # because an ack covers whole records only.
    in_flight_bytes: int = 32 << 20
    # With ASYNC_MASTER no put waits for the slave, so a message smaller than gather_bytes is held back until gather_s
    # after the previous message.  A message and its ack cost both brokers as much as copying thousands of records.
    gather_bytes: int = 256 << 10
    gather_s: float = 0.010
    heartbeat_s: float = 5.0  # haSendHeartbeatInterval
    housekeeping_s: float = 20.0  # haHousekeepingInterval
    metadata_changes: int = 64  # changes buffered for a slow slave, which gets one snapshot instead of more changes


class Acks(Protocol):
    """The receiver of acks, which is `Acknowledgements`."""

    @property
    def confirm_offset(self) -> int: ...

    def on_join(self, slave_id: int, address: str, slave_end: int) -> SlaveProgress: ...

    def on_ack(self, slave: SlaveProgress, ack_offset: int) -> None: ...

    def on_metadata_ack(self, slave: SlaveProgress, sequence: int) -> None: ...

    def on_leave(self, slave: SlaveProgress) -> None: ...


class Transfer:
    def __init__(
        self,
        log: ReplicatedLog,
        epochs: EpochFile,
        identity: Identity,
        acks: Acks,
        settings: TransferSettings,
        *,
        sync_master: bool,
        sync_flush: bool,
        now: float,
    ) -> None:
        self.state = State.GREETING
        self.name = "a slave"
        self.slave: SlaveProgress | None = None
        self.sent_offset = 0
        self.heard_at = now
        self.wants_snapshot = False
        self._log = log
        self._epochs = epochs
        self._identity = identity
        self._acks = acks
        self._settings = settings
        self._sync_master = sync_master
        self._sync_flush = sync_flush
        self._sent_at = now
        self._confirmed_offset = 0  # log bytes from here to `sent_offset` are in flight
        self._first_in_flight = -1, 0  # offset and size of the first record in flight, when the sender last read them
        self._refill_offset = self._refill_until = 0
        self._handshake = pb.Handshake()
        self._reply: pb.HandshakeReply | None = None
        self._epoch_sent = 0
        self._metadata: deque[Metadata] = deque()
        self._metadata_parts: deque[Metadata] = deque()  # the parts that remain of the metadata being sent
        self._sequence_sent = 0

    # --- messages of the slave ------------------------------------------------------------------------------------

    def greet(self, handshake: pb.Handshake, *, takes_writes: bool) -> Plan:
        """Decides how this slave catches up, or raises a refusal."""
        self.name = f"slave-{handshake.broker_id} at {handshake.address}"
        self._identity.check_slave(handshake)
        master = LogState(self._epochs.epochs, self._log.min_offset, self._log.end_offset)
        slave = log_state(handshake)
        plan = catch_up.plan(master, slave, takes_writes=takes_writes)
        if plan.step is Step.FENCE:
            raise StaleEpoch(f"{self.name}: {plan.reason}")
        if plan.step is Step.REFUSE:
            raise Mismatch(f"{self.name}: {plan.reason}")
        refill = plan.step is Step.REFILL
        if plan.step is Step.RESUME:
            self._compare_tail(handshake)
        joint = master.end_offset if refill else plan.resume_offset
        tail_size, tail_crc32 = self._log.tail_crc_at(joint, min(TAIL_BYTES, max(0, joint - slave.min_offset)))
        self._handshake = handshake
        self._reply = pb.HandshakeReply(
            epochs=epoch_messages(master.epochs),
            min_offset=master.min_offset,
            end_offset=master.end_offset,
            resume_offset=plan.resume_offset,
            refill=refill,
            refill_from=master.end_offset if refill else 0,
            sync_flush=self._sync_flush,
            sync_master=self._sync_master,
            tail_size=tail_size,
            tail_crc32=tail_crc32,
            queue_floors=self._queue_floors() if plan.step is Step.START_OVER else (),
            version=REPLICATION,
        )
        self._epoch_sent = master.epochs.last
        self.sent_offset = self._confirmed_offset = plan.resume_offset
        if refill:
            self.state = State.REFILL
            self._refill_offset, self._refill_until = master.end_offset, plan.resume_offset
        else:
            self._join()
        return plan

    def refill(self, frame: pb.LogData) -> None:
        """Stores the next chunk of the bytes that this master lost.  After the last chunk the transfer begins."""
        expected, data = self._refill_offset, frame.data
        if self.state is not State.REFILL or frame.commit_log_offset != expected or not data:
            raise ProtocolViolation(
                f"{self.name}: the refill has {len(data)} bytes from {frame.commit_log_offset} on, and bytes from "
                f"{expected} on are expected"
            )
        end = expected + len(data)
        if frame.epoch != self._epochs.epochs.last or end > self._refill_until:
            raise ProtocolViolation(f"{self.name}: refill of epoch {frame.epoch} up to {end}, which was not asked for")
        if checksum(data) != frame.crc32:
            raise ProtocolViolation(f"{self.name}: refill from {expected} has a wrong CRC")
        try:
            stored = self._log.append_replicated(expected, data)
        except RecordError as error:
            raise ProtocolViolation(f"{self.name}: refill from {expected}: {error}") from error
        self._refill_offset = end
        if end == self._refill_until:
            if stored != end:
                raise ProtocolViolation(f"{self.name}: refill ends at {end}, inside of a record")
            self._join()

    def ack(self, ack: pb.Ack) -> None:
        """Records an ack.  Raises StaleEpoch, AckRefused or ProtocolViolation if the ack is refused."""
        if self.slave is None:
            raise ProtocolViolation(f"{self.name}: an ack before anything was sent")
        current = self._epochs.epochs.last
        if ack.epoch > current:
            raise StaleEpoch(f"{self.name}: acknowledges epoch {ack.epoch}, newer than this master's {current}")
        if ack.epoch < current:
            return  # The slave does not have this epoch yet, and will acknowledge again when it has it.
        if ack.ack_offset > self.sent_offset:
            raise AckRefused(
                f"{self.name}: ack {ack.ack_offset}, but only {self.sent_offset} was sent and "
                f"the log ends at {self._log.end_offset}"
            )
        if ack.metadata_sequence > self._sequence_sent:
            raise AckRefused(
                f"{self.name}: acknowledges change {ack.metadata_sequence} of the metadata, but only "
                f"{self._sequence_sent} was sent"
            )
        self._acks.on_ack(self.slave, ack.ack_offset)
        if ack.metadata_sequence:
            self._acks.on_metadata_ack(self.slave, ack.metadata_sequence)
        self._confirmed_offset = max(self._confirmed_offset, ack.ack_offset)

    def leave(self) -> None:
        if self.slave is not None:
            self._acks.on_leave(self.slave)

    # --- messages to the slave ------------------------------------------------------------------------------------

    def offer_metadata(self, change: Metadata) -> None:
        """Queues a change to be sent soon.

        A slave that has just joined, or is too slow for changes, gets a snapshot instead; see `wants_snapshot`.
        """
        if self.state is not State.TRANSFER or self.wants_snapshot:
            return
        self._metadata.append(change)
        if len(self._metadata) > self._settings.metadata_changes:
            self._metadata.clear()
            self.wants_snapshot = True

    def give_snapshot(self, snapshot: Metadata) -> None:
        self.wants_snapshot = False
        self._metadata.append(snapshot)

    def next_message(self, now: float) -> MasterFrame | None:
        """Returns the message to send now; None if there is nothing to send or too much is in flight.

        The log bytes in the message are a view of the log, which the caller must encode before it does anything else.
        """
        message = self._next(now)
        if message is not None:
            self._sent_at = now
        return message

    def next_call(self) -> float:
        """Returns when to call `next_message` if nothing happens until then; -inf means now.

        The call reads nothing from disk, because it is made after every append.
        """
        if self._reply is not None or self._has_metadata() or self._has_new_epochs():
            return -inf
        if self.state is State.GREETING:
            return inf
        if not (pending := self._pending()):
            return self._sent_at + self._settings.heartbeat_s
        # A full message is never held back, however small haTransferBatchSize is.
        if self._sync_master or pending >= min(self._settings.gather_bytes, self._settings.frame_bytes):
            return -inf
        return self._sent_at + self._settings.gather_s

    def _next(self, now: float) -> MasterFrame | None:
        if now < self.next_call():
            return None
        if self._reply is not None:
            reply, self._reply = self._reply, None
            return MasterFrame(pb.MasterMessage(handshake=reply))
        if self._has_new_epochs():
            self._epoch_sent = self._epochs.epochs.last
            return MasterFrame(pb.MasterMessage(handshake=self._epochs_message()))
        if self._has_metadata():
            return MasterFrame(pb.MasterMessage(metadata=self._next_metadata()))
        if self._is_full():
            self._read_first_in_flight()
            if now < self.next_call():
                return None
        return self._read() if self._pending() else self._log_message(b"")

    def _has_metadata(self) -> bool:
        return bool(self._metadata_parts or self._metadata)

    def _next_metadata(self) -> Metadata:
        if not self._metadata_parts:
            self._metadata_parts.extend(parts(self._metadata.popleft()))
        part = self._metadata_parts.popleft()
        self._sequence_sent = part.sequence or self._sequence_sent
        return part

    def _has_new_epochs(self) -> bool:
        return self.state is State.TRANSFER and self._epochs.epochs.last != self._epoch_sent

    def _pending(self) -> int:
        """Returns how many bytes may be sent; too many while the size of the first record in flight is not known (see
        `_has_room`).
        """
        is_open = self.state is State.TRANSFER and self._has_room()
        return self._log.end_offset - self.sent_offset if is_open else 0

    def _is_full(self) -> bool:
        return self.sent_offset - self._confirmed_offset >= self._settings.in_flight_bytes

    def _read_first_in_flight(self) -> None:
        at = self._confirmed_offset
        if self._first_in_flight[0] != at >= self._log.min_offset:
            self._first_in_flight = at, int.from_bytes(self._log.read_log(at, 4), "big")

    def _has_room(self) -> bool:
        """Returns True if more bytes may be sent.

        Returns True also while the sender has not yet read the size of the first record in flight.
        """
        if not self._is_full():
            return True
        if self._confirmed_offset < self._log.min_offset:
            return False
        # A slave acknowledges whole records only, so the first record in flight must be sent completely, however large
        # it is.
        at, size = self._first_in_flight
        return at != self._confirmed_offset or self.sent_offset - at < size

    def _read(self) -> MasterFrame:
        if self.sent_offset < self._log.min_offset:
            raise Mismatch(f"{self.name}: log offset {self.sent_offset} has expired here; the slave has to start over")
        data = self._log.view_log(self.sent_offset, self._settings.frame_bytes)
        message = self._log_message(data)
        self.sent_offset += len(data)
        return message

    def _log_message(self, data: bytes | memoryview) -> MasterFrame:
        message = pb.MasterMessage()
        log = message.log  # filled in place, since a separate LogData would be copied into the message
        log.epoch = self._epoch_sent
        log.commit_log_offset = self.sent_offset
        log.crc32 = checksum(data)
        log.confirm_offset = self._acks.confirm_offset
        log.master_end_offset = self._log.end_offset
        log.master_min_offset = self._log.min_offset
        return MasterFrame(message, data)

    def _epochs_message(self) -> pb.HandshakeReply:
        return pb.HandshakeReply(
            epochs=epoch_messages(self._epochs.epochs),
            min_offset=self._log.min_offset,
            end_offset=self._log.end_offset,
            resume_offset=self.sent_offset,
            sync_flush=self._sync_flush,
            sync_master=self._sync_master,
        )

    def _queue_floors(self) -> list[QueueFloor]:
        return [
            QueueFloor(topic=topic, queue_id=queue_id, next_offset=queue_offset)
            for topic, queue_id, queue_offset in self._log.queue_floors()
        ]

    def _compare_tail(self, handshake: pb.Handshake) -> None:
        size = min(handshake.tail_size, TAIL_BYTES)
        tail_size, tail_crc32 = self._log.tail_crc_at(handshake.end_offset, size)
        if tail_size == handshake.tail_size and tail_crc32 != handshake.tail_crc32:
            raise Diverged(
                f"{self.name}: the {tail_size} bytes before {handshake.end_offset} differ from this master's, in the "
                "same epoch; keep both stores and find out which is right (rocketsim store verify): "
                f"{KEEP_THE_RIGHT_LOG}"
            )

    def _join(self) -> None:
        self.state = State.TRANSFER
        self.wants_snapshot = True
        self.slave = self._acks.on_join(self._handshake.broker_id, self._handshake.address, self.sent_offset)

    def __str__(self) -> str:
        in_flight = self.sent_offset - self._confirmed_offset
        return f"{self.name} {self.state.name} sent={self.sent_offset} in_flight={in_flight}B"
