"""Membership makes this broker's reports to name servers and other brokers, and takes in their answers.

A name server answers with all live brokers of the name.  A broker that is asked directly answers only for itself.
"""

import logging
from dataclasses import replace
from typing import Protocol

from rocketsim_proto import namesrv_pb2, replication_pb2
from rocketsim_proto.reserved import MASTER_ID
from rocketsim_proto.versions import WIRE

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.core.peers import Member
from broker_service.broker.metadata.messages import topic_to_proto, version_to_proto
from broker_service.leadership.promotion import MemberReport, OtherMember
from broker_service.leadership.role_file import RoleFile
from broker_service.replication.handshake import epoch_list
from broker_service.runtime.peer_call import PeerLost

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 0.5  # how often a master that waits asks its slaves


class HasAddress(Protocol):
    @property
    def address(self) -> str:
        """The host:port for RocketMQ 5's clients; empty while the port is closed."""


class Membership:
    def __init__(
        self, broker: Broker, address: str, v2_endpoint: HasAddress, role_file: RoleFile, remoting_address: str = ""
    ) -> None:
        self._broker = broker
        self._address = address
        self._v2_endpoint = v2_endpoint
        self._role_file = role_file
        self._remoting_address = remoting_address
        self._refusals: dict[str, str] = {}

    def registration(self) -> namesrv_pb2.BrokerRegistration:
        broker = self._broker
        topics = broker.topics.announced(broker.config.auto_create_topic_enable)
        return namesrv_pb2.BrokerRegistration(
            cluster_name=broker.config.broker_cluster_name,
            broker_name=broker.config.broker_name,
            broker_id=broker.broker_id,
            address=self._address,
            epoch=broker.epoch,
            end_offset=broker.store.end_offset,
            topics_version=version_to_proto(broker.topics.version),
            topics=[topic_to_proto(topic) for topic in topics],
            broker_permission=broker.config.broker_permission,
            writable=broker.takes_clients_writes,
            v2_address=self._v2_endpoint.address,
            broker_role=broker.config.broker_role.name,
            wire_version=WIRE,
            remoting_address=self._remoting_address,
            groups=sorted(self._groups()) if self._remoting_address else (),
            follows_rocketmq=broker.is_slave and broker.config.follows_rocketmq,
        )

    def _groups(self) -> set[str]:
        """Returns the groups for RocketMQ's tools, which list groups by their retry topics."""
        return {*self._broker.groups.entries, *self._broker.offsets.groups()}

    def name_server_answered(self, name_server: str, reply: namesrv_pb2.RegistrationReply) -> None:
        broker = self._broker
        members = [Member(item.broker_id, item.address, item.epoch, item.end_offset) for item in reply.members]
        broker.peers.answered(name_server, members, reply.newest_epoch, self._address)
        self.fence(reply.newest_epoch, f"name server {name_server}")
        broker.mastership.address_answered(name_server)
        if not reply.refused:
            broker.mastership.answered(broker.clock())
        elif reply.refused != self._refusals.get(name_server):
            logger.warning("name server %s refuses this broker: %s", name_server, reply.refused)
        self._refusals[name_server] = reply.refused  # kept so that the same refusal is logged once
        self._broker.members_changed.notify()

    def name_server_lost(self, name_server: str) -> None:
        """Forgets the brokers that only this name server knew, because they may have died together with the name
        server.
        """
        self._broker.peers.forget(name_server)
        self._broker.members_changed.notify()

    def fence(self, epoch: int, by: str) -> None:
        """Ends the writes of this master if `epoch`, which another broker or a name server has named, is newer."""
        if self._broker.mastership.newer_epoch(epoch, by):
            logger.error(
                "FENCED by %s: this broker takes no more writes. To make this broker a slave of the new master, stop "
                "it, %sstart it with brokerRole=SLAVE and a brokerId that no other broker of its name has. As a slave, "
                "it moves bytes that are only in its own log into separate files",
                self._broker.mastership.fenced_by,
                self._role_file.to_be_removed_first(),
            )
            self._broker.members_changed.notify()

    def slaves(self) -> set[str]:
        """Returns the addresses of the slaves that a master asks: the configured slaves and those that have followed
        it.
        """
        broker = self._broker
        if broker.is_slave:
            return set()
        return {*broker.config.slave_addresses, *broker.known_slaves.addresses.values()} - {self._address}

    def question(self) -> replication_pb2.GetMemberRequest:
        broker = self._broker
        return replication_pb2.GetMemberRequest(
            broker_name=broker.config.broker_name,
            broker_id=broker.broker_id,
            epoch=broker.epoch,
            address=self._address,
        )

    def request_for_promise(self, epoch: int) -> replication_pb2.PromiseEpochRequest:
        broker = self._broker
        return replication_pb2.PromiseEpochRequest(
            broker_name=broker.config.broker_name, broker_id=broker.broker_id, epoch=epoch, address=self._address
        )

    def candidates(self, *masters: str) -> dict[str, int]:
        """Returns address and broker id of all known brokers of this name, which a slave asks before it is promoted.

        `masters` are the addresses of masters that this slave follows or would follow.
        """
        broker = self._broker
        known = {address: broker_id for broker_id, address in broker.known_slaves.addresses.items()}
        found = dict.fromkeys(masters, MASTER_ID) | known | broker.peers.addresses()
        return {address: broker_id for address, broker_id in found.items() if address not in ("", self._address)}

    def is_gone(self, address: str) -> None:
        """Forgets what the broker at this address has said, because this address is not asked any more."""
        self._broker.peers.forget(address)

    def pause_s(self) -> float:
        """Returns how long to wait before slaves are asked again: a short time during a start, and later a registration
        period.
        """
        waiting = self._broker.mastership.standing is Standing.WAITING
        return ASK_AGAIN_S if waiting else self._broker.config.register_name_server_period / 1000

    def slave_answered(self, address: str, reply: replication_pb2.GetMemberResponse | None) -> None:
        """Records the answer of the broker at this address; None means that the broker has not answered."""
        broker = self._broker
        if reply is None:
            broker.peers.forget(address)
            broker.mastership.address_silent(address)
            return
        member = Member(reply.broker_id, address, reply.epoch, reply.end_offset)
        broker.peers.answered(address, [member], reply.epoch, self._address)
        self.fence(reply.epoch, f"broker {reply.broker_id} at {address}")
        # If the answering broker takes part in a promotion with a higher epoch, a newer master may still begin, so the
        # answer does not count.
        if max(reply.promised_epoch, reply.candidate_epoch) <= broker.epoch:
            broker.mastership.address_answered(address)
        broker.mastership.answered(broker.clock())
        self._broker.members_changed.notify()


