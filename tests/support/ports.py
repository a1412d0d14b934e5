"""Ports that only this process uses, so that a broker that is started again gets its port again, and nobody calls a
server of another test at the address of one that has ended.
"""

import itertools
import os
import socket

# Linux gives connections and servers without a fixed port others, by default from 32768 on.
_LOWEST, _HIGHEST = 11_200, 32_200


def _range_of_this_process() -> range:
    """Returns this process's share, because pytest-xdist runs several processes that run tests."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    each = (_HIGHEST - _LOWEST) // count
    return range(_LOWEST + number * each, _LOWEST + (number + 1) * each)


_ports = itertools.cycle(_range_of_this_process())


def own_port() -> int:
    """Returns a free port that this function has not returned for a long time."""
    for port in _ports:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("unreachable")
