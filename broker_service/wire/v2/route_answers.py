"""Pure functions that make answers about a topic's route: its queues, with the brokers and addresses that have them."""

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rocketmq_v2 import definition_pb2 as pb
from rocketsim_proto.reserved import MASTER_ID

from broker_service.wire.v2.status import Refused

PERM_READ, PERM_WRITE = 4, 2
ANY_QUEUE = -1
MAX_ENDPOINTS_BYTES = 4096  # limited, because answers repeat the endpoints for each queue

_PERMISSIONS = {0: pb.NONE, PERM_READ: pb.READ, PERM_WRITE: pb.WRITE, PERM_READ | PERM_WRITE: pb.READ_WRITE}

_ACCEPTED: dict[str, list[pb.MessageType]] = {
    "FIFO": [pb.FIFO],
    "DELAY": [pb.DELAY],
    "TRANSACTION": [pb.TRANSACTION],
    "MIXED": [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION],
    # Topics that were made by RocketMQ may have the type LITE or PRIORITY.  MIXED includes neither LITE nor PRIORITY,
    # because older clients fail on these types.
    "LITE": [pb.LITE],
    "PRIORITY": [pb.PRIORITY],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """The queues of a topic on the brokers of one name.  `address` is host:port of the master's port for RocketMQ 5's
    clients.
    """

    broker_name: str
    address: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    message_type: str = ""


def check_dialled(endpoints: pb.Endpoints) -> None:
    if (size := endpoints.ByteSize()) > MAX_ENDPOINTS_BYTES:
        raise Refused(
            pb.ILLEGAL_ACCESS_POINT, f"the endpoints have {size} bytes; at most {MAX_ENDPOINTS_BYTES} are allowed"
        )


def message_queues(
    topic: pb.Resource, queues: Iterable[Queues], own_broker: str, dialled: pb.Endpoints
) -> list[pb.MessageQueue]:
    """Returns the queues of a topic on masters.  Slaves are left out, because some clients send to any listed queue.

    Queues of this broker have the endpoints that the client has dialled, which may be those of a port mapping.  For a
    queue of another broker, the answer has that broker's own address.
    """
    return [
        pb.MessageQueue(
            topic=topic,
            id=queue_id,
            permission=_PERMISSIONS[perm],
            broker=_broker(item, own_broker, dialled),
            accept_message_types=accepted_types(item.message_type),
        )
        for item in queues
        for queue_id, perm in enumerate(_permissions(item))
    ]


def assignments(
    topic: pb.Resource, queues: Iterable[Queues], own_broker: str, dialled: pb.Endpoints, *, fifo: bool
) -> list[pb.Assignment]:
    """Returns the assignments of a push consumer, which runs one receive loop for each assignment.

    Every consumer of a group gets the same assignments.  Each broker has one assignment, which stands for all queues of
    the broker.  For a group that consumes in order (`fifo`) each queue has its own assignment.
    """
    return [
        pb.Assignment(
            message_queue=pb.MessageQueue(
                topic=topic,
                id=queue_id,
                permission=_PERMISSIONS[_usable(item.perm)],
                broker=_broker(item, own_broker, dialled),
                accept_message_types=accepted_types(item.message_type),
            )
        )
        for item in queues
        if item.perm & PERM_READ and item.read_queue_nums
        for queue_id in (range(item.read_queue_nums) if fifo else (ANY_QUEUE,))
    ]


def accepted_types(message_type: str) -> list[pb.MessageType]:
    return _ACCEPTED.get(message_type, [pb.NORMAL])


def endpoints_of(address: str) -> pb.Endpoints:
    """Returns the endpoints of an address, including the scheme, because clients refuse endpoints without one."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return pb.Endpoints(scheme=_scheme(host), addresses=[pb.Address(host=host, port=int(port))])


def _scheme(host: str) -> pb.AddressScheme:
    try:
        return pb.IPv6 if ipaddress.ip_address(host).version == 6 else pb.IPv4
    except ValueError:
        return pb.DOMAIN_NAME


def _broker(item: Queues, own_broker: str, dialled: pb.Endpoints) -> pb.Broker:
    if item.broker_name != own_broker or not dialled.addresses:
        endpoints = endpoints_of(item.address)
    elif dialled.scheme:
        endpoints = dialled
    else:
        endpoints = pb.Endpoints(scheme=_scheme(dialled.addresses[0].host), addresses=dialled.addresses)
    return pb.Broker(name=item.broker_name, id=MASTER_ID, endpoints=endpoints)


def _permissions(item: Queues) -> Iterator[int]:
    """Yields the permission of each queue.

    A queue has the topic's permission, but only the first `read_queue_nums` queues are readable, and only the first
    `write_queue_nums` queues are writable.
    """
    perm = _usable(item.perm)
    for queue_id in range(max(1, item.read_queue_nums, item.write_queue_nums)):
        readable = PERM_READ if queue_id < item.read_queue_nums else 0
        writable = PERM_WRITE if queue_id < item.write_queue_nums else 0
        yield perm & (readable | writable)


def _usable(perm: int) -> int:
    return perm & (PERM_READ | PERM_WRITE)
