"""Waits until a local cluster is one: every broker known to the name server.

Opens gRPC channels, so Spark goes first.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rocketsim_cli.local_cluster import LocalCluster
from rocketsim_cli.trouble import Trouble

if TYPE_CHECKING:
    from rocketsim_client import Admin

REGISTER_TIMEOUT_S = 30.0


@contextmanager
def open_admin(cluster: LocalCluster) -> "Iterator[Admin]":
    """An admin client of the cluster, once all its brokers have registered."""
    from rocketsim_client import Admin
    from rocketsim_client.errors import RocketSimError

    wanted = {server.address for server in cluster.brokers}
    deadline = time.monotonic() + REGISTER_TIMEOUT_S
    with Admin(name_server=cluster.name_server) as admin:
        while True:
            try:
                known = {member.address for member in admin.cluster_list()}
            except RocketSimError as error:
                known, reason = set(), str(error)
            else:
                reason = f"not registered: {', '.join(sorted(wanted - known))}"
            if wanted <= known:
                break
            if time.monotonic() > deadline:
                raise Trouble(f"the cluster is not complete after {REGISTER_TIMEOUT_S:.0f} s; {reason}")
            time.sleep(0.05)
        yield admin
