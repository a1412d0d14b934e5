"""The lag of a consumer group, by the same rule in brokers, clients and Spark's source."""


def goes_on_at(position: int, first: int) -> int:
    """Where a group reads on in a queue whose first message is `first`: what has expired before that is gone.

    `position` is below 0 for a group that has read nothing of the queue.
    """
    return max(position, first)


def lag(position: int, first: int, end: int, pending: int = 0) -> int:
    """How many messages of a queue, which has those from `first` to before `end`, a group has yet to settle.

    `position` is the first that the group has not taken, `pending` how many of those before it are still there and not
    settled.
    """
    return max(0, end - goes_on_at(position, first)) + pending
