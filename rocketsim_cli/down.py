"""`rocketsim down`: ends the cluster that `rocketsim up` runs in a directory."""

import signal
import time
from contextlib import suppress

from rocketsim_cli.cluster_directory import ClusterDirectory, listed
from rocketsim_cli.options import AsJson, ClusterFolder
from rocketsim_cli.tables import show_json
from rocketsim_cli.trouble import Trouble

TIMEOUT_S = 60.0  # `up` stops masters, slaves and the name server in turn, and kills servers that take too long


def down(folder: ClusterFolder = None, as_json: AsJson = False) -> None:
    """End the cluster that `rocketsim up` runs in a directory, and say which files remain."""
    directory = ClusterDirectory(folder) if folder is not None else ClusterDirectory.default()
    cluster = directory.load()
    if cluster is not None:
        cluster.supervisor.signal(signal.SIGTERM)
        deadline = time.monotonic() + TIMEOUT_S
        while left := cluster.running():
            if time.monotonic() > deadline:
                raise Trouble(
                    f"{directory.folder}: still running after {TIMEOUT_S:.0f} s: {listed(left)}. `kill -9` ends "
                    "these processes without the loss of an acknowledged message; the logs say why they still run"
                )
            time.sleep(0.05)
        with suppress(Trouble), directory.locked():  # a new cluster may have locked the directory already
            directory.forget()
            if folder is None:
                directory.clear()
    kept = directory.size_bytes() if folder is not None and cluster is not None else 0
    if as_json:
        show_json({"directory": str(directory.folder), "ended": cluster is not None, "keptBytes": kept})
    elif cluster is None:
        print(f"no cluster runs in {directory.folder} (--dir names another directory)")
    elif folder is None:
        print(f"the cluster has ended, and its stores and logs in {directory.folder} are deleted")
    else:
        print(
            f"the cluster has ended. {directory.folder} keeps its stores and logs, {kept >> 20} MiB: "
            f"`rocketsim up --dir {directory.folder}` continues with them"
        )
