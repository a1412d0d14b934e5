"""The fields before a record's body as a numpy dtype.  `record.py` shows all bytes of a record.  Pure."""

from functools import cache
from typing import Any

import numpy as np

from rocketsim_proto.records.record import SYS_FLAG_BORN_HOST_V6, SYS_FLAG_STORE_HOST_V6

HOST_FLAGS = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6


@cache
def layout(*, born_v6: bool = False, store_v6: bool = False) -> np.dtype[Any]:
    """Returns the dtype for IPv4 or IPv6 hosts, of 88, 100 or 112 bytes.  The fields before the hosts are always the
    same.
    """
    return np.dtype(
        [
            ("size", ">u4"),
            ("magic", ">u4"),
            ("body_crc", ">u4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("commit_log_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_timestamp", ">i8"),
            ("born_host", "V20" if born_v6 else "V8"),
            ("store_timestamp", ">i8"),
            ("store_host", "V20" if store_v6 else "V8"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_size", ">i4"),
        ]
    )


def layout_of(host_flags: int) -> np.dtype[Any]:
    return layout(born_v6=bool(host_flags & SYS_FLAG_BORN_HOST_V6), store_v6=bool(host_flags & SYS_FLAG_STORE_HOST_V6))


# The type and place of each field before the body, in a record with IPv4 hosts.
FIELDS = {name: (form, at) for name, (form, at, *_) in (layout_of(0).fields or {}).items()}

# The first fields of a record, which identify the record and its place.
_HEAD_FIELDS = ("size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "commit_log_offset")
HEAD = np.dtype([(name, layout_of(0)[name]) for name in _HEAD_FIELDS])
