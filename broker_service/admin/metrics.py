"""Metrics over HTTP for Prometheus.  The event loop renders them once a second; the HTTP thread serves that text.

prometheus_client is imported by who needs it: a broker without metricsPort does not.
"""

import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from broker_service.admin.http_connections import HttpConnections
from broker_service.runtime.certificates import Certificates
from broker_service.runtime.figures import Figure, HasFigures, by_labels

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Metrics:
    """`serve` needs `picture` to have been called once."""

    def __init__(self, parts: Iterable[HasFigures]) -> None:
        self._parts = tuple(parts)
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
        help_text = "Messages that a group has yet to settle."
        lags = sorted(self.lags.items())
        yield _family(by_labels("rocketsim_consumer_lag_messages", help_text, ("group", "topic"), lags))
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
