"""Metrics over HTTP for Prometheus.  The event loop renders them once a second; the HTTP thread serves that text.

prometheus_client is imported by who needs it: a broker without metricsPort does not.
"""

import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from broker_service.access.refusals import Refusals
from broker_service.admin.http_connections import HttpConnections
from broker_service.admin.status import Status
from broker_service.broker.core.broker import Broker
from broker_service.pop.consumption import Consumption
from broker_service.runtime.certificates import Certificates
from broker_service.wire.clients import Clients
from broker_service.wire.own.range_streams import RangeStreams
from broker_service.wire.v2.port import Port

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Sample = tuple[tuple[str, ...], float]

_COUNTERS = {
    "put_messages": ("rocketsim_messages_in", "Messages taken from clients since the start."),
    "put_bytes": ("rocketsim_bytes_in", "Record bytes taken from clients since the start."),
    "get_messages": ("rocketsim_messages_out", "Messages given to consumers since the start."),
    "get_bytes": ("rocketsim_bytes_out", "Record bytes given to consumers since the start."),
}
_OF_CONSUMPTION = {
    "pops": ("rocketsim_pops", "Pops answered with messages since the start."),
    "delivered": ("rocketsim_deliveries", "Messages delivered by pops since the start."),
    "acknowledged": ("rocketsim_acknowledged", "Deliveries acknowledged since the start."),
    "retried": ("rocketsim_retries", "Messages put into retry topics since the start."),
    "dead_letters": ("rocketsim_dead_letters", "Messages put into dead letter topics since the start."),
}


