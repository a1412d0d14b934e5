"""One replication stream without a network: two queues of messages, delivered one at a time, in order."""

from collections import deque

from rocketsim_proto import replication_pb2 as pb

from broker_service.errors import RocketSimError, StaleEpoch
from broker_service.replication.follower import Follower
from broker_service.replication.master_frame import MasterFrame, from_bytes, to_bytes
from broker_service.replication.transfer import State
from tests.simulation.node import Node

ON_THE_WAY = 4  # messages in one direction


class Stream:
    """What `_SlaveStream` and `_MasterStream` do, by plain calls.  `over` says why it ended."""

    def __init__(self, master: Node, slave: Node, now: float) -> None:
        self.master = master
        self.slave = slave
        self.runs = (master.starts, slave.starts)
        self.to_master: deque[pb.SlaveMessage] = deque()
        self.to_slave: deque[bytes] = deque()
        self.transfer = master.transfer(now)
        self.follower: Follower = slave.follower()
        self.welcome = False
        self.ack_due = False
        self.clamped = False
        self.over: str | None = None
        self._greeted = False
        master.transfers.append(self.transfer)
        self.to_master.append(pb.SlaveMessage(handshake=self.follower.handshake()))

    @property
    def in_transfer(self) -> bool:
        return self.welcome and self.transfer.state is State.TRANSFER

    def close(self, why: str) -> None:
        self.over = why
        if self.master.is_up and self.runs[0] == self.master.starts:
            self.transfer.leave()
            if self.transfer in self.master.transfers:
                self.master.transfers.remove(self.transfer)

    # --- the master's side ----------------------------------------------------------------------------------------

    def master_sends(self, now: float) -> None:
        if len(self.to_slave) < ON_THE_WAY:
            frame = self._guarded(lambda: self.transfer.next_message(now))
            if frame is not None:
                self.to_slave.append(to_bytes(frame))

    def master_hears(self) -> None:
        if self.to_master:
            message = self.to_master.popleft()
            self._guarded(lambda: self._on_slave_message(message))

    def _on_slave_message(self, message: pb.SlaveMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "handshake":
            if self.master.fenced or not self.master.is_master:
                raise StaleEpoch(f"{self.master.name} is no master")
            if self.master.is_refilling():
                self.to_master.appendleft(message)  # the greeting lock
                return
            newest = max((epoch.epoch for epoch in message.handshake.epochs), default=0)
            try:
                self.transfer.greet(message.handshake, takes_writes=self.master.writable)
            except StaleEpoch:
                self.master.fence(newest)
                raise
        elif kind == "ack":
            self.transfer.ack(message.ack)
        elif kind == "refill":
            self.transfer.refill(message.refill)

    # --- the slave's side -----------------------------------------------------------------------------------------

    def slave_hears(self) -> None:
        if self.to_slave:
            frame = from_bytes(self.to_slave.popleft())
            self._guarded(lambda: self._on_master_frame(frame))

    def _on_master_frame(self, frame: MasterFrame) -> None:
        message, data = frame
        if message.WhichOneof("kind") == "handshake":
            cut = self.follower.welcome(message.handshake)
            self.welcome = True
            if cut is not None:
                self.clamped = True
                self.slave.offsets.clamp(self.slave.queue_end, new_generation=False)
        else:
            self.follower.receive(message.log, data)
        self.ack_due = True

    def slave_sends(self) -> None:
        if not self.welcome or len(self.to_master) >= ON_THE_WAY:
            return
        refill = self._guarded(lambda: self.follower.next_refill(500))
        if refill is not None:
            self.to_master.append(pb.SlaveMessage(refill=refill))
        elif self.ack_due:
            self.ack_due = False
            self.to_master.append(pb.SlaveMessage(ack=self.follower.ack(self.slave.store.flushed_offset)))

    def _guarded(self, act):
        try:
            return act()
        except RocketSimError as refusal:
            self.close(f"{type(refusal).__name__}: {refusal}")
            return None

    def __str__(self) -> str:
        return f"{self.slave.name} -> {self.master.name}"
