"""The number of a queue in Kafka's column `partition`.  The number depends only on the queue's broker name and id, so
it does not change when other queues are read, too.  Pure.

    number = 65,536 * (1 to 32,767, by the CRC-32 of the broker name) + queue id

A number below 65,536 is a queue id without a broker name.  A RocketMQ topic has at most 65,536 queues at a broker.
"""

import zlib
from collections.abc import Iterable

from rocketsim_client.model import MessageQueue
from rocketsim_source.options.option_values import OptionError

QUEUES = 1 << 16
NAMES = (1 << 15) - 1


def partition_number(queue: MessageQueue) -> int:
    if not 0 <= queue.queue_id < QUEUES:
        raise OptionError(
            f"{queue} has no partition number, because only queue ids up to {QUEUES - 1} have one; use "
            "schemaProfile=rocketmq"
        )
    return QUEUES * name_number(queue.broker_name) + queue.queue_id


def name_number(broker_name: str) -> int:
    return 1 + zlib.crc32(broker_name.encode()) % NAMES


def refuse_collisions(broker_names: Iterable[str]) -> None:
    """Raises an error if two broker names have the same number, because their queues would have the same partition
    numbers.
    """
    names: dict[int, str] = {}
    for name in sorted(set(broker_names)):
        other = names.setdefault(name_number(name), name)
        if other != name:
            raise OptionError(
                f"queues of the brokers {other} and {name} would have the same numbers in column partition; read each "
                "broker in its own query (option assign), or set schemaProfile=rocketmq, which has the columns "
                "brokerName and queueId"
            )


def queues_with(number: int, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Returns the queues that a partition number stands for.

    A number below 65,536 is a queue id, and stands for the queue with that id at every broker.  A number from 65,536 on
    stands for one queue, or for none if that queue does not exist any more.
    """
    if number < QUEUES:
        return [queue for queue in queues if queue.queue_id == number]
    named = [queue for queue in queues if queue.queue_id == number % QUEUES and partition_number(queue) == number]
    refuse_collisions(queue.broker_name for queue in named)
    return named
