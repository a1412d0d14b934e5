"""Channels opens connections to other brokers and to name servers."""

from collections.abc import Sequence
from typing import Any

from rocketsim_proto.signature import Credentials, SigningChannel

from broker_service.runtime.machine import Machine


class Channels:
    """Opens channels whose calls are signed if `innerClientAuthenticationCredentials` is set."""

    def __init__(self, machine: Machine, credentials: Credentials | None) -> None:
        self._machine = machine
        self._credentials = credentials

    def open(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> Any:
        channel = self._machine.network.open_channel(address, options)
        if self._credentials is None:
            return channel
        return SigningChannel(channel, self._credentials, now=lambda: self._machine.now_ms() / 1000)

    def open_unsigned(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> Any:
        """Opens a channel for calls that already have a client's signature."""
        return self._machine.network.open_channel(address, options)
