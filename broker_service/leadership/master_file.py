"""MasterFile is `rocketsim/master.json`, which says what the OK of this slave's master to a producer guarantees.

A promoted slave's OK to a producer guarantees the same as its former master's.  The file is needed because the slave
may be restarted after its master has died, and be promoted then.
"""

import logging

from broker_service.errors import StoreCorrupt
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.store.json_file import JsonFile

logger = logging.getLogger(__name__)


class MasterFile:
    """`role` and `flush_disk_type` are those of the master that was followed last; None if there was none."""

    def __init__(self, file: JsonFile) -> None:
        self._file = file
        self._is_saved = True
        self.role: BrokerRole | None = None
        self.flush_disk_type: FlushDiskType | None = None
        if (saved := file.load()) is None:
            return
        try:
            self.role, self.flush_disk_type = BrokerRole(saved["brokerRole"]), FlushDiskType(saved["flushDiskType"])
        except (KeyError, ValueError, TypeError) as error:
            raise StoreCorrupt(
                f"{file}: {error}; remove it: it is written again when this broker follows its master"
            ) from error

    def followed(self, role: BrokerRole, flush_disk_type: FlushDiskType) -> None:
        """Saves the settings of the master that is followed.

        If the disk refuses the write, the settings are in memory until a restart.
        """
        if (role, flush_disk_type) == (self.role, self.flush_disk_type) and self._is_saved:
            return
        self.role, self.flush_disk_type = role, flush_disk_type
        try:
            self._file.save({"brokerRole": role.value, "flushDiskType": flush_disk_type.value})
        except OSError as error:
            if self._is_saved:
                logger.error("the role of the master is in memory only, %s cannot be written: %s", self._file, error)
            self._is_saved = False
        else:
            self._is_saved = True
