"""The options of a producer, checked."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rocketsim_client import validation
from rocketsim_client.errors import InvalidParameter
from rocketsim_client.model import SendStatus
from rocketsim_client.sending.batch import COMPRESSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    group: str
    timeout_s: float  # the limit of a send over all attempts
    attempt_timeout_s: float  # if negative, an attempt may take the rest of `timeout_s`
    retries: int  # for sends whose caller waits
    async_retries: int  # for all other sends
    retry_another_broker_when_not_store_ok: bool
    send_latency_fault_enable: bool
    compress_over: int  # bytes; larger bodies are compressed
    compression: str
    max_message_size: int
    default_topic_queue_nums: int
    linger_s: float
    batch_bytes: int
    max_in_flight: int
    buffer_bytes: int

    def __post_init__(self) -> None:
        validation.check_group(self.group)
        if self.compression not in COMPRESSION:
            raise InvalidParameter(f"compress_type {self.compression!r} is not one of {', '.join(COMPRESSION)}")
        if self.default_topic_queue_nums < 1:
            raise InvalidParameter(f"default_topic_queue_nums {self.default_topic_queue_nums}: it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOptions:
    directory: Path
    max_bytes: int
    enough: frozenset[SendStatus]  # a record leaves the spool when a broker has stored it with one of these statuses

    @classmethod
    def of(cls, directory: str | os.PathLike[str], max_bytes: int, until: Collection[SendStatus]) -> "SpoolOptions":
        """Checks the options of a spool.  SEND_OK is always one of the statuses with which a record leaves the
        spool."""
        enough = frozenset(until)
        if SendStatus.SPOOLED in enough or not all(isinstance(status, SendStatus) for status in enough):
            raise InvalidParameter(
                f"spool_until {until!r}: give statuses of a broker, such as SendStatus.SLAVE_NOT_AVAILABLE"
            )
        return cls(directory=Path(directory).absolute(), max_bytes=max_bytes, enough=enough | {SendStatus.SEND_OK})
