"""Ports for brokers in a test's process.  A broker that is started again gets its port again, and nobody calls a server
of another test at the address of one that has ended.
"""

import errno
import itertools
import os
import random
import socket

# Higher ports belong to rocketsim_testing.local_pair, and to Linux, which gives them to connections.
_LOWEST, _HIGHEST = 11_200, 20_000


def _range_of_this_process() -> range:
    """Returns this process's share, because pytest-xdist runs several processes that run tests."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    each = (_HIGHEST - _LOWEST) // count
    return range(_LOWEST + number * each, _LOWEST + (number + 1) * each)


_own = _range_of_this_process()
# A program that a test starts has the same share, so each process begins at another port of it.
_first = random.SystemRandom().randrange(len(_own))
_ports = itertools.cycle([*_own[_first:], *_own[:_first]])


def own_port() -> int:
    """Returns a free port that this function has not returned for a long time."""
    for port in itertools.islice(_ports, len(_own)):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return port
    raise AssertionError(f"all of {_own} are taken")
