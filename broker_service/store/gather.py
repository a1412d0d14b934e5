"""Copies the records that queue entries point to out of the log, in queue order, into one `bytes`.

Neighbours are copied as one piece; what lies scattered is gathered by Arrow from the mapped files: views over the maps,
cast to `binary`, which copies in C.
"""

import numpy as np
import pyarrow as pa

from broker_service.store.commit_log import CommitLog
from broker_service.store.consume_queue import Entries

_SLICES_PER_RECORD = 0.25  # with fewer pieces than this, slicing beats Arrow


def gather(log: CommitLog, entries: Entries) -> bytes:
    """The bytes of all these records; every entry must lie in the log."""
    offsets = entries["commit_log_offset"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    starts = offsets - offsets % log.file_size
    breaks = np.flatnonzero((offsets[1:] != offsets[:-1] + sizes[:-1]) | (starts[1:] != starts[:-1])) + 1
    if len(breaks) < max(16, _SLICES_PER_RECORD * len(entries)):
        firsts = np.concatenate(([0], breaks))
        lasts = np.concatenate((breaks, [len(entries)])) - 1
        pieces = [
            log.view(start)[begin : begin + size]
            for start, begin, size in zip(
                starts[firsts].tolist(),
                (offsets[firsts] - starts[firsts]).tolist(),
                (offsets[lasts] + sizes[lasts] - offsets[firsts]).tolist(),
                strict=True,
            )
        ]
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
    files, file_numbers = np.unique(starts, return_inverse=True)
    # An Arrow view of more than 12 bytes: | size 4 | first bytes 4, not needed here | buffer 4 | offset 4 |
    views = np.zeros((len(entries), 4), np.int32)
    views[:, 0] = sizes
    views[:, 2] = file_numbers
    views[:, 3] = offsets - starts
    buffers = [None, pa.py_buffer(views), *(pa.py_buffer(log.view(start)) for start in files.tolist())]
    gathered: bytes = (
        pa.Array.from_buffers(pa.binary_view(), len(entries), buffers).cast(pa.binary()).buffers()[2].to_pybytes()
    )
    return gathered
