"""MasterLink is the `MasterBroker` of `replication/protocols.py`, through which `ReplicationMaster` uses the broker.

A slave also has a MasterLink, because it answers candidates for promotion.
"""

from rocketsim_proto.metadata_pb2 import Metadata

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.leadership.exchange import MetadataExchange
from broker_service.leadership.following import Following
from broker_service.leadership.membership import Membership
from broker_service.leadership.promises import Promises
from broker_service.replication.promise import Promise
from broker_service.replication.tracker import SlaveProgress


class MasterLink:
    def __init__(
        self,
        broker: Broker,
        metadata: MetadataExchange,
        membership: Membership,
        following: Following,
        promises: Promises,
    ) -> None:
        self._broker = broker
        self._metadata = metadata
        self._membership = membership
        self._following = following
        self._promises = promises

    def is_master(self) -> bool:
        mastership = self._broker.mastership
        return mastership.is_master and mastership.standing is not Standing.FENCED

    def takes_writes(self) -> bool:
        return self._broker.mastership.standing is Standing.WRITABLE

    def metadata(self) -> Metadata:
        return self._metadata.snapshot()

    def accept_offsets(self, slave_id: int, offsets: Metadata) -> None:
        self._metadata.accept_offsets(slave_id, offsets)

    def fenced(self, epoch: int, by: str) -> None:
        self._membership.fence(epoch, by)

    def follows(self) -> str:
        return self._following.address

    def candidate_epoch(self) -> int:
        return self._broker.mastership.candidate_epoch

    def promise(self, candidate: Promise) -> str:
        return self._promises.promise(candidate)

    def newer_master(self, master: Promise) -> None:
        self._promises.newer_master(master)

    def slave_joined(self, slave: SlaveProgress) -> None:
        self._broker.mastership.slave_joined(slave.slave_id, self._broker.clock(), slave.address)
        self._broker.known_slaves.joined(slave.slave_id, slave.address)
        self._broker.members_changed.notify()

    def offsets_handed_back(self, slave: SlaveProgress) -> None:
        self._broker.mastership.offsets_handed_back(slave.slave_id)
