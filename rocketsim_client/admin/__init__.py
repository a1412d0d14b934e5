"""The operator's client.  Each method is a command of mqadmin, with its name in snake_case.

Where mqadmin takes `-b` or `-c`, a method takes `broker_addr` or `cluster_name`.  A method with neither `broker_addr`
nor `cluster_name` uses all clusters.  A command that changes something is sent to masters, because slaves get changes
from their master.  A change is sent to all masters, even if one of them refuses it (`at_each`).  A command that shows
something is sent to masters, or to a slave while its master is away.
"""

from rocketsim_client.admin.brokers import BrokerCommands
from rocketsim_client.admin.commands import at_each as at_each
from rocketsim_client.admin.groups import GroupCommands
from rocketsim_client.admin.messages import MAX_QUERY_MESSAGES as MAX_QUERY_MESSAGES
from rocketsim_client.admin.messages import MessageCommands
from rocketsim_client.admin.topics import TopicCommands
from rocketsim_client.admin.users import UserCommands
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Connection, Where
from rocketsim_client.tls import File
from rocketsim_client.validation import seconds

TIMEOUT_S = 5.0


class Admin(TopicCommands, GroupCommands, BrokerCommands, UserCommands, MessageCommands):
    """The operator's client, whose calls block.  `timeout_s` (5) is the limit for each broker that a call asks.
    `timeout_ms` is an older name of `timeout_s`, in milliseconds.  `name_server` is `host:port;host:port`, or a
    Connection, whose timeout is used unless one is given here.  `access_key` and `secret_key` are the user and password
    that calls are signed with, for servers with access control.  `tls`, `tls_ca`, `tls_cert` and `tls_key` are as for
    Cluster."""

    def __init__(
        self,
        name_server: Where,
        *,
        timeout_s: float | None = None,
        access_key: str = "",
        secret_key: str = "",
        tls: bool = False,
        tls_ca: File = None,
        tls_cert: File = None,
        tls_key: File = None,
        timeout_ms: int = 5000,
    ) -> None:
        timeout = seconds(timeout_s, timeout_ms)
        if isinstance(name_server, Connection) and timeout == TIMEOUT_S:
            timeout = name_server.timeout_s
        self._cluster = Cluster(
            name_server,
            timeout_s=timeout,
            access_key=access_key,
            secret_key=secret_key,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        self._timeout_s = self._cluster.timeout_s

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections.  A second call does nothing."""
        self._cluster.close()

    @property
    def cluster(self) -> Cluster:
        """The cluster that is administered, with its routes."""
        return self._cluster
