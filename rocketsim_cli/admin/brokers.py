"""The commands of `rocketsim admin` for brokers: list, state, settings, promotion, write permission."""

from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli import completion
from rocketsim_cli.admin.session import facts, open_admin
from rocketsim_cli.options import AsJson, BrokerAddr, BrokerName, ClusterName, NameServer, OptionalNameServer
from rocketsim_cli.tables import cell, console, note, show_json, show_rows, show_values, when
from rocketsim_cli.trouble import Trouble

if TYPE_CHECKING:
    from rocketsim_client import Admin


def cluster_list(
    context: typer.Context, name_server: NameServer, cluster: ClusterName = None, as_json: AsJson = False
) -> None:
    """List all live brokers, slaves included, with role, rates and disk usage."""
    from rocketsim_client.errors import RocketSimError

    rows = []
    refused = 0
    with open_admin(context, name_server) as admin:
        for member in admin.cluster_list(cluster):
            try:
                status = admin.broker_status(broker_addr=member.address)[member.address]
            except RocketSimError as error:
                refused += 1
                status = {}  # a broker that does not answer is listed, too, with dashes for values
                note(f"{member.address} does not report its state: {error}", as_json=as_json)
            rows.append({**facts(member), **_digest(status), "role": status.get("brokerRole") or member.role or None})
    columns = ("clusterName", "brokerName", "brokerId", "address", "epoch", "role", "inTPS", "outTPS", "space")
    show_rows(columns, rows, as_json=as_json, heading="clusterName")
    if rows and refused == len(rows):
        raise Trouble("no broker reports its state")


def _digest(status: dict[str, str]) -> dict[str, object]:
    """Returns the columns of clusterList that come from a broker's status.  A broker reports each rate as three means.
    clusterList shows the first one, the mean of the last ten seconds.
    """
    return {
        "inTPS": _first_number(status.get("putTps")),
        # RocketMQ 4 calls the value getTransferedTps, RocketMQ 5 calls it getTransferredTps.
        "outTPS": _first_number(status.get("getTransferedTps") or status.get("getTransferredTps")),
        "space": _first_number(status.get("commitLogDiskRatio")),
    }


def _first_number(text: str | None) -> float | None:
    """Returns the first number of the text.  Returns None if the text has no number, as with a RocketMQ broker in the
    first seconds after its start.
    """
    return float(text.split()[0]) if text and text.strip() else None


