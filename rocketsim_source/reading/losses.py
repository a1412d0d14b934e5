"""Handles lost records: logs them if the options allow the loss, and otherwise fails the task."""

import logging

from rocketsim_client.model import MessageQueue
from rocketsim_source.options.data_loss import TRIMMED, DataLossPolicy

logger = logging.getLogger(__name__)


class Losses:
    """Applies the data loss policy to the losses that one task finds."""

    def __init__(self, policy: DataLossPolicy) -> None:
        self._policy = policy

    def allow(self, kind: str, queue: MessageQueue, what: str) -> None:
        """Logs the loss if the options allow this kind of loss, and raises DataLossError otherwise."""
        self._policy.allow(kind, queue, what)
        logger.warning("data loss allowed by the options: %s %s", queue, what)

    def trimmed(self, queue: MessageQueue, start: int, end: int) -> None:
        """Handles records that retention deleted before they were read."""
        self.allow(TRIMMED, queue, f"lost its records {start} to {end - 1} before they were read (retention?)")
