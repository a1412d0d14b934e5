"""The base of all commands: chooses the brokers that a command goes to, and reads their answers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf.message import Message

from rocketsim_client.admin_model import ChangedAt, ClusterMember
from rocketsim_client.at_once import at_once
from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import BrokerNotExist, RocketSimError
from rocketsim_client.model import MASTER_ID, CommitStatus, commit_status
from rocketsim_client.route import TopicRoute

T = TypeVar("T")


def at_each(
    places: Iterable[str], call: Callable[[str], T], absent: type[RocketSimError] | None = None
) -> dict[str, T]:
    """Calls all places (addresses, or broker names that have no address) at once, and returns their answers by place.

    Places whose call raises `absent` do not have the topic, group or user, and are left out of the result.  A refusal
    at one place does not stop the calls to the others, because a user, for example, must be disabled wherever that is
    possible.  After all calls, the first refusal is raised.  The error's text also names the other refusals, and the
    places where the change was made.
    """
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


class Commands:
    """Sends commands to brokers.

    A request's type in admin.proto names its command, so a new command needs no change below this class.
    """

    _cluster: Cluster
    _timeout_s: float

    # --- which brokers --------------------------------------------------------------------------------------------

    def cluster_list(self, cluster_name: str | None = None) -> list[ClusterMember]:
        """Returns every live broker, slaves included."""
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
        """Returns the given address.  Without an address, returns the addresses of all masters, or only of the masters
        in the cluster `cluster_name`."""
        if broker_addr:
            return [broker_addr]
        members = self.cluster_list(cluster_name)
        found = [member.address for member in members if member.broker_id == MASTER_ID]
        if not found:
            raise BrokerNotExist(
                f"no master of cluster {cluster_name!r} is known" if cluster_name else "no master is known"
            )
        return found

    def _members(self, broker_addr: str | None, cluster_name: str | None) -> list[str]:
        if broker_addr:
            return [broker_addr]
        found = [member.address for member in self.cluster_list(cluster_name)]
        if not found:
            raise BrokerNotExist(
                f"no broker of cluster {cluster_name!r} is known" if cluster_name else "no broker is known"
            )
        return found

    def topic_route(self, topic: str) -> TopicRoute:
        """Asks the name servers which brokers have the topic.  Raises NoRoute."""
        return self._cluster.route(topic, fresh=True)

    def _names_of(self, topic: str) -> list[str]:
        return sorted({data.broker_name for data in self.topic_route(topic).queues})

    # --- calls ----------------------------------------------------------------------------------------------------

    def _call(self, address: str, request: Message) -> Any:
        """Returns the broker's answer to the command, which is a message of admin.proto."""
        transport, left_s = self._cluster.transport_within(self._timeout_s)
        return transport.admin.command(address, request, left_s)

    def _call_name(self, broker_name: str, request: Message, read: Callable[[Any], T]) -> T:
        """Calls the master of the broker name, or a slave while the broker name has no master.  `read` turns the
        broker's answer into the returned value."""
        return self._cluster.ask_name(broker_name, lambda address: read(self._call(address, request)))

    def _call_members(
        self, request: Message, broker_addr: str | None, cluster_name: str | None, read: Callable[[Any], T]
    ) -> dict[str, T]:
        """Calls one broker after the other, slaves too.  Raises the first refusal of a broker, and then calls no
        further broker."""
        return {address: read(self._call(address, request)) for address in self._members(broker_addr, cluster_name)}

    def _call_masters(
        self,
        request: Message,
        broker_addr: str | None,
        cluster_name: str | None,
        read: Callable[[Any], T],
        absent: type[RocketSimError] | None = None,
        missing: str = "",
    ) -> dict[str, T]:
        """Calls all masters, as `at_each` describes.  If all masters raise `absent`, raises this error with the text of
        `missing`."""
        masters = self.masters(broker_addr, cluster_name)
        answers = at_each(masters, lambda at: read(self._call(at, request)), absent)
        if absent is not None and not answers:
            raise absent(f"{missing} at {', '.join(masters)}")
        return answers

    def _delete(
        self,
        request: Message,
        broker_addr: str | None,
        cluster_name: str | None,
        absent: type[RocketSimError],
        missing: str,
    ) -> ChangedAt:
        """Calls all masters with a command that deletes something."""
        return ChangedAt(self._call_masters(request, broker_addr, cluster_name, status_of, absent, missing))


def status_of(answer: Any) -> CommitStatus:
    return commit_status(answer.status)


_OF_THE_ANSWER = ("commit_status",)  # the protobuf messages of settings do not have these fields


def values_of(setting: Any) -> dict[str, Any]:
    """Returns those fields of a setting's dataclass that its protobuf message also has, under the same names."""
    return {field.name: getattr(setting, field.name) for field in fields(setting) if field.name not in _OF_THE_ANSWER}


def plain(kind: type[T], message: Any, **more: Any) -> T:
    """Makes a dataclass from a protobuf message whose fields have the same names."""
    names = [field.name for field in fields(kind) if field.name not in _OF_THE_ANSWER]  # type: ignore[arg-type]
    values = {name: getattr(message, name) for name in names if name not in more}
    return kind(
        **{name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}, **more
    )
