"""The rule for the lag of a consumer group, which brokers, clients and Spark's source share."""


def goes_on_at(position: int, first: int) -> int:
    """Returns the offset at which a group continues to read a queue.  Messages before the offset `first` have expired.

    `position` is negative for a group that has read nothing of the queue.
    """
    return max(position, first)


def lag(position: int, first: int, end: int, pending: int = 0) -> int:
    """Returns how many messages a group still has to process in a queue that has messages [first, end).

    `position` is the offset of the first message that the group has not taken.  `pending` is the number of messages
    before `position` that are still in the queue and not yet processed.
    """
    return max(0, end - goes_on_at(position, first)) + pending
