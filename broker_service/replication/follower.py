"""Follower is a slave's side of one replication stream.

A Follower makes the messages for the master, and applies the master's messages to the log and the epoch file.  The
class does no other I/O and knows no event loop; `slave.py` calls it.

Two rules for the order of the steps keep the log right if a crash comes between two steps.  Bytes are cut before newer
epochs are adopted, because after a crash the bytes to be cut would otherwise count as the new master's.  Epochs are
adopted before their first byte is stored.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.records.record import RecordError, checksum
from rocketsim_proto.versions import REPLICATION, too_new

from broker_service.errors import StaleEpoch
from broker_service.replication.catch_up import Cut
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import EpochList, common_prefix
from broker_service.replication.handshake import TAIL_BYTES, Identity, epoch_list, epoch_messages, log_state
from broker_service.replication.protocols import CutListener, ReplicatedLog
from broker_service.replication.refusals import KEEP_THE_RIGHT_LOG, Diverged, Mismatch, ProtocolViolation


class Follower:
    """One replication stream, which must end after any exception; the log is consistent even then.

    `cuts.log_will_be_cut` is called before bytes are cut, because a start after a crash could not tell that the log was
    cut.  `cuts.log_cut` is called as soon as bytes are removed, even if a later step fails, because the next handshake
    finds nothing left to cut and would not lead to the call.
    """

    def __init__(
        self,
        log: ReplicatedLog,
        epochs: EpochFile,
        identity: Identity,
        diverged: Path,
        cuts: CutListener | None = None,
    ) -> None:
        self.sync_flush = True  # ack only flushed bytes; True until the master's handshake says otherwise
        self.master_end_offset = 0
        self.master_min_offset: int | None = 0  # None: the master's version does not send it
        self.metadata_sequence = 0  # the last change of the master's metadata that acks may confirm
        self._log = log
        self._epochs = epochs
        self._identity = identity
        self._diverged = diverged
        self._cuts = cuts
        self._expected_offset: int | None = None  # where the next log bytes must start; None before the reply
        self._refill_offset = self._refill_until = 0

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    def handshake(self) -> pb.Handshake:
        end = self._log.end_offset
        tail_size, tail_crc32 = self._log.tail_crc_at(end, TAIL_BYTES)
        return pb.Handshake(
            cluster_name=self._identity.cluster_name,
            broker_name=self._identity.broker_name,
            broker_id=self._identity.broker_id,
            address=self._identity.address,
            epochs=epoch_messages(self._epochs.epochs),
            min_offset=self._log.min_offset,
            end_offset=end,
            mapped_file_size_commit_log=self._identity.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=self._identity.mapped_file_size_consume_queue,
            tail_size=tail_size,
            tail_crc32=tail_crc32,
            version=REPLICATION,
        )

    def welcome(self, reply: pb.HandshakeReply) -> None:
        """Does what the master's reply asks for, if this log's own history agrees; otherwise raises a refusal.

        Later replies on the same stream only announce new epochs.
        """
        if self._expected_offset is not None:
            self._adopt(self._checked_epochs(reply))
            return
        if problem := too_new("the master", "replication", reply.version, REPLICATION):
            raise Mismatch(problem)
        master = log_state(reply)
        epochs = self._checked_epochs(reply)
        end, resume = self._log.end_offset, reply.resume_offset
        prefix = common_prefix(self._epochs.epochs, end, epochs, master.end_offset)
        if resume == end:
            self._check_resume(reply, prefix)
        elif resume > end or prefix is None or prefix < max(self._log.min_offset, master.min_offset):
            self._start_over(reply, master.min_offset, prefix)
        else:
            self._cut_back(reply, epochs, prefix)
        self._adopt(epochs)
        self.sync_flush = reply.sync_flush
        self.master_end_offset = master.end_offset
        self.master_min_offset = master.min_offset
        self._expected_offset = resume
        if reply.refill:
            self._refill_offset, self._refill_until = reply.refill_from, end

    def receive(self, frame: pb.LogData, data: bytes | memoryview) -> None:
        """Checks and stores log bytes, which may end within a record; a heartbeat has none.

        The bytes are in `data` and not in `frame`, since each access to a bytes field of a protobuf message copies it.
        """
        expected = self._expected_offset
        if expected is None or frame.commit_log_offset != expected:
            raise ProtocolViolation(f"log bytes begin at {frame.commit_log_offset} instead of {expected}")
        self._check_promise(frame.epoch)
        if frame.epoch < self._epochs.epochs.last:
            raise StaleEpoch(f"log bytes of epoch {frame.epoch}; this broker is in epoch {self._epochs.epochs.last}")
        if frame.epoch > self._epochs.epochs.last:
            raise ProtocolViolation(f"log bytes of epoch {frame.epoch}, which was not announced")
        if checksum(data) != frame.crc32:
            raise ProtocolViolation(f"log bytes from {expected} have a wrong CRC")
        if data:
            try:
                self._log.append_replicated(expected, data)
            except RecordError as error:
                raise ProtocolViolation(f"log bytes from {expected}: {error}") from error
        self._expected_offset = expected + len(data)
        self.master_end_offset = frame.master_end_offset
        self.master_min_offset = frame.master_min_offset if frame.HasField("master_min_offset") else None

    def next_refill(self, max_bytes: int) -> pb.LogData | None:
        """Returns the next chunk of the bytes that the master lost; None when all of them have been sent."""
        if self._refill_offset >= self._refill_until:
            return None
        wanted = min(max_bytes, self._refill_until - self._refill_offset)
        data = self._log.read_log(self._refill_offset, wanted)
        frame = pb.LogData(
            epoch=self._epochs.epochs.last,
            commit_log_offset=self._refill_offset,
            data=data,
            crc32=checksum(data),
            master_end_offset=self._log.end_offset,
        )
        self._refill_offset += len(data)
        return frame

    def ack(self, flushed_offset: int) -> pb.Ack:
        """Makes an ack of whole records, and only of flushed records if the master uses SYNC_FLUSH."""
        self._check_promise(self._epochs.epochs.last)
        end = self._log.end_offset
        return pb.Ack(
            ack_offset=min(end, flushed_offset) if self.sync_flush else end,
            epoch=self._epochs.epochs.last,
            metadata_sequence=self.metadata_sequence,
        )

    def _checked_epochs(self, reply: pb.HandshakeReply) -> EpochList:
        try:
            epochs = epoch_list(reply.epochs)
        except ValueError as error:
            raise ProtocolViolation(f"the master sent an impossible list of epochs: {error}") from error
        if epochs.last < self._epochs.epochs.last:
            raise StaleEpoch(
                f"the master is in epoch {epochs.last}, this broker knows of epoch {self._epochs.epochs.last}: "
                "that master was replaced, and must follow the newer one"
            )
        self._check_promise(epochs.last)
        return epochs

    def _check_promise(self, masters_epoch: int) -> None:
        promised = self._epochs.promised
        if promised is not None and masters_epoch < promised.epoch:
            raise StaleEpoch(f"the master's epoch {masters_epoch} is too low: this broker has promised {promised}")

    def _check_resume(self, reply: pb.HandshakeReply, prefix: int | None) -> None:
        end = self._log.end_offset
        joint = reply.refill_from if reply.refill else end
        if (self._log.min_offset < end or reply.refill) and prefix != joint:
            raise Mismatch(f"the master resumes at {end}, but the two histories are equal up to {prefix} only")
        self._compare_tail(reply, joint)

    def _cut_back(self, reply: pb.HandshakeReply, epochs: EpochList, prefix: int) -> None:
        end, resume = self._log.end_offset, reply.resume_offset
        if not self._epochs.epochs.yields_to(epochs) or prefix != resume:
            # A cut is accepted only at the offset where the two histories part, and only if this log must give way
            # (`yields_to`).
            raise Mismatch(
                f"the master asks to cut back from {end} to {resume}; the histories are equal up to {prefix}"
            )
        self._compare_tail(reply, resume)
        with self._reporting_cut(resume, str(self._diverged)):
            self._truncate(resume)

    def _start_over(self, reply: pb.HandshakeReply, master_min: int, prefix: int | None) -> None:
        first, end, resume = self._log.min_offset, self._log.end_offset, reply.resume_offset
        floors = [(floor.topic, floor.queue_id, floor.next_offset) for floor in reply.queue_floors]
        if resume != master_min:
            raise Mismatch(
                f"the master resumes at {resume}, but this log is [{first}, {end}), and both are equal up to {prefix}"
            )
        if resume % self._identity.mapped_file_size_commit_log or any(min(floor[1:]) < 0 for floor in floors):
            raise ProtocolViolation(f"a log cannot begin at {resume} with queues that begin at {floors}")
        if first == end:
            self._log.start_over(resume, floors)
            return
        if prefix is None:
            raise Mismatch(f"no epoch in common with the master: the log of another broker? {KEEP_THE_RIGHT_LOG}")
        with self._reporting_cut(first, str(self._diverged) if prefix < end else None):
            if prefix < end:
                self._truncate(max(prefix, first))
            self._log.start_over(resume, floors)

    def _truncate(self, end_offset: int) -> None:
        if self._cuts is not None:
            self._cuts.log_will_be_cut(end_offset)
        self._log.truncate(end_offset, self._diverged)

    @contextmanager
    def _reporting_cut(self, from_offset: int, kept_in: str | None) -> Iterator[None]:
        """Calls `cuts.log_cut` at the end of the context if the log has changed, even after an exception."""
        before = self._log.min_offset, self._log.end_offset
        try:
            yield
        finally:
            if self._cuts is not None and (self._log.min_offset, self._log.end_offset) != before:
                self._cuts.log_cut(Cut(from_offset, before[1], self._log.end_offset, kept_in))

    def _compare_tail(self, reply: pb.HandshakeReply, joint: int) -> None:
        tail_size, tail_crc32 = self._log.tail_crc_at(joint, min(reply.tail_size, TAIL_BYTES))
        if tail_size == reply.tail_size and tail_crc32 != reply.tail_crc32:
            raise Diverged(
                f"the {tail_size} bytes before {joint} differ from the master's, in the same epoch; "
                f"keep both stores and find out which is right (rocketsim store verify): {KEEP_THE_RIGHT_LOG}"
            )

    def _adopt(self, epochs: EpochList) -> None:
        """Saves the master's epochs as this log's.

        The saved epoch file says that another broker began the last epoch.  An unchanged list is saved, too, if the
        file names this broker instead, as it does in a copy of the master's store.
        """
        epochs = epochs.with_ids_of(self._epochs.epochs)
        if epochs != self._epochs.epochs or self._epochs.begun_here or not self._epochs.is_noted:
            self._epochs.save(epochs)

    def __str__(self) -> str:
        end = self._log.end_offset
        return f"follower end={end} behind={max(0, self.master_end_offset - end)}B epoch={self._epochs.epochs.last}"
