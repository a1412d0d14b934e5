"""StoreConfig holds the settings of a store."""

from dataclasses import dataclass
from pathlib import Path

# RocketMQ's 18 levels: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h
DELAY_LEVELS_MS = tuple(1000 * s for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The settings of a store.  Each setting has the name of RocketMQ's key, in snake_case, and RocketMQ's default."""

    root: Path
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 300_000 * 20  # bytes
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    file_reserved_time_h: int = 72
    delete_hours: frozenset[int] = frozenset({4})  # hours of the day, from 0 to 23
    disk_max_used_space_ratio: int = 75
    disk_clean_forcibly_ratio: int = 85  # percent; above this use even files that have not expired are deleted
    disk_warning_ratio: int = 90  # percent; above this use clients' messages are refused
    access_message_in_memory_max_ratio: int = 40
    # bytes, of which the ratio above is a percentage; RocketMQ assumes 24 GiB if the size is unknown
    physical_memory: int = 24 << 30
    max_transfer_bytes_on_message_in_memory: int = 256 * 1024
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 64 * 1024
    max_transfer_count_on_message_in_disk: int = 8
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    flush_consume_queue_thorough_interval_ms: int = 60_000
    private: bool = False  # only the owner may use the store's files and directories

    def __post_init__(self) -> None:
        if self.mapped_file_size_consume_queue % 20:
            raise ValueError(
                f"mapped_file_size_consume_queue={self.mapped_file_size_consume_queue}: it must be a multiple of 20"
            )
