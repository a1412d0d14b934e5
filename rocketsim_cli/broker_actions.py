"""The console's buttons for the brokers of a local cluster: one kills a broker as a crash would, the other starts it
again.
"""

from collections.abc import Callable, Sequence

from rocketsim_cli.local_cluster import LocalCluster, ServerProcess
from rocketsim_cli.trouble import Trouble
from rocketsim_client.admin import Admin
from rocketsim_client.errors import InvalidParameter, RocketSimError
from rocketsim_console.actions import Action, Values


def actions_of(cluster: LocalCluster) -> Sequence[Action]:
    def named(values: Values) -> ServerProcess:
        for server in cluster.brokers:
            if server.address and server.address == values.get("broker"):
                return server
        raise InvalidParameter(f"{values.get('broker', '')[:100]!r} is not a broker that this process has started")

    def kill(admin: Admin, values: Values) -> str:
        server = named(values)
        return f"{server.name} is killed." if _did(cluster.kill, server) else f"{server.name} was not running."

    def start(admin: Admin, values: Values) -> str:
        server = named(values)
        return f"{server.name} is back." if _did(cluster.start_again, server) else f"{server.name} was running already."

    return (
        Action(
            "kill-broker",
            "Kill",
            "broker",
            "Ends the broker's process at once with SIGKILL, as a crash would. Start brings it back.",
            kill,
            "broker",
            states=("master", "slave"),
            is_dangerous=True,
        ),
        Action(
            "start-broker",
            "Start",
            "broker",
            "Starts the broker again with the store that it had.",
            start,
            "broker",
            states=("silent", "away"),
        ),
    )


def _did(change: Callable[[ServerProcess], bool], server: ServerProcess) -> bool:
    try:
        return change(server)
    except Trouble as error:
        raise RocketSimError(str(error)) from None
    except KeyboardInterrupt:  # the cluster's `sleep` raises KeyboardInterrupt after Ctrl-C
        raise RocketSimError("the cluster is being stopped") from None
