"""The operator's side: a method a mqadmin command, under its name in snake_case.

Where mqadmin takes `-b` or `-c`, these take `broker_addr` or `cluster_name`; with neither, all clusters.  A command
that changes something goes to masters (a slave learns it from its master), one that shows something to masters, or to a
slave while a master is gone.  A change goes to all of them, whatever one says (`at_each`).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TypeVar

from rocketsim_client.admin_model import (
    AclInfo,
    AclPolicy,
    ChangedAt,
    ClusterMember,
    ConsumeProgress,
    HaStatus,
    Promotion,
    ResetOffset,
    SlavesLeft,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicStatus,
    UserInfo,
)
from rocketsim_client.at_once import at_once
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Connection, Where
from rocketsim_client.errors import (
    BrokerNotExist,
    GroupNotExist,
    InvalidParameter,
    NotFound,
    RocketSimError,
    TopicNotExist,
)
from rocketsim_client.message_view import FoundMessages, Messages, MessageView
from rocketsim_client.model import MASTER_ID, MessageQueue
from rocketsim_client.route import TopicRoute
from rocketsim_client.tls import File
from rocketsim_client.transport.admin import AdminCalls
from rocketsim_client.validation import seconds

T = TypeVar("T")

MAX_QUERY_MESSAGES = 64
TIMEOUT_S = 5.0


def at_each(
    places: Iterable[str], call: Callable[[str], T], absent: type[RocketSimError] | None = None
) -> dict[str, T]:
    """What each of these says, by place (an address, or the name of a broker that has none), but those that have found
    that there is nothing (`absent`).  All are asked, at once, whatever one says: a user that was disabled is disabled
    wherever it can be, and now.  Then raises what the first one that refused has said, with its place, the other
    refusals, and the places where it is done."""
    asked = list(places)
    done, refusals = at_once(asked, call)
    failures = [(at, error) for at, error in refusals.items() if absent is None or not isinstance(error, absent)]
    if not failures:
        return done
    where, first = failures[0]
    if len(asked) == 1:
        raise first
    others = [f"refused at {other}: {error}" for other, error in failures[1:]] + [f"done at {other}" for other in done]
    told = first.again()
    told.args = (f"{first} ({'; '.join([f'at {where}', *others])})",)
    raise told from first


class Admin:
    """Blocking; every call has a deadline of `timeout_s` (5) for each broker it asks.  `timeout_ms` is its older name,
    in milliseconds.  `name_server`: `host:port;host:port`, or a Connection, whose time-out counts unless one is given.
    `access_key` and `secret_key`: the user and password that calls are signed with, for servers with
    access control.  `tls`, `tls_ca`, `tls_cert`, `tls_key`: as of Cluster.
    """

    def __init__(
        self,
        name_server: Where,
        *,
        timeout_s: float | None = None,
        access_key: str = "",
        secret_key: str = "",
        tls: bool = False,
        tls_ca: File = None,
        tls_cert: File = None,
        tls_key: File = None,
        timeout_ms: int = 5000,
    ) -> None:
        timeout = seconds(timeout_s, timeout_ms)
        if isinstance(name_server, Connection) and timeout == TIMEOUT_S:
            timeout = name_server.timeout_s
        self._cluster = Cluster(
            name_server,
            timeout_s=timeout,
            access_key=access_key,
            secret_key=secret_key,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        self._timeout_s = self._cluster.timeout_s

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._cluster.close()

    @property
    def _brokers(self) -> AdminCalls:
        return self._cluster.transport.admin

    @property
    def cluster(self) -> Cluster:
        """The cluster that is administered, with its routes."""
        return self._cluster

    # --- what the name server knows -------------------------------------------------------------------------------

    def cluster_list(self, cluster_name: str | None = None) -> list[ClusterMember]:
        """Every live broker, slaves included."""
        return [
            ClusterMember(
                *(data.cluster_name, data.broker_name, broker_id, address, data.epoch),
                role=data.roles.get(broker_id, ""),
            )
            for data in self._cluster.members()
            if cluster_name in (None, data.cluster_name)
            for broker_id, address in sorted(data.addresses.items())
        ]

    def masters(self, broker_addr: str | None = None, cluster_name: str | None = None) -> list[str]:
        """The addresses that a change goes to: the one given, or all masters, of one cluster if it is named."""
        if broker_addr:
            return [broker_addr]
        members = self.cluster_list(cluster_name)
        found = [member.address for member in members if member.broker_id == MASTER_ID]
        if not found:
            raise BrokerNotExist(
                f"no master of cluster {cluster_name!r} is known" if cluster_name else "no master is known"
            )
        return found

    def topic_list(self) -> list[str]:
        """The names of all topics that the name server knows."""
        return self._cluster.topics()

    def topic_route(self, topic: str) -> TopicRoute:
        """Where the topic is, asked anew.  Raises NoRoute."""
        return self._cluster.route(topic, fresh=True)

    def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take the write permission of a broker's topics away at every name server: how many topics, by its address."""
        return self._cluster.transport.routes.write_perm(broker_name, False, self._timeout_s)

    def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Give the write permission back that `wipe_write_perm` took: how many topics, by name server."""
        return self._cluster.transport.routes.write_perm(broker_name, True, self._timeout_s)

    # --- topics ---------------------------------------------------------------------------------------------------

    def update_topic(
        self,
        topic: str,
        *,
        read_queue_nums: int = 8,
        write_queue_nums: int = 8,
        perm: int = 6,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Make the topic, or change it.  By broker address, what it is there now.

        `attributes`: all of them, as in {"message.type": "FIFO"}.
        """
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read_queue_nums,
            write_queue_nums=write_queue_nums,
            perm=perm,
            order=order,
            attributes=attributes or {},
        )
        masters = self.masters(broker_addr, cluster_name)
        return at_each(masters, lambda at: self._brokers.update_topic(at, config, self._timeout_s))

    def delete_topic(self, topic: str, *, broker_addr: str | None = None, cluster_name: str | None = None) -> ChangedAt:
        """The addresses of the brokers that had it, and have it no more; `statuses` says who else has the deletion."""
        masters = self.masters(broker_addr, cluster_name)
        deleted = at_each(masters, lambda at: self._brokers.delete_topic(at, topic, self._timeout_s), TopicNotExist)
        if not deleted:
            raise TopicNotExist(f"topic {topic!r} is not at {', '.join(masters)}")
        return ChangedAt(deleted)

    def topic_status(self, topic: str) -> list[TopicStatus]:
        """Bounds and last store time of every queue of the topic."""
        found: list[TopicStatus] = []
        for name in sorted({data.broker_name for data in self.topic_route(topic).queues}):
            found += self._ask(name, lambda at, name: self._brokers.topic_status(at, name, topic, self._timeout_s))
        return found

    def topic_configs(self, broker_addr: str) -> list[TopicConfig]:
        """All topics of one broker."""
        return self._brokers.list_topics(broker_addr, self._timeout_s)

    # --- groups ---------------------------------------------------------------------------------------------------

    def update_sub_group(
        self, config: SubscriptionGroupConfig, *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """Make the group, or replace all its settings.  By broker address, what they are now."""
        masters = self.masters(broker_addr, cluster_name)
        return at_each(masters, lambda at: self._brokers.update_sub_group(at, config, self._timeout_s))

    def delete_sub_group(
        self,
        group: str,
        *,
        remove_offset: bool = False,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> ChangedAt:
        """The addresses of the brokers that had it, and have it no more; `statuses` says who else has the deletion.

        With `remove_offset` all goes that the group has read: its offsets, what it has under way, and its retry topics.
        Without, a group of that name goes on where this one was.
        """
        masters = self.masters(broker_addr, cluster_name)
        deleted = at_each(
            masters,
            lambda at: self._brokers.delete_sub_group(at, group, remove_offset, self._timeout_s),
            GroupNotExist,
        )
        if not deleted:
            raise GroupNotExist(f"consumer group {group!r} is not at {', '.join(masters)}")
        return ChangedAt(deleted)

    def sub_groups(self, broker_addr: str) -> list[SubscriptionGroupConfig]:
        """All subscription groups of one broker."""
        return self._brokers.list_sub_groups(broker_addr, self._timeout_s)

    def consumer_progress(self, group: str | None = None, topic: str | None = None) -> list[ConsumeProgress]:
        """Where groups are, queue by queue; of a name whose master is gone, for each queue the figures of the slave
        (`broker_id`) with the newest offset."""
        found: list[ConsumeProgress] = []
        for name in self._broker_names(None):

            def call(at: str, name: str = name) -> list[ConsumeProgress]:
                return self._brokers.consumer_progress(at, name, group or "", topic or "", self._timeout_s)

            newest: dict[tuple[str, MessageQueue], ConsumeProgress] = {}
            for entry in chain.from_iterable(self._cluster.ask_master_or_slaves(name, call)):
                other = newest.get((entry.group, entry.queue), entry)
                place = max(entry, other, key=lambda one: (one.generation, one.consumer_offset))
                newest[entry.group, entry.queue] = place
            found += newest.values()
        return found

    def reset_offset_by_time(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        force: bool = True,
        queue_ids: Iterable[int] = (),
        broker_name: str | None = None,
    ) -> list[ResetOffset]:
        """Move a group to the first message stored at or after the timestamp; -1: to the end.  Without `force` only
        backwards.  Only masters do that."""
        wanted = list(queue_ids)
        route = self.topic_route(topic)
        names = sorted({data.broker_name for data in route.queues if broker_name in (None, data.broker_name)})
        if not names:
            raise BrokerNotExist(f"topic {topic!r} is not on broker {broker_name!r}")
        masters = {route.addresses(name).get(MASTER_ID) or name: name for name in names}

        def reset(place: str) -> list[ResetOffset]:
            name = masters[place]
            if place == name:
                raise BrokerNotExist(f"broker {name!r} has no master, which alone can reset offsets")
            return self._brokers.reset_offset_by_time(
                place, name, group, topic, timestamp_ms, wanted, force, self._timeout_s
            )

        return [*chain.from_iterable(at_each(masters, reset).values())]

    # --- brokers --------------------------------------------------------------------------------------------------

    def ha_status(self, *, broker_addr: str | None = None, cluster_name: str | None = None) -> list[HaStatus]:
        """Replication of one broker, or of all, slaves too."""
        return [
            self._brokers.ha_status(address, self._timeout_s) for address in self._members(broker_addr, cluster_name)
        ]

    def broker_status(
        self, *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, dict[str, str]]:
        """All values that a broker reports, by broker address."""
        members = self._members(broker_addr, cluster_name)
        return {address: self._brokers.broker_status(address, self._timeout_s) for address in members}

    def get_broker_config(
        self, *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, dict[str, str]]:
        """All settings as they are now, by broker address."""
        members = self._members(broker_addr, cluster_name)
        return {address: self._brokers.get_broker_config(address, self._timeout_s) for address in members}

    def update_broker_config(
        self, values: Mapping[str, str], *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, dict[str, str]]:
        """Run-time keys only; by broker address, the values as they are now.  `brokerRole`, which only a master can
        change, goes to masters."""
        ask = self.masters if "brokerRole" in values else self._members
        members = ask(broker_addr, cluster_name)
        return at_each(members, lambda at: self._brokers.update_broker_config(at, values, self._timeout_s))

    def promote_slave(
        self,
        broker_addr: str,
        *,
        broker_name: str | None = None,
        expected_epoch: int = 0,
        broker_role: str = "",
        force: bool = False,
    ) -> Promotion:
        """Make a slave the master of its name, with a new epoch.  Refused, unless by `force`, while the old master
        answers, and while another slave has more or does not answer.  What it costs is in the answer.

        `broker_role`: SYNC_MASTER or ASYNC_MASTER; empty: what the old master was, so that `SEND_OK` keeps its meaning.
        """
        if broker_name is None:
            named = [member for member in self.cluster_list() if member.address == broker_addr]
            if not named:
                raise InvalidParameter(f"the name server does not know {broker_addr}; give its broker name, too")
            broker_name = named[0].broker_name
        return self._brokers.promote_slave(
            broker_addr, broker_name, expected_epoch, broker_role, force, self._timeout_s
        )

    def remove_slave(self, broker_addr: str, broker_id: int) -> SlavesLeft:
        """Make that broker forget a slave that is gone for good; the slaves that it still knows, by id."""
        return self._brokers.remove_slave(broker_addr, broker_id, self._timeout_s)

    # --- access control -------------------------------------------------------------------------------------------

    def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: str = "Normal",
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, UserInfo]:
        """`user_type`: Super or Normal.  By broker address."""
        return at_each(
            self.masters(broker_addr, cluster_name),
            lambda at: self._brokers.create_user(at, username, password, user_type, self._timeout_s),
        )

    def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        user_status: str | None = None,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, UserInfo]:
        """What is None stays as it is.  `user_status`: enable or disable."""
        for what, value in (("password", password), ("user_type", user_type), ("user_status", user_status)):
            if value == "":
                raise InvalidParameter(f"{what} of User:{username} is empty; None leaves it as it is")
        masters = self.masters(broker_addr, cluster_name)
        wanted = password or "", user_type or "", user_status or ""
        return at_each(masters, lambda at: self._brokers.update_user(at, username, *wanted, self._timeout_s))

    def delete_user(
        self, username: str, *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> ChangedAt:
        """With its policies.  The addresses of the brokers that had it, and have it no more; `statuses` says who else
        has the deletion."""
        masters = self.masters(broker_addr, cluster_name)
        deleted = at_each(masters, lambda at: self._brokers.delete_user(at, username, self._timeout_s), NotFound)
        if not deleted:
            raise NotFound(f"User:{username} is not at {', '.join(masters)}")
        return ChangedAt(deleted)

    def users(
        self, username: str = "", *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, list[UserInfo]]:
        """All, or the one of that name, by broker address.  Nobody is told a password."""
        masters = self.masters(broker_addr, cluster_name)
        found = at_each(masters, lambda at: self._brokers.list_users(at, username, self._timeout_s), NotFound)
        if not found:
            raise NotFound(f"User:{username} is not at {', '.join(masters)}")
        return found

    def create_acl(
        self,
        subject: str,
        policies: Iterable[AclPolicy],
        *,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, AclInfo]:
        """`subject`: `User:name`.  A policy replaces the one of the same resource, others stay.  By broker address."""
        wanted = AclInfo(subject, tuple(policies))
        masters = self.masters(broker_addr, cluster_name)
        return at_each(masters, lambda at: self._brokers.create_acl(at, wanted, self._timeout_s))

    def update_acl(
        self,
        subject: str,
        policies: Iterable[AclPolicy],
        *,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, AclInfo]:
        """As `create_acl`, for a user that has policies."""
        wanted = AclInfo(subject, tuple(policies))
        masters = self.masters(broker_addr, cluster_name)
        return at_each(masters, lambda at: self._brokers.update_acl(at, wanted, self._timeout_s))

    def delete_acl(
        self, subject: str, resource: str = "", *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> ChangedAt:
        """All policies of the user, or the one of a resource.  The addresses of the brokers that had them; `statuses`
        says who else has the deletion."""
        masters = self.masters(broker_addr, cluster_name)
        deleted = at_each(
            masters, lambda at: self._brokers.delete_acl(at, subject, resource, self._timeout_s), NotFound
        )
        if not deleted:
            what = f" for {resource}" if resource else ""
            raise NotFound(f"{subject} has no policy{what} at {', '.join(masters)}")
        return ChangedAt(deleted)

    def acls(
        self,
        subject: str = "",
        resource: str = "",
        *,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
    ) -> dict[str, list[AclInfo]]:
        """Of all users or of one, for all resources or for one; by broker address."""
        masters = self.masters(broker_addr, cluster_name)
        found = at_each(masters, lambda at: self._brokers.list_acls(at, subject, resource, self._timeout_s), NotFound)
        if not found:
            raise NotFound(f"{subject} has no policies at {', '.join(masters)}")
        return found

    # --- messages -------------------------------------------------------------------------------------------------

    def query_msg_by_id(self, topic: str, msg_id: str) -> MessageView:
        """Either id will do: the one the producer made, or the offset message id."""
        failure: RocketSimError | None = None
        for name in self._names_of(topic):
            try:
                found = self._ask(
                    name,
                    lambda at, name: self._brokers.query_msg_by_id(at, name, topic, msg_id, self._timeout_s),
                )
            except NotFound:
                continue
            except RocketSimError as error:
                failure = error  # Another broker may have it.
                continue
            if found:
                return found[0]
        raise failure or NotFound(f"no broker has message {msg_id!r} of topic {topic!r}")

    def query_msg_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = 32,
        begin_timestamp: int = 0,
        end_timestamp: int | None = None,
    ) -> FoundMessages:
        """Newest first, from all brokers of the topic; at most 64.  Stored from `begin_timestamp` to `end_timestamp`,
        in ms; None: to the newest.  `more` says whether there may be older ones."""
        if not 0 < max_num <= MAX_QUERY_MESSAGES:
            raise InvalidParameter(f"max_num {max_num}: 1 to {MAX_QUERY_MESSAGES}")
        until = time.monotonic() + self._timeout_s
        found: list[MessageView] = []
        more = False
        for name in self._names_of(topic):
            here: list[MessageView] = []
            before: int | None = None
            while True:
                messages, before = self._page_by_key(
                    name, topic, key, max_num - len(here), begin_timestamp, end_timestamp, before
                )
                here += messages
                if before is None or len(here) == max_num or time.monotonic() > until:
                    break
            found += here
            more |= before is not None
        found.sort(key=lambda message: -message.store_timestamp)
        return FoundMessages(found[:max_num], more=more or len(found) > max_num)

    def _page_by_key(
        self, name: str, topic: str, key: str, max_num: int, begin: int, end: int | None, before: int | None
    ) -> tuple[Messages, int | None]:
        return self._ask(
            name,
            lambda at, name: self._brokers.query_msg_by_key(
                at, name, topic, key, max_num, begin, end, before, self._timeout_s
            ),
        )

    def query_msg_by_offset(self, queue: MessageQueue, offset: int) -> MessageView:
        """The message at that place; NotFound if the queue has none there."""
        found = self._ask(
            queue.broker_name, lambda at, _: self._brokers.query_msg_by_offset(at, queue, offset, self._timeout_s)
        )
        if not found:
            raise NotFound(f"{queue} has no message at offset {offset}")
        return found[0]

    # --- whom to ask ----------------------------------------------------------------------------------------------

    def _members(self, broker_addr: str | None, cluster_name: str | None) -> list[str]:
        if broker_addr:
            return [broker_addr]
        found = [member.address for member in self.cluster_list(cluster_name)]
        if not found:
            raise BrokerNotExist(
                f"no broker of cluster {cluster_name!r} is known" if cluster_name else "no broker is known"
            )
        return found

    def _broker_names(self, cluster_name: str | None) -> list[str]:
        return sorted({member.broker_name for member in self.cluster_list(cluster_name)})

    def _names_of(self, topic: str) -> list[str]:
        return sorted({data.broker_name for data in self.topic_route(topic).queues})

    def _ask(self, broker_name: str, call: Callable[[str, str], T]) -> T:
        """`call(address, broker_name)`'s answer."""
        return self._cluster.ask_name(broker_name, lambda address: call(address, broker_name))
