"""Measures the memory that an object holds, so that a test can check a limit without a private name."""

import gc
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType)


def held_bytes(owner: object) -> int:
    """Returns the size of the object and of everything that it refers to, without classes, modules and functions."""
    size, seen, following = 0, {id(owner)}, [owner]
    while following:
        one = following.pop()
        size += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, _SHARED):
                seen.add(id(other))
                following.append(other)
    return size
