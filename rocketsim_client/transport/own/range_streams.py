"""Makes the calls PullRange and Send over plain sockets, if a broker offers them.

A broker offers a socket in its answer to a call over gRPC, and later calls use the socket.  A call that cannot use the
offer goes over gRPC, and asks for a new offer.  If the broker then repeats the offer that could not be used, or if a
connection has broken, only gRPC is used with that address for a while.
"""

import time
from collections.abc import Iterator

from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import range_stream
from rocketsim_proto.bytes_field import Received

from rocketsim_client.transport.own.stream_call import NotThisCall, StreamCall
from rocketsim_client.transport.own.stream_offers import StreamOffers
from rocketsim_client.transport.own.stream_sockets import StreamSockets


class RangeStreams:
    """The calls of one client over plain sockets.  Thread-safe."""

    def __init__(self, *, tcp: bool = True) -> None:
        """Without `tcp` only Unix sockets are used."""
        self.offers = StreamOffers(tcp=tcp)
        self.sockets = StreamSockets()

    def frames(
        self, address: str, request: pb.PullRangeRequest, deadline: float, timeout_s: float
    ) -> Iterator[Received[pb.PullFrame]] | None:
        """Returns the frames of a PullRange call.  Returns None, so that the caller uses gRPC, if the address has
        offered no stream that works.  The broker has done nothing when None is returned.  The call ends at `deadline`
        (monotonic clock).  Errors name `timeout_s`, the time of the whole call."""
        offer = self.offers.usable(address)
        if offer is None:
            return None
        stream = StreamCall(self.offers, self.sockets, "PullRange", address, deadline, timeout_s)
        try:
            if stream.begin(offer, request):
                return stream.frames()
        except NotThisCall:
            stream.close()
            return None
        except BaseException:
            stream.close()
            raise
        stream.close()
        self.offers.could_not_use(address, offer)
        return None

    def send(
        self, address: str, request: pb.SendRequest, records: bytes | memoryview, timeout_s: float
    ) -> pb.SendResponse | None:
        """Sends the records and returns the answer.  Returns None, so that the caller uses gRPC, if the broker has
        offered no stream for the records, or has not received all of them.  The broker has stored nothing when None is
        returned.  After BrokerUnavailable and CallTimeout it is unknown whether the records are stored."""
        offer = self.offers.usable(address)
        if offer is None or len(records) > offer.max_send_bytes:
            return None
        if not offer.unix_name and len(records) < range_stream.MIN_TCP_SEND_BYTES:
            return None
        stream = StreamCall(self.offers, self.sockets, "Send", address, time.monotonic() + timeout_s, timeout_s)
        try:
            answer = stream.send(offer, request, records)
        except NotThisCall:
            return None
        finally:
            stream.close()
        if answer is None:
            self.offers.could_not_use(address, offer)
        return answer

    def close(self) -> None:
        """Ends the calls that are under way."""
        self.sockets.close()