class Metrics:
    """`serve` needs `picture` to have been called once."""

    def __init__(
        self,
        broker: Broker,
        status: Status,
        streams: RangeStreams,
        consumption: Consumption,
        refusals: Refusals,
        clients: Clients,
        v2_port: Port,
    ) -> None:
        self._broker = broker
        self._status = status
        self._streams = streams
        self._consumption = consumption
        self._refusals = refusals
        self._clients = clients
        self._v2_port = v2_port
        self.lags: Mapping[tuple[str, str], int] = {}  # by group and topic
        self._picture: list[Metric] = []
        self._server: Any = None

    def picture(self) -> None:
        """What the next reader sees; called on the event loop."""
        self._picture = list(self._families())

    def serve(
        self, address: str, port: int, certificates: Certificates | None = None, *, client_auth: bool = False
    ) -> int:
        """The port that listens, for HTTPS if there are certificates."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(self)
        if certificates is None:
            self._server, _ = start_http_server(port, address, registry)
        else:
            self._server, _ = start_http_server(
                port,
                address,
                registry,
                certfile=str(certificates.files.cert),
                keyfile=str(certificates.files.key),
                client_cafile=str(certificates.files.ca) if certificates.files.ca is not None else None,
                client_auth_required=client_auth,
            )
            listening = self._server.socket
            self._server.get_request = lambda: _accepted(listening, certificates.newest().context, client_auth)
        HttpConnections("metricsPort").guard(self._server)
        return int(self._server.server_port)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def collect(self) -> "Iterable[Metric]":
        """The HTTP thread's."""
        return self._picture

    def _families(self) -> "Iterator[Metric]":
        broker, store = self._broker, self._broker.store
        counters = self._status.counters()
        for name, (metric, text) in _COUNTERS.items():
            yield _counter(metric, text, counters[name])
        lags: list[Sample] = [(place, lag) for place, lag in sorted(self.lags.items())]
        text = "Messages that a group has yet to settle."
        yield _by_labels("rocketsim_consumer_lag_messages", text, ("group", "topic"), lags)
        slaves = self._status.slaves()
        behind: list[Sample] = [((str(slave.broker_id),), slave.diff_bytes) for slave in slaves]
        in_sync: list[Sample] = [((str(slave.broker_id),), slave.in_sync) for slave in slaves]
        yield _gauge("rocketsim_master", "1: this broker is the master of its name.", not broker.is_slave)
        yield _gauge("rocketsim_writable", "1: clients may send.", broker.takes_clients_writes)
        yield _gauge("rocketsim_epoch", "The epoch of the log.", broker.epoch)
        yield _gauge("rocketsim_log_min_offset", "Where the commit log begins.", store.min_offset)
        yield _gauge("rocketsim_log_end_offset", "Where the commit log ends.", store.end_offset)
        yield _gauge("rocketsim_log_flushed_offset", "Up to where it is on disk.", store.flushed_offset)
        yield _gauge("rocketsim_log_confirm_offset", "Up to where consumers see it.", self._status.confirm_offset)
        text = "Steps of this machine's clock since the start."
        yield _counter("rocketsim_clock_steps", text, broker.time.steps)
        text = "How far this machine's clock is ahead of the time that is believed; 0: it is believed."
        yield _gauge("rocketsim_clock_doubted_seconds", text, broker.time.doubted_s)
        text = "How far store times are ahead of the time of day."
        yield _gauge("rocketsim_store_time_ahead_seconds", text, broker.time.ahead_s)
        yield _gauge("rocketsim_pulls_held", "Pulls that wait for a message.", broker.long_polling.held)
        yield from self._of_consumption()
        yield self._of_access()
        port = self._v2_port
        yield _gauge("rocketsim_client_streams", "Open streams of clients.", self._clients.stream_count)
        text = "Connections on a grpcServerPort with a certificate."
        yield _gauge("rocketsim_front_connections", text, port.connections)
        text = "Connections that were closed since there were too many."
        yield _counter("rocketsim_front_connections_refused", text, port.connections_refused)
        streams = self._streams
        yield _gauge("rocketsim_range_streams", "Pulls of ranges that plain sockets carry.", streams.serving)
        yield _gauge("rocketsim_range_stream_unsent_bytes", "Bytes of theirs that wait.", streams.unsent_bytes)
        text = "Memory of the kernel's with what their clients have not read."
        yield _gauge("rocketsim_range_stream_queued_bytes", text, streams.queued_bytes)
        yield _gauge("rocketsim_stream_request_bytes", "Bytes of requests to plain sockets.", streams.requested_bytes)
        yield _gauge("rocketsim_send_streams", "Frames from producers that plain sockets carry.", streams.sends)
        yield _gauge("rocketsim_send_stream_bytes", "Bytes of theirs, until they are answered.", streams.taken_bytes)
        yield _gauge("rocketsim_topics", "Topics of users.", len(broker.topics.of_users()))
        yield _gauge("rocketsim_consumer_groups", "Consumer groups.", len(broker.groups.entries))
        of_slave = ("slave",)
        text = "Log bytes that a slave has not acknowledged."
        yield _by_labels("rocketsim_slave_behind_bytes", text, of_slave, behind)
        yield _by_labels("rocketsim_slave_in_sync", "1: the slave counts for SYNC_MASTER.", of_slave, in_sync)

    def _of_consumption(self) -> "Iterator[Metric]":
        consumption = self._consumption
        for name, (metric, text) in _OF_CONSUMPTION.items():
            yield _counter(metric, text, getattr(consumption.counts, name))
        under_way = consumption.state.under_way_count
        yield _gauge("rocketsim_deliveries_under_way", "Messages delivered and not acknowledged.", under_way)
        most = max(consumption.state.under_way_of.values(), default=0)
        yield _gauge("rocketsim_deliveries_under_way_of_one_group", "Those of the group that has most.", most)
        waiting = consumption.state.timers.count + len(consumption.state.timers.unread)
        yield _gauge("rocketsim_timers", "Messages and recalls that wait for their delivery time.", waiting)
        yield _gauge("rocketsim_pops_held", "Pops that wait for a message.", consumption.polls_held)

    def _of_access(self) -> "Metric":
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(
            "rocketsim_calls_refused", "Calls that access control has refused.", labels=("reason", "service")
        )
        for labels, value in sorted(self._refusals.counts.items()):
            family.add_metric(labels, value)
        return family


def _accepted(listening: socket.socket, context: ssl.SSLContext, client_auth: bool) -> tuple[ssl.SSLSocket, Any]:
    """The handshake is left to the thread that answers: a client which says nothing holds up no other one."""
    connection, address = socket.socket.accept(listening)
    context.verify_mode = ssl.CERT_REQUIRED if client_auth else ssl.CERT_NONE
    return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address


def _counter(name: str, text: str, value: float) -> "Metric":
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, text, value=float(value))


def _by_labels(name: str, text: str, names: tuple[str, ...], samples: Iterable[Sample]) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=names)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family