def with_promise(
    other: OtherMember, epoch: int, reply: replication_pb2.PromiseEpochResponse | PeerLost | None
) -> OtherMember:
    """Returns `other` with its answer to the request to promise `epoch`.  A reply of None means that the broker was not
    asked.

    Only an answer that names the epoch is a promise.  The mere absence of a refusal is not a promise, because an empty
    message has no refusal either.
    """
    if reply is None:
        return other
    if isinstance(reply, PeerLost):
        return replace(other, refusal=f"does not promise to follow no older master: {reply}")
    missing = f"has not promised epoch {epoch}: try again" if reply.member.promised_epoch != epoch else ""
    return replace(other, answer=answer_of(reply.member), refusal=reply.refusal or missing)


def answer_of(reply: replication_pb2.GetMemberResponse | None) -> MemberReport | None:
    """Converts a broker's report about itself; returns None if the broker has not answered, or if its epochs are
    impossible.
    """
    if reply is None:
        return None
    try:
        epochs = epoch_list(reply.epochs) if reply.epochs else None
    except ValueError as error:
        logger.warning("broker %d has answered with impossible epochs: %s", reply.broker_id, error)
        return None
    return MemberReport(
        reply.epoch,
        reply.end_offset,
        epochs,
        reply.min_offset,
        is_master=reply.broker_id == MASTER_ID,
        follows=reply.follows,
        promised_epoch=reply.promised_epoch,
    )
