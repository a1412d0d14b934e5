"""Survey counts what `verify` and `dump` have read of a store directory, for their progress and their last line."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker_service.errors import NotFound
from broker_service.store.format_version import check_version
from broker_service.store.offline.file import numbered_files
from broker_service.store.offline.log import Blank, Damaged, LogPart, Whole, log_parts


@dataclass(slots=True)
class Survey:
    """The counts so far.  `watch` is called after each part of the log."""

    log_files: int = 0
    log_bytes: int = 0  # bytes read so far; at the end fewer than `total_bytes`, since the last file is not full
    total_bytes: int = 0
    records: int = 0
    queues: int = 0
    watch: Callable[["Survey"], None] = field(default=lambda _: None, repr=False)

    def __str__(self) -> str:
        files = f"{self.log_files} log file{'' if self.log_files == 1 else 's'}"
        return f"{files} with {self.records} records in {self.log_bytes} bytes, {self.queues} queues"

    def as_line(self) -> dict[str, object]:
        return {
            "kind": "survey",
            "logFiles": self.log_files,
            "logBytes": self.log_bytes,
            "records": self.records,
            "queues": self.queues,
        }

    def log_parts(self, directory: Path) -> Iterator[LogPart]:
        """Yields the parts of the log and counts them."""
        files = numbered_files(directory / "commitlog")
        self.log_files, self.total_bytes = len(files), sum(path.stat().st_size for path in files)
        start = int(files[0].name) if files else 0
        for part in log_parts(directory):
            if isinstance(part, Whole):
                self.records += len(part.records)
                self.log_bytes = part.offset + int(part.records.sizes.sum()) - start
            elif isinstance(part, Blank | Damaged):
                self.log_bytes = part.offset + part.size - start
            yield part
            self.watch(self)


def check_is_store(directory: Path) -> None:
    """Raises NotFound if no broker can have written this directory, and StoreTooNew if a newer version has."""
    if (directory / "commitlog").is_dir():
        check_version(directory)
        return
    below = sorted(path.parent for path in directory.glob("*/commitlog"))
    near = directory.parent if directory.name == "commitlog" else below[0] if below else None
    meant = f"; {near} is one" if near else "; give what storePathRootDir names in the broker's file"
    raise NotFound(f"{directory} is no store directory: there is no commitlog in it{meant}")
