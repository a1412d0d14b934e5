"""A message that a consumer has received, to be acknowledged.  Pure."""

from rocketsim_client.message_view import MessageView


class ReceivedMessage(MessageView):
    """`topic` is the one that was subscribed to; `queue_id` and `queue_offset` of a message that is delivered again are
    those of the group's retry topic.  `delivery_attempt` counts from 1.  `receipt_handle` names this delivery."""

    __slots__ = ("_topic", "delivery_attempt", "receipt_handle")

    def __init__(
        self,
        data: bytes,
        start: int,
        body_start: int,
        body_size: int,
        sys_flag: int,
        broker_name: str,
        topic: str,
        receipt_handle: str,
        delivery_attempt: int,
    ) -> None:
        super().__init__(data, start, body_start, body_size, sys_flag, broker_name)
        self._topic = topic
        self.receipt_handle = receipt_handle
        self.delivery_attempt = delivery_attempt

    @property
    def topic(self) -> str:
        """The topic that was subscribed to, also for a retry."""
        return self._topic

    @property
    def store_size(self) -> int:
        """Bytes of its record, as brokers store it: the body (packed, if the producer compressed it), properties, and
        some 100 more."""
        return int.from_bytes(self._data[self._start : self._start + 4], "big")

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.topic}@{self.broker_name}, {self.msg_id}, attempt {self.delivery_attempt})"
