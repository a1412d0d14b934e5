"""Waits until a local cluster is complete: every broker is registered at the name server, and every slave is in sync.

This module opens gRPC channels, so a process that also uses Spark must start Spark first.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rocketsim_cli.local_cluster import LocalCluster
from rocketsim_cli.trouble import Trouble

if TYPE_CHECKING:
    from rocketsim_client import Admin

READY_TIMEOUT_S = 30.0


@contextmanager
def open_admin(cluster: LocalCluster) -> "Iterator[Admin]":
    """Waits until the cluster is complete, and yields an admin client for it."""
    from rocketsim_client import Admin
    from rocketsim_client.errors import RocketSimError

    deadline = time.monotonic() + READY_TIMEOUT_S
    with Admin(name_server=cluster.name_server) as admin:
        while True:
            try:
                missing = _missing(cluster, admin)
            except RocketSimError as error:
                missing = str(error)
            if missing is None:
                break
            for server in cluster.servers:
                if not server.is_running():
                    raise Trouble(f"{server.name} has ended: {server.last_words()} (log: {server.log_path})")
            if time.monotonic() > deadline:
                raise Trouble(f"the cluster is not complete after {READY_TIMEOUT_S:.0f} s: {missing}")
            cluster.sleep(0.05)
        yield admin


def _missing(cluster: LocalCluster, admin: "Admin") -> str | None:
    known = {member.address for member in admin.cluster_list()}
    if absent := sorted(server.name for server in cluster.brokers if server.address not in known):
        return f"not registered: {', '.join(absent)}"
    for master in cluster.masters:
        slaves = [server for server in cluster.slaves if server.broker_name == master.broker_name]
        (status,) = admin.ha_status(broker_addr=master.address)
        if sum(slave.in_sync for slave in status.slaves) < len(slaves):
            return f"not in sync: the slaves of {master.name}"
    return None
