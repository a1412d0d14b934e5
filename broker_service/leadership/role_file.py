"""RoleFile is `rocketsim/role.json`, which says that this broker was promoted, and what its OK to a producer
guarantees.

The file overrides the configuration file, which still has the role from before the promotion.
"""

import logging
from dataclasses import replace

from rocketsim_proto.reserved import MASTER_ID

from broker_service.config.broker_config import BrokerConfig
from broker_service.errors import StoreCorrupt
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.store.disk import Disk
from broker_service.store.files import refusal
from broker_service.store.json_file import JsonFile

logger = logging.getLogger(__name__)


class RoleFile:
    def __init__(self, file: JsonFile, disk: Disk) -> None:
        self._file = file
        self._disk = disk
        self._is_there = False
        self._epoch = 0

    def to_be_removed_first(self) -> str:
        """Returns advice for operators who change the role in the configuration; empty if there is no `role.json`."""
        return (
            f"remove {self._file}, which overrides the configuration since a promotion, and " if self._is_there else ""
        )

    def applied_to(self, config: BrokerConfig) -> BrokerConfig:
        """Returns the configuration with the role from `role.json`, if this file exists; raises StoreCorrupt if the
        file is damaged.
        """
        override = self._file.load()
        if override is None:
            return config
        self._is_there = True
        try:
            role, broker_id = BrokerRole(override["brokerRole"]), int(override["brokerId"])
            self._epoch = int(override.get("epoch", 0))
            # Older versions did not write `flushDiskType`.
            flush = FlushDiskType(override.get("flushDiskType", config.flush_disk_type.value))
        except (KeyError, ValueError, TypeError) as error:
            raise StoreCorrupt(f"{self._file}: {error}; remove it to take the role of the configuration") from error
        if (role, flush) != (config.broker_role, config.flush_disk_type):
            logger.warning(
                "brokerRole=%s brokerId=%d flushDiskType=%s since a promotion, which overrides the configuration file; "
                "remove %s to return to %s and %s",
                *(role.name, broker_id, flush.name, self._file),
                *(config.broker_role.name, config.flush_disk_type.name),
            )
        return replace(config, broker_role=role, broker_id=broker_id, flush_disk_type=flush)

    def save(self, role: BrokerRole, flush: FlushDiskType, epoch: int) -> None:
        """Makes this broker a master for all later starts.

        Raises OSError or FlushFailed if the file could not be written; the file is removed then.
        """
        try:
            self._save(role, flush, epoch)
        except OSError:
            self._take_back()
            raise
        self._is_there, self._epoch = True, epoch

    def change(self, role: BrokerRole, flush: FlushDiskType) -> bool:
        """Changes the role and the flush type that a promoted master takes from `role.json` at its next start.

        Returns False if there is no `role.json`, because the configuration file decides then.  Raises DiskFull or
        ServiceNotAvailable.
        """
        if not self._is_there:
            return False
        try:
            self._save(role, flush, self._epoch)
        except OSError as error:
            raise refusal(error, f"writing {self._file}, which says what this broker is after a restart") from error
        return True

    def _save(self, role: BrokerRole, flush: FlushDiskType, epoch: int) -> None:
        self._file.save({"brokerRole": role.value, "brokerId": MASTER_ID, "flushDiskType": flush.value, "epoch": epoch})

    def _take_back(self) -> None:
        """Removes the file, which may exist although `save` has failed: only the sync of its directory may have failed.

        If the file cannot be removed, the broker stops all writes to its disk.
        """
        if not self._disk.exists(self._file.path):
            return
        try:
            self._file.remove()
            self._disk.sync_directory(self._file.path.parent)
        except OSError as error:
            self._disk.stop(f"{self._file} may make this broker a master at its next start ({error}): restart it")
