"""Selects the code for record bytes: the compiled module `_kernels`, or Python code that does the same.  Pure.

The compiled module is made when the package is installed, if there is a C compiler.  If the environment variable
ROCKETSIM_KERNELS is `python`, the compiled module is never used.  If ROCKETSIM_KERNELS is `compiled` and there is no
compiled module, the import fails with ImportError.  Functions that can use compiled code look at `compiled` in each
call, so that tests may replace it.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# What helps if there is no compiled module.
ADVICE = "install the wheel for this Python, or install gcc and Python's headers and then the checkout"

_VARIABLE = "ROCKETSIM_KERNELS"
_VERSION = 8  # version of the functions' arguments and results; a compiled module of another version is not used

# An array of PLACES rows, with one column for each record: start and size of the record, of its body, of its topic and
# of its properties.  `walk` can add a row for each field in HEADS.
Columns: TypeAlias = "npt.NDArray[np.int64]"
PLACES = 8
HEADS = "queue_id", "flag", "queue_offset", "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times"
# The parts of an Arrow array of texts: offsets, bytes, validity bits (None without nulls), and True if all bytes are
# ASCII.
Column: TypeAlias = tuple[Any, Any, Any, bool]


class Kernels(Protocol):
    """The functions of `_kernels.pyx`, whose docstrings describe them.  Arrays that are passed must be contiguous."""

    def choose_crc(self, way: int = 2) -> str: ...
    def crc32(self, data: Any) -> int: ...
    def walk(
        self, data: Any, sizes: Any = None, count: int = -1, crc: bool = False, heads: bool = False
    ) -> "Columns | None": ...
    def scan(self, data: Any, log_offset: int, crc: bool, strict_from: int) -> "tuple[Columns, int]": ...
    def places(self, data: Any, starts: Any, sizes: Any) -> "Columns | None": ...
    def runs(
        self, offsets: Any, sizes: Any, begin: int, end: int, file_size: int
    ) -> "tuple[npt.NDArray[np.int64], list[int], int]": ...
    def first_mismatch(
        self, files: list[tuple[int, Any]], offsets: Any, sizes: Any, queue_ids: Any, queue_offsets: Any
    ) -> int: ...
    def locate(self, data: Any, at: int) -> tuple[int, ...] | None: ...
    def crcs(self, data: Any, starts: Any, sizes: Any) -> "npt.NDArray[np.uint32]": ...
    def field(self, data: Any, starts: Any, at: int, size: int) -> "npt.NDArray[Any] | None": ...
    def gather(self, data: Any, starts: Any, sizes: Any) -> "tuple[Any, Any]": ...
    def property_values(self, data: Any, starts: Any, sizes: Any, name: bytes) -> Column: ...
    def property_map(self, data: Any, starts: Any, sizes: Any) -> tuple[Any, Column, Column] | None: ...
    def property_hashes(self, data: Any, starts: Any, sizes: Any, name: bytes) -> "npt.NDArray[np.int64] | None": ...
    def index_hashes(
        self, data: Any, starts: Any, sizes: Any, codes: Any, keys_before: Any, tags_before: Any
    ) -> "tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None": ...
    def check(
        self,
        data: Any,
        count: int,
        topic: bytes,
        names: tuple[bytes, ...],
        *,
        max_body_size: int,
        max_record_size: int,
        client_flags: int,
        store_host_v6: bool,
    ) -> "tuple[Columns, list[int], int] | None": ...
    def stamp(
        self,
        data: Any,
        starts: Any,
        log_offset: int,
        next_offsets: dict[int, int],
        store_timestamp: int,
        store_host: bytes,
    ) -> bool: ...
    def queue_entries(
        self, data: Any, starts: Any
    ) -> "tuple[bytes, npt.NDArray[np.uint8], list[tuple[int, int, int, int]]] | None": ...
    def encode(
        self,
        topic: bytes,
        queue_ids: Any,
        bodies: Any,
        properties: Any,
        born_timestamps: Any,
        born_host: bytes,
        store_host_v6: bool,
        flags: Any,
        sys_flags: Any,
    ) -> "tuple[memoryview, npt.NDArray[np.uint32]] | None": ...


def _find(wanted: str) -> Kernels | None:
    if wanted not in ("", "python", "compiled"):
        raise ImportError(f"{_VARIABLE}={wanted}: it must be python or compiled, or not be set")
    if wanted == "python":
        return None
    try:
        found = import_module("rocketsim_proto.records._kernels")
        if found.VERSION != _VERSION:
            raise ImportError(f"{found.__file__} belongs to another version; install the package again")
    except ImportError:
        if wanted == "compiled":
            raise
        return None
    return cast(Kernels, found)


compiled = _find(os.environ.get(_VARIABLE, ""))


def in_use() -> str:
    """Returns "compiled" or "python", which Spark's progress shows as `recordKernels`."""
    return "python" if compiled is None else "compiled"


def is_missing() -> bool:
    """Returns True if Python code is used because there is no compiled module, and not because ROCKETSIM_KERNELS says
    so.
    """
    return compiled is None and os.environ.get(_VARIABLE) != "python"
