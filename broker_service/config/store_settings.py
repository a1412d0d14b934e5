"""Makes the configuration of the store from a broker's configuration."""

import os
from pathlib import Path

from broker_service.config.broker_config import BrokerConfig
from broker_service.store.config import StoreConfig


def store_config(config: BrokerConfig) -> StoreConfig:
    return StoreConfig(
        root=config.store_path_root_dir,
        mapped_file_size_commit_log=config.mapped_file_size_commit_log,
        mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        message_index_enable=config.message_index_enable,
        file_reserved_time_h=config.file_reserved_time,
        delete_hours=config.delete_hours,
        disk_max_used_space_ratio=config.disk_max_used_space_ratio,
        disk_clean_forcibly_ratio=config.disk_space_clean_forcibly_ratio,
        disk_warning_ratio=config.disk_space_warning_level_ratio,
        access_message_in_memory_max_ratio=config.access_message_in_memory_max_ratio,
        physical_memory=config.physical_memory or physical_memory(),
        max_transfer_bytes_on_message_in_memory=config.max_transfer_bytes_on_message_in_memory,
        max_transfer_count_on_message_in_memory=config.max_transfer_count_on_message_in_memory,
        max_transfer_bytes_on_message_in_disk=config.max_transfer_bytes_on_message_in_disk,
        max_transfer_count_on_message_in_disk=config.max_transfer_count_on_message_in_disk,
        delay_levels_ms=config.delay_levels_ms,
        flush_consume_queue_thorough_interval_ms=config.flush_consume_queue_thorough_interval,
        private=config.authentication_enabled,
    )


_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def physical_memory() -> int:
    """Returns the bytes of memory of the machine, or of its cgroup if that has less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
