"""The handshake with which master and slave begin a stream: identity checks, and conversions to and from protobuf."""

from collections.abc import Iterable
from dataclasses import dataclass

from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.versions import REPLICATION, too_new

from broker_service.names import is_address
from broker_service.replication.catch_up import LogState
from broker_service.replication.epochs import Epoch, EpochList
from broker_service.replication.refusals import Mismatch, ProtocolViolation

TAIL_BYTES = 64 << 10  # bytes before the common end whose checksums are compared at a handshake


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The names and address of a broker, and the sizes of its files."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int

    def check_slave(self, slave: pb.Handshake) -> None:
        """Raises Mismatch unless the slave has this master's names and file sizes, and a version that this master
        supports.
        """
        if problem := too_new(f"slave-{slave.broker_id}", "replication", slave.version, REPLICATION):
            raise Mismatch(problem)
        if slave.broker_id == self.broker_id or slave.broker_id < 0:
            raise Mismatch(f"brokerId {slave.broker_id} cannot be a slave of brokerId {self.broker_id}")
        if slave.address and not is_address(slave.address):
            raise Mismatch(f"slave-{slave.broker_id} has the address {slave.address!r}, which is not host:port")
        for key, ours, theirs in (
            ("brokerClusterName", self.cluster_name, slave.cluster_name),
            ("brokerName", self.broker_name, slave.broker_name),
            ("mappedFileSizeCommitLog", self.mapped_file_size_commit_log, slave.mapped_file_size_commit_log),
            ("mappedFileSizeConsumeQueue", self.mapped_file_size_consume_queue, slave.mapped_file_size_consume_queue),
        ):
            if ours != theirs:
                raise Mismatch(f"{key} is {ours} here and {theirs} on slave-{slave.broker_id}: make them the same")


def log_state(message: pb.Handshake | pb.HandshakeReply) -> LogState:
    """Returns the state of the sender's log; raises ProtocolViolation if its numbers are impossible."""
    try:
        return LogState(epoch_list(message.epochs), message.min_offset, message.end_offset)
    except ValueError as error:
        raise ProtocolViolation(f"an impossible handshake: {error}") from error


def epoch_list(epochs: Iterable[pb.Epoch]) -> EpochList:
    return EpochList(tuple(Epoch(epoch.epoch, epoch.start_offset, epoch.id) for epoch in epochs))


def epoch_messages(epochs: EpochList) -> list[pb.Epoch]:
    return [pb.Epoch(epoch=epoch.epoch, start_offset=epoch.start_offset, id=epoch.id) for epoch in epochs.epochs]
