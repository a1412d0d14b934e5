"""Metrics over HTTP for Prometheus.

The event loop takes a picture of the broker's figures once a second.  The thread that answers a scrape makes the text,
adds what each topic and group has, which may be ten thousand lines, and gives way to the event loop all the time.

prometheus_client is imported by who needs it: a broker without metricsPort does not.
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
    """`serve` needs `picture` to have been called once."""

    def __init__(self, parts: Iterable[HasFigures], groups: GroupFigures, histograms: Iterable[Histogram]) -> None:
        self.groups = groups
        self._parts = list(parts)
        self._histograms = tuple(histograms)
        self._picture: list[Metric] = []
        self._reading = threading.Lock()  # scrapes come one after the other, each in a thread of its own
        self._server: Any = None

    def add(self, part: HasFigures) -> None:
        """A part that not every broker has."""
        self._parts.append(part)

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

    def collect(self) -> "Iterator[Metric]":
        """The HTTP thread's.  The samples are made while they are read."""
        with self._reading:
            yield from self._picture
            yield from map(_histogram, self._histograms)
            yield from map(_long_family, self.groups.figures())

    def _families(self) -> "Iterator[Metric]":
        for part in self._parts:
            yield from map(_family, part.figures())


def _accepted(listening: socket.socket, context: ssl.SSLContext, client_auth: bool) -> tuple[ssl.SSLSocket, Any]:
    """The handshake is left to the thread that answers: a client which says nothing holds up no other one."""
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
    """As `_family`, of a figure that may have ten thousand samples."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = (CounterMetricFamily if figure.is_counter else GaugeMetricFamily)(figure.name, figure.help_text)
    family.samples = _Samples(figure)  # type: ignore[assignment]  # prometheus_client iterates over them, once
    return family


class _Samples:
    """The samples of a figure.  The thread that reads them pauses after each few.

    Python runs one thread at a time.  Whoever computes on and on keeps the event loop waiting for five milliseconds
    each time that it has waited for anything itself.
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