def ha_status(
    context: typer.Context,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Show the replication: each master's slaves, their offsets, and which slaves are in sync."""
    with open_admin(context, name_server, broker_addr) as admin:
        found = admin.ha_status(broker_addr=broker_addr, cluster_name=cluster)
    if as_json:
        for one in found:
            lists = {"slaves": one.slaves, "epochs": one.epochs, "cuts": one.cuts}
            show_json({**facts(one), **{name: [facts(part) for part in parts] for name, parts in lists.items()}})
        return
    for one in found:
        role = "master" if one.is_master else f"slave of {one.master_address or 'nobody'}"
        out = console()
        out.print(f"{one.address} {role}, epoch {one.epoch}: {one.state}", markup=False)
        out.print(
            f"  log ends at {one.commit_log_max_offset}, flushed {one.master_flush_offset}, "
            f"confirmed {one.confirm_offset}"
        )
        if one.slaves:
            columns = ("brokerId", "address", "ackOffset", "diffBytes", "inSync", "transferBytesPerSecond")
            show_rows(columns, [facts(slave) for slave in one.slaves], as_json=False)
        for cut in one.cuts:
            kept = f"kept in rocketsim/diverged since {when(cut.timestamp)}"
            out.print(f"  cut off its log: {cut.size} bytes from offset {cut.offset} on, {kept}", markup=False)


def broker_status(
    context: typer.Context,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Show all values that a broker reports, sorted by name."""
    with open_admin(context, name_server, broker_addr) as admin:
        found = admin.broker_status(broker_addr=broker_addr, cluster_name=cluster)
    _show_by_address(found, as_json, separator=": ")


def get_broker_config(
    context: typer.Context,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Show a broker's settings as they are now."""
    with open_admin(context, name_server, broker_addr) as admin:
        found = admin.get_broker_config(broker_addr=broker_addr, cluster_name=cluster)
    _show_by_address(found, as_json, separator=" = ")


def update_broker_config(
    context: typer.Context,
    key: Annotated[str, typer.Option("-k", "--key", help="A key that can be changed at run time.")],
    value: Annotated[str, typer.Option("-v", "--value", help="The key's new value.")],
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Change one setting of a running broker until it restarts.  A promoted master keeps changes of brokerRole and
    flushDiskType.
    """
    with open_admin(context, name_server, broker_addr) as admin:
        found = admin.update_broker_config({key: value}, broker_addr=broker_addr, cluster_name=cluster)
    rows = [{"brokerAddr": address, "key": key, "value": values.get(key)} for address, values in found.items()]
    show_rows(("brokerAddr", "key", "value"), rows, as_json=as_json)


def _show_by_address(found: dict[str, dict[str, str]], as_json: bool, separator: str) -> None:
    if as_json:
        for address, values in found.items():
            show_json({"brokerAddr": address, **values})
        return
    for number, (address, values) in enumerate(found.items()):
        if len(found) > 1:
            print(f"{chr(10) if number else ''}{address}")
        show_values(values, as_json=False, separator=separator)


def promote_slave(
    context: typer.Context,
    broker_addr: Annotated[
        str,
        typer.Option("-b", "--broker-addr", help="The slave, host:port.", autocompletion=completion.broker_addresses),
    ],
    name_server: NameServer,
    sync: Annotated[
        bool | None,
        typer.Option(
            "--sync/--async",
            help="The role of the new master: SYNC_MASTER or ASYNC_MASTER. Default: the old master's role.",
        ),
    ] = None,
    expected_epoch: Annotated[
        int,
        typer.Option(
            "--epoch", help="Refuse the promotion unless the slave has this leader epoch. 0 allows any epoch."
        ),
    ] = 0,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Promote even if the master still answers, or another slave has or may have a longer log."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a slave the master of its broker name.  The old master takes no more writes when it comes back."""
    with open_admin(context, name_server) as admin:
        promotion = admin.promote_slave(
            broker_addr,
            expected_epoch=expected_epoch,
            broker_role={True: "SYNC_MASTER", False: "ASYNC_MASTER", None: ""}[sync],
            force=force,
        )
    if as_json:
        show_json({**facts(promotion), "forfeits": [facts(lost) for lost in promotion.forfeits]})
        return
    role = f"{promotion.broker_role} with {promotion.flush_disk_type}" if promotion.broker_role else "the master"
    print(f"{promotion.address} is {role} now: epoch {promotion.epoch}, from offset {promotion.start_offset} on")
    if promotion.is_weaker:
        print(
            "The old master was a SYNC_MASTER: SEND_OK no longer means that a second broker has the message. "
            f"`rocketsim admin updateBrokerConfig -b {promotion.address} -k brokerRole -v SYNC_MASTER` changes that."
        )
    for lost in promotion.forfeits:
        what = "it does not answer: an unknown number of bytes" if lost.bytes is None else f"{lost.bytes} bytes"
        print(f"broker {lost.broker_id} at {lost.address}: {what} that only it has will be cut when it becomes a slave")


def remove_slave(
    context: typer.Context,
    broker_addr: Annotated[
        str,
        typer.Option(
            "-b",
            "--broker-addr",
            help="The master's host:port. Without a master, run the command for each remaining slave.",
        ),
    ],
    broker_id: Annotated[
        int, typer.Option("-i", "--broker-id", help="The broker id of the slave that will not come back.")
    ],
    as_json: AsJson = False,
) -> None:
    """Forget a slave that will not come back, so that a starting broker does not wait for it and a promotion does not
    ask it.
    """
    with open_admin(context, None, broker_addr) as admin:
        left = admin.remove_slave(broker_addr, broker_id)
    rows = [{"brokerId": known, "address": address} for known, address in sorted(left.items())]
    show_rows(("brokerId", "address"), rows, as_json=as_json)


def wipe_write_perm(
    context: typer.Context, broker_name: BrokerName, name_server: NameServer, as_json: AsJson = False
) -> None:
    """Take away the write permission of a broker's topics at every name server, so that producers avoid the broker."""
    with open_admin(context, name_server) as admin:
        _show_changed(admin, broker_name, admin.wipe_write_perm(broker_name), as_json)


def add_write_perm(
    context: typer.Context, broker_name: BrokerName, name_server: NameServer, as_json: AsJson = False
) -> None:
    """Give back the write permission that wipeWritePerm took from a broker's topics."""
    with open_admin(context, name_server) as admin:
        _show_changed(admin, broker_name, admin.add_write_perm(broker_name), as_json)


def _show_changed(admin: "Admin", broker_name: str, changed: dict[str, int], as_json: bool) -> None:
    # Nothing has changed: either the permission was like that before, or the broker's name is misspelt.
    known = {member.broker_name for member in admin.cluster_list()}
    if not any(changed.values()) and broker_name not in known:
        raise Trouble(f"broker {broker_name!r} is not known; known are: {', '.join(sorted(known)) or 'none'}")
    rows = [{"nameServer": address, "topics": count} for address, count in changed.items()]
    show_rows(("nameServer", "topics"), rows, as_json=as_json, formats={"topics": lambda count: f"OK, {cell(count)}"})
