"""`rocketsim status`: shows the cluster that `rocketsim up` runs in a directory."""

import typer

from rocketsim_cli.cluster_directory import ClusterDirectory
from rocketsim_cli.options import AsJson, ClusterFolder
from rocketsim_cli.tables import show_rows
from rocketsim_cli.trouble import Trouble

COLUMNS = ["process", "role", "pid", "state", "address", "rocketmq5", "rocketmq4"]


def status(folder: ClusterFolder = None, as_json: AsJson = False) -> None:
    """Show the processes, ports and roles of the cluster that `rocketsim up` runs in a directory.

    The exit status is 1 if a process of the cluster has ended, or if no cluster runs.
    """
    directory = ClusterDirectory(folder) if folder is not None else ClusterDirectory.default()
    cluster = directory.load()
    if cluster is None:
        raise Trouble(f"no cluster runs in {directory.folder}: `rocketsim up --detach` starts one")
    running = cluster.running()
    rows = [
        {
            "process": member.name,
            "role": member.role,
            "pid": member.process.pid,
            "state": "ended" if member not in running else "running" if cluster.is_ready else "starting",
            "address": member.address or None,
            "rocketmq5": member.rocketmq5 or None,
            "rocketmq4": member.rocketmq4 or None,
            "directory": str(directory.folder),
        }
        for member in cluster.members
    ]
    if not as_json:
        print(f"directory: {directory.folder}")
    show_rows([*COLUMNS, "directory"] if as_json else COLUMNS, rows, as_json=as_json)
    if not cluster.supervisor.is_running():
        raise Trouble(
            f"the process of `rocketsim up` ({cluster.supervisor.pid}) was killed, and the servers have ended with it: "
            f"`{directory.command('down')}` tidies up, and `rocketsim up` starts a cluster there again"
        )
    if len(running) < len(cluster.members):
        raise typer.Exit(1)
