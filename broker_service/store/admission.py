"""Admission decides if the store takes appends now.  A refusal is a text with the reason."""

import logging

from broker_service.store.commit_log import CommitLog
from broker_service.store.config import StoreConfig
from broker_service.store.disk import Disk
from broker_service.store.writer import Writer

logger = logging.getLogger(__name__)

# bytes kept at the end of the last log file for the broker's records: some 100,000 acknowledgements
_RESERVE = 16 << 20
_RESERVE_SHIFT = 4  # the reserve is at most a sixteenth (2 ** -4) of a log file


class Admission:
    def __init__(self, disk: Disk, log: CommitLog, writer: Writer, config: StoreConfig) -> None:
        self.config = config
        # the refusal while the disk is above its warning level; clients get this text, so it names no path
        self.disk_too_full: str | None = None
        self._disk = disk
        self._log = log
        self._writer = writer
        self._is_reserved = False  # only the broker itself may append to the rest of the last log file

    @property
    def writable(self) -> bool:
        return self.why_not_writable() is None

    def why_not_writable(self) -> str | None:
        """Returns why nothing can be appended now, neither by clients nor by the broker; None if appends work."""
        return self._disk.fatal or self._writer.trouble

    def why_no_sends(self, size: int = 0) -> str | None:
        """Returns why clients may not send this many bytes now; None if they may.

        Only clients' messages are refused.  The broker appends its own records, such as acknowledgements, retries and
        due messages, even above the disk's warning level and up to the end of the last log file.
        """
        return self.why_not_writable() or self._writer.no_room or self.disk_too_full or self._why_reserved(size)

    def _why_reserved(self, size: int) -> str | None:
        """Returns the refusal if the rest of the last log file is kept for the broker's own records.

        The rest of the last log file is kept while the disk has no room for another one.  Once a send was refused
        because of this reserve, all sends are refused until the disk has room.
        """
        log = self._log
        left = log.file_end - log.end_offset - size
        if left >= min(_RESERVE, log.file_size >> _RESERVE_SHIFT) and not self._is_reserved:
            return None
        self._is_reserved = self._disk.disk_usage(self.config.root).free < log.file_size
        if not self._is_reserved:
            return None
        return (
            "the broker's disk has no room for another log file, and the rest of the last one is kept for "
            "acknowledgements: make room on it"
        )

    def note_disk_use(self, used: float) -> None:
        """Records how full the disk is, in percent.  Above the warning level clients may not send."""
        limit, before = self.config.disk_warning_ratio, self.disk_too_full
        self.disk_too_full = (
            f"the broker's disk is {used:.0f} % full, above {limit} % (diskSpaceWarningLevelRatio) it takes no "
            "messages from clients: make room on it"
            if used > limit
            else None
        )
        if self.disk_too_full and not before:
            logger.warning("%s: %s", self.config.root, self.disk_too_full)
        elif before and not self.disk_too_full:
            logger.info("%s: clients may send again, the disk is %.0f %% full", self.config.root, used)
