"""Keeps the plain sockets that brokers have offered for calls, and notes which offers do not work."""

import time

from rocketsim_proto import broker_pb2 as pb

NOT_AGAIN_FOR_S = 30.0  # after a stream has failed, only gRPC is used for this time


class StreamOffers:
    def __init__(self, *, tcp: bool = True) -> None:
        """Without `tcp` only Unix sockets are used."""
        self._tcp = tcp
        self._offers: dict[str, pb.StreamOffer] = {}
        self._not_until: dict[str, float] = {}
        self._not_had: dict[str, pb.StreamOffer] = {}  # address -> the offer that a call could not use

    def accepts(self, address: str) -> bool:
        """True if streams may be used with the broker now."""
        return self._not_until.get(address, 0.0) <= time.monotonic()

    def usable(self, address: str) -> pb.StreamOffer | None:
        """Returns the broker's offer.  Returns None if the broker has made no offer, or if streams may not be used with
        the broker now."""
        return self._offers.get(address) if self.accepts(address) else None

    def wants_offer(self, address: str) -> bool:
        """True if a call over gRPC should ask the broker for an offer."""
        return address not in self._offers and self.accepts(address)

    def offered(self, address: str, offer: pb.StreamOffer) -> None:
        """Takes a broker's new offer.  If the new offer is equal to the last one that a call could not use, only gRPC
        is used for a while."""
        if not self._tcp:
            offer = pb.StreamOffer(
                instance=offer.instance, unix_name=offer.unix_name, max_send_bytes=offer.max_send_bytes
            )
        if self._not_had.pop(address, None) == offer:
            self.failed(address)
        else:
            self._offers[address] = offer

    def could_not_use(self, address: str, offer: pb.StreamOffer) -> None:
        """Drops the offer, which may come from a process that has ended.  The next call asks the broker for a new
        offer."""
        self._offers.pop(address, None)
        self._not_had[address] = offer

    def is_elsewhere(self, address: str, offer: pb.StreamOffer) -> None:
        """Drops the Unix socket of the broker's offer, because the broker is on another machine."""
        if self._offers.get(address) == offer:
            self._offers[address] = _tcp_alone(offer)

    def failed(self, address: str) -> None:
        """Makes the calls to the address use only gRPC for the next `NOT_AGAIN_FOR_S`."""
        self._offers.pop(address, None)
        self._not_until[address] = time.monotonic() + NOT_AGAIN_FOR_S


def _tcp_alone(offer: pb.StreamOffer) -> pb.StreamOffer:
    return pb.StreamOffer(instance=offer.instance, port=offer.port, max_send_bytes=offer.max_send_bytes)
