"""KnownSlaves: keeps, in `rocketsim/slaves.json`, every slave that has ever followed a master of this broker name.

The list is still known after a restart.  A starting master asks all slaves in the list whether one of them was promoted
in the meantime, or has records that the master has lost.  A slave gets the list from its master, and asks the other
slaves before it is promoted.  Only an operator can remove a slave from the list.
"""

import logging
from collections.abc import Callable, Mapping

from broker_service.broker.metadata.config_table import JsonStore
from broker_service.errors import NotFound, ServiceNotAvailable, StoreCorrupt
from broker_service.store.files import refusal

logger = logging.getLogger(__name__)


class KnownSlaves:
    """`addresses` has the address of each slave by broker id, except this broker itself.  The functions in `changed`
    are called after each change.
    """

    def __init__(self, file: JsonStore) -> None:
        self._file = file
        self._is_saved = True
        self.changed: list[Callable[[], None]] = []
        try:
            saved = (file.load() or {}).get("slaves", {})
            self.addresses = {int(broker_id): str(address) for broker_id, address in saved.items()}
        except (ValueError, AttributeError) as error:
            raise StoreCorrupt(
                f"{file}: {error}; remove it: slaves are known again as soon as they follow this master"
            ) from error

    def joined(self, broker_id: int, address: str) -> None:
        """Adds a slave that has begun to follow this master."""
        others = {
            other: at for other, at in self.addresses.items() if at != address
        }  # without other ids of this address, because the slave may have had another id before
        self._become({**others, broker_id: address})

    def adopt(self, addresses: Mapping[int, str]) -> None:
        """Takes over the master's list."""
        self._become(dict(addresses))

    def remove(self, broker_id: int) -> None:
        """Removes a slave that is gone for good, so that no master waits for it and no promotion asks it."""
        if broker_id not in self.addresses:
            raise NotFound(f"slave {broker_id} is not known here; known are: {self}")
        self._save({other: at for other, at in self.addresses.items() if other != broker_id})

    def _become(self, addresses: dict[int, str]) -> None:
        """Changes the list in memory and on disk.  If the disk refuses the write, the change is in memory only, and the
        next change writes it, too.
        """
        if addresses == self.addresses and self._is_saved:
            return
        try:
            self._save(addresses)
        except ServiceNotAvailable as error:
            if self._is_saved:
                logger.error("the list of known slaves is in memory only, because it could not be written: %s", error)
            self._is_saved = False
            self._take(addresses)

    def _save(self, addresses: dict[int, str]) -> None:
        try:
            self._file.save({"slaves": {str(broker_id): addresses[broker_id] for broker_id in sorted(addresses)}})
        except OSError as error:
            raise refusal(error, f"writing {self._file}") from error
        self._is_saved = True
        self._take(addresses)

    def _take(self, addresses: dict[int, str]) -> None:
        if addresses != self.addresses:
            self.addresses = addresses
            for listener in self.changed:
                listener()

    def __str__(self) -> str:
        return (
            ", ".join(f"{broker_id} at {self.addresses[broker_id]}" for broker_id in sorted(self.addresses)) or "none"
        )
