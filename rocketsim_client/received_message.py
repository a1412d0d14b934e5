"""A message that a consumer has received and has to acknowledge.  Pure."""

from rocketsim_client.message_view import MessageView


class ReceivedMessage(MessageView):
    """A message that a consumer has received.  `topic` is the subscribed topic.  If the message is delivered again,
    `queue_id` and `queue_offset` are those of the group's retry topic.  `delivery_attempt` counts from 1.
    `receipt_handle` names this delivery."""

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
        self.receipt_handle: str = receipt_handle
        self.delivery_attempt: int = delivery_attempt

    @property
    def topic(self) -> str:
        """The subscribed topic, also for a message that is delivered again."""
        return self._topic

    @property
    def store_size(self) -> int:
        """The bytes of the stored record: the body (compressed, if the producer compressed it), the properties, and
        about 100 more."""
        return int.from_bytes(self._data[self._start : self._start + 4], "big")

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.topic}@{self.broker_name}, {self.msg_id}, attempt {self.delivery_attempt})"
