"""The version of a store directory, in `rocketsim/format.json`.

The version is raised only when an older version of RocketSim would misread what a newer one has written:

- Version 1 has no `format.json`.  RocketMQ's own directories, and those of RocketSim 9157579 and earlier, are version
  1.
- Version 2: epochs have ids, which older versions would drop.
"""

from pathlib import Path

from broker_service.errors import StoreCorrupt, StoreTooNew
from broker_service.store.disk import Attempt
from broker_service.store.files import NO_ROOM, Files
from broker_service.store.json_file import JsonFile

VERSION = 2
_NAME = "rocketsim/format.json"
_KV_STORE = "kvStore"  # RocksDB; with popConsumerKVServiceEnable RocketMQ keeps the deliveries of its pops there


def check_version(root: Path, files: Files | None = None) -> None:
    """Raises StoreTooNew, before any file is changed, if a newer version has written this directory."""
    path = root / _NAME
    content = JsonFile(path, files).load()
    version = 1 if content is None else content.get("version")
    if not isinstance(version, int) or version < 1:
        raise StoreCorrupt(f"{path} names no version: put back its backup {path.name}.bak")
    if version > VERSION:
        raise StoreTooNew(
            f"{root} has format {version}, this version of RocketSim knows formats up to {VERSION}: start the newer "
            "version on it, or start this version with an empty directory, as a slave"
        )


def check_no_kv_store(root: Path, files: Files) -> None:
    """Raises StoreTooNew, before any file is changed, if RocketMQ may have kept deliveries in RocksDB."""
    folder = root / _KV_STORE
    if any(one.endswith(".sst") or (one.endswith(".log") and files.size(folder / one)) for one in files.names(folder)):
        raise StoreTooNew(
            f"{folder} may have unacknowledged deliveries of RocketMQ's pops (popConsumerKVServiceEnable=true), which "
            "RocketSim cannot read. Start RocketMQ once more with popConsumerKVServiceEnable=false and "
            "popConsumerKVServiceInit=true, run `mqadmin exportPopRecord`, stop it, and move the folder away. Messages "
            "of deliveries that are not exported do not come to their groups again"
        )


def note_version(root: Path, files: Files | None = None) -> None:
    """Writes this version into the directory.  If the disk is full, the next start writes the version."""
    file = JsonFile(root / _NAME, files)
    if file.load() == {"version": VERSION}:
        return
    with Attempt() as saving:
        file.save({"version": VERSION})
    if saving.refused and saving.refused.errno not in NO_ROOM:
        raise saving.refused
