"""Questions to name servers, over gRPC."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub
from rocketsim_proto.versions import WIRE, too_new

from rocketsim_client.at_once import at_once
from rocketsim_client.errors import (
    CallTimeout,
    NameServerUnavailable,
    NoRoute,
    TooNew,
    TopicNotExist,
    Unreachable,
)
from rocketsim_client.route import BrokerData, QueueData, TopicRoute
from rocketsim_client.transport.own.answers import broker_data
from rocketsim_client.transport.own.channels import Channels
from rocketsim_client.transport.unreachable import UnreachableAddresses

T = TypeVar("T")

logger = logging.getLogger(__name__)


def check_versions(name_server: str, version: int, brokers: Iterable[ns.BrokerData]) -> None:
    """TooNew unless this client knows what the name server and these brokers speak."""
    speakers = [(f"name server {name_server}", version)]
    speakers += [(f"broker {data.broker_name}", data.wire_version) for data in brokers]
    for who, theirs in speakers:
        if problem := too_new(who, "the wire", theirs, WIRE):
            raise TooNew(problem, address=name_server)


class GrpcRoutes:
    """`RouteCalls`.  Name servers share nothing: the one that answered last is asked first, then the others."""

    def __init__(self, channels: Channels, name_servers: Sequence[str]) -> None:
        self.channels = channels
        self._name_servers = list(name_servers)
        self._preferred = 0
        self._unreachable = UnreachableAddresses()

    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute:
        def ask(address: str) -> TopicRoute:
            request = ns.TopicRouteRequest(topic=topic)
            answer = self.channels.call(address, NameServerStub, "TopicRoute", request, timeout_s)
            check_versions(address, answer.wire_version, answer.broker_datas)
            if not answer.queue_datas:
                raise NoRoute(f"no route at name server {address}", address=address)
            return TopicRoute(
                topic,
                tuple(
                    QueueData(data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm)
                    for data in answer.queue_datas
                ),
                {data.broker_name: broker_data(data) for data in answer.broker_datas},
            )

        try:
            return self._ask_name_servers(ask)
        except TopicNotExist as error:
            raise NoRoute(
                f"no name server knows a broker with topic {topic!r}: it does not exist, or all its brokers are away",
                address=error.address,
            ) from error

    def topic_list(self, timeout_s: float) -> list[str]:
        def ask(address: str) -> list[str]:
            answer = self.channels.call(address, NameServerStub, "TopicList", ns.TopicListRequest(), timeout_s)
            return sorted(answer.topics)

        return self._ask_name_servers(ask)

    def cluster_list(self, timeout_s: float) -> list[BrokerData]:
        def ask(address: str) -> list[BrokerData]:
            answer = self.channels.call(address, NameServerStub, "ClusterList", ns.ClusterListRequest(), timeout_s)
            check_versions(address, answer.wire_version, answer.brokers)
            return sorted(map(broker_data, answer.brokers), key=lambda data: (data.cluster_name, data.broker_name))

        return self._ask_name_servers(ask)

    def write_perm(self, broker_name: str, writable: bool, timeout_s: float) -> dict[str, int]:
        method = "AddWritePerm" if writable else "WipeWritePerm"
        request = ns.WritePermRequest(broker_name=broker_name)

        def change(address: str) -> int:
            return int(self.channels.call(address, NameServerStub, method, request, timeout_s).topic_count)

        changed, refusals = at_once(self._name_servers, change)
        if refusals:
            first = next(iter(refusals.values()))
            if not changed and not isinstance(first, Unreachable):
                raise first
            done = f"; done at {', '.join(changed)}" if changed else ""
            raise NameServerUnavailable(f"{method} of {broker_name}: {first}{done}") from first
        return changed

    def _ask_name_servers(self, ask: Callable[[str], T]) -> T:
        """The first answer.  `no such topic` is believed only when every name server that answers says so: one that has
        just started knows nothing yet."""
        unknown: TopicNotExist | None = None
        failure: Unreachable | None = None
        unreachable = self._unreachable.current(time.monotonic())
        for address in sorted(self._in_order(), key=lambda address: address in unreachable):
            if unknown and address in unreachable:
                break  # It would cost a timeout, and probably say nothing.
            try:
                answer = ask(address)
            except TopicNotExist as error:
                unknown = error
            except Unreachable as error:
                failure = error
                if self._unreachable.failed(address, time.monotonic(), silent=isinstance(error, CallTimeout)):
                    logger.warning("name server %s is tried last for a while: %s", address, error)
            else:
                if self._unreachable.answered(address):
                    logger.info("name server %s answers again", address)
                self._preferred = self._name_servers.index(address)
                return answer
        if unknown:
            raise unknown
        servers = "; ".join(self._name_servers)
        raise NameServerUnavailable(f"no name server answered ({servers}): {failure}") from failure

    def _in_order(self) -> list[str]:
        return self._name_servers[self._preferred :] + self._name_servers[: self._preferred]
