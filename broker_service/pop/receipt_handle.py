"""Encodes and decodes receipt handles: opaque texts by which clients name a delivery.

A handle has the random number of its pop.  A handle is valid only while a delivery of the pop with the handle's number
is open.  A handle that is forged, cut off, or of another group, topic or broker is therefore invalid.
"""

import base64
from struct import Struct
from typing import NamedTuple

from broker_service.state.transitions import DeliveryId

_FIELDS = Struct(">BBIQQ")  # version, 1 if the message is in a retry topic, queue id, number of the pop, queue offset
_VERSION = 1
_CHARACTERS = len(base64.urlsafe_b64encode(bytes(_FIELDS.size)))


class ReceiptHandle(NamedTuple):
    is_retry: bool  # True if the message is in a retry topic
    queue_id: int
    delivery: DeliveryId


def encode(handle: ReceiptHandle) -> str:
    fields = _FIELDS.pack(_VERSION, handle.is_retry, handle.queue_id, *handle.delivery)
    return base64.urlsafe_b64encode(fields).decode()


def decode(text: str) -> ReceiptHandle | None:
    """Returns the decoded handle, or None if the text is not a handle."""
    if len(text) != _CHARACTERS:
        return None
    try:
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        return None
    if len(data) != _FIELDS.size:
        return None
    version, is_retry, queue_id, pop, queue_offset = _FIELDS.unpack(data)
    if version != _VERSION or is_retry > 1:
        return None
    return ReceiptHandle(bool(is_retry), queue_id, DeliveryId(pop, queue_offset))
