"""Metrics: serves metrics over HTTP for Prometheus.

The event loop takes a snapshot of the broker's figures once a second.  The thread that answers a scrape converts the
snapshot to text, and adds the metrics of topics and groups, which may be ten thousand lines.  The scrape's thread
pauses often, so that it does not delay the event loop.

prometheus_client is imported inside functions, because a broker without metricsPort does not need it.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from broker_service.admin.group_figures import GroupFigures
from broker_service.admin.http_connections import HttpConnections
from broker_service.runtime.certificates import Certificates
from broker_service.runtime.figures import Figure, HasFigures
from broker_service.runtime.histogram import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric, Sample

SAMPLES_A_TURN = 25
PAUSE_S = 0.0005


class Metrics:
    """Serves the metrics of `parts`, `groups` and `histograms`.  Call `take_snapshot` once before `serve`."""

    def __init__(self, parts: Iterable[HasFigures], groups: GroupFigures, histograms: Iterable[Histogram]) -> None:
        self.groups = groups
        self._parts = list(parts)
        self._histograms = tuple(histograms)
        self._snapshot: list[Metric] = []
        self._reading = threading.Lock()  # held by the thread of one scrape at a time
        self._server: Any = None

    def add(self, part: HasFigures) -> None:
        """Adds the metrics of a part that not every broker has."""
        self._parts.append(part)

    def take_snapshot(self) -> None:
        """Takes the figures that later scrapes return.  Must be called on the event loop."""
        self._snapshot = list(self._families())

    def serve(
        self, address: str, port: int, certificates: Certificates | None = None, *, client_auth: bool = False
    ) -> int:
        """Starts to serve HTTP, or HTTPS if there are certificates.  Returns the port."""
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

    def collect(self) -> "Iterator[Metric]":
        """Yields all metrics, in the thread of a scrape.  The samples of topics and groups are made only when they are
        read.
        """
        with self._reading:
            yield from self._snapshot
            yield from map(_histogram, self._histograms)
            yield from map(_long_family, self.groups.figures())

    def _families(self) -> "Iterator[Metric]":
        for part in self._parts:
            yield from map(_family, part.figures())


def _accepted(listening: socket.socket, context: ssl.SSLContext, client_auth: bool) -> tuple[ssl.SSLSocket, Any]:
    """Accepts a connection.  The connection's own thread does the TLS handshake, so that a slow client does not delay
    the other clients.
    """
    connection, address = socket.socket.accept(listening)
    context.verify_mode = ssl.CERT_REQUIRED if client_auth else ssl.CERT_NONE
    return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address


def _family(figure: Figure) -> "Metric":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
    family = kind(figure.name, figure.help_text, labels=figure.labels)
    for labels, value in figure.samples:
        family.add_metric(labels, float(value))
    return family


def _long_family(figure: Figure) -> "Metric":
    """Converts a figure that can have ten thousand samples, each of which is made only when it is read."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = (CounterMetricFamily if figure.is_counter else GaugeMetricFamily)(figure.name, figure.help_text)
    family.samples = _Samples(figure)  # type: ignore[assignment]  # prometheus_client iterates over them, once
    return family


class _Samples:
    """The samples of a figure.  The thread that reads the samples pauses after every `SAMPLES_A_TURN` of them.

    Python runs one thread at a time, so a thread that computes without a pause makes the event loop wait five
    milliseconds for each of its turns.
    """

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def __iter__(self) -> "Iterator[Sample]":
        from prometheus_client.core import Sample

        figure = self._figure
        name = figure.name + "_total" if figure.is_counter else figure.name
        for number, (labels, value) in enumerate(figure.samples, start=1):
            yield Sample(name, dict(zip(figure.labels, labels, strict=True)), float(value))
            if number % SAMPLES_A_TURN == 0:
                time.sleep(PAUSE_S)


def _histogram(histogram: Histogram) -> "Metric":
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(
        histogram.name, histogram.help_text, buckets=histogram.buckets(), sum_value=histogram.total_s
    )
