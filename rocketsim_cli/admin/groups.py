"""The commands of `rocketsim admin` for consumer groups: settings, progress, resets."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli.admin.session import change_at_masters, facts, open_admin, show_deleted
from rocketsim_cli.options import (
    AsJson,
    BrokerAddr,
    ClusterName,
    Group,
    NameServer,
    OptionalGroup,
    OptionalNameServer,
    OptionalTopic,
    Topic,
    Truth,
)
from rocketsim_cli.tables import show_rows, when
from rocketsim_cli.trouble import Trouble, WrongCommandLine

if TYPE_CHECKING:
    from rocketsim_client import Admin, SubscriptionGroupConfig

KEPT = "A setting of RocketMQ that RocketSim stores but does not use."


def update_sub_group(
    context: typer.Context,
    group: Group,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    consume_enable: Annotated[
        Truth | None, typer.Option("-s", "--consume-enable", help="false: the group's pulls are refused.")
    ] = None,
    consume_from_min_enable: Annotated[Truth | None, typer.Option("-m", "--consume-from-min-enable", help=KEPT)] = None,
    consume_broadcast_enable: Annotated[
        Truth | None, typer.Option("-d", "--consume-broadcast-enable", help=KEPT)
    ] = None,
    consume_message_orderly: Annotated[
        Truth | None,
        typer.Option("-o", "--consume-message-orderly", help="true: RocketMQ 5's clients consume in order (FIFO)."),
    ] = None,
    retry_queue_nums: Annotated[int | None, typer.Option("-q", "--retry-queue-nums", min=0, help=KEPT)] = None,
    retry_max_times: Annotated[
        int | None,
        typer.Option(
            "-r", "--retry-max-times", min=0, help="How often a message is delivered again before it is a dead letter."
        ),
    ] = None,
    group_retry_policy: Annotated[
        str | None,
        typer.Option("-p", "--group-retry-policy", help="The times between deliveries in ms, as RocketMQ's JSON."),
    ] = None,
    broker_id: Annotated[
        int | None,
        typer.Option(
            "-i", "--broker-id", min=0, help="The id of the broker that the group's consumers normally read from."
        ),
    ] = None,
    which_broker_when_consume_slowly: Annotated[
        int | None,
        typer.Option(
            "-w",
            "--which-broker-when-consume-slowly",
            min=0,
            help="The id of the broker that consumers read from when they have fallen behind.",
        ),
    ] = None,
    notify_consumer_ids_changed_enable: Annotated[
        Truth | None, typer.Option("-a", "--notify-consumer-ids-changed-enable", help=KEPT)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create or change a group; settings that are not given stay as they are."""
    given: dict[str, object] = {
        "consume_enable": consume_enable,
        "consume_from_min_enable": consume_from_min_enable,
        "consume_broadcast_enable": consume_broadcast_enable,
        "consume_message_orderly": consume_message_orderly,
        "retry_queue_nums": retry_queue_nums,
        "retry_max_times": retry_max_times,
        "group_retry_policy": group_retry_policy,
        "broker_id": broker_id,
        "which_broker_when_consume_slowly": which_broker_when_consume_slowly,
        "notify_consumer_ids_changed_enable": notify_consumer_ids_changed_enable,
    }
    changes = {
        name: bool(value) if isinstance(value, Truth) else value for name, value in given.items() if value is not None
    }

    def change(admin: "Admin", address: str) -> "Mapping[str, SubscriptionGroupConfig]":
        config = replace(_config_at(admin, address, group), **changes)  # type: ignore[arg-type]
        return admin.update_sub_group(config, broker_addr=address)

    rows = change_at_masters(context, name_server, broker_addr, cluster, change)
    columns = (
        *("brokerAddr", "groupName", "consumeEnable", "brokerId", "whichBrokerWhenConsumeSlowly", "retryMaxTimes"),
        "consumeMessageOrderly",
        "status",
    )
    show_rows(columns, rows, as_json=as_json)


def get_consumer_config(
    context: typer.Context,
    group: Group,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Show a group's settings at each master that has it."""
    with open_admin(context, name_server, broker_addr) as admin:
        found = {
            address: config
            for address in admin.masters(broker_addr, cluster)
            for config in admin.sub_groups(address)
            if config.group_name == group
        }
    if not found:
        raise Trouble(f"no master has consumer group {group}; updateSubGroup makes it")
    rows = [{"brokerAddr": address, **facts(config)} for address, config in found.items()]
    show_rows(tuple(rows[0]), rows, as_json=as_json)


def _config_at(admin: "Admin", address: str, group: str) -> "SubscriptionGroupConfig":
    from rocketsim_client import SubscriptionGroupConfig

    known = (config for config in admin.sub_groups(address) if config.group_name == group)
    return next(known, SubscriptionGroupConfig(group_name=group))


def delete_sub_group(
    context: typer.Context,
    group: Group,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    remove_offset: Annotated[
        Truth,
        typer.Option(
            "-r", "--remove-offset", help="true: also delete offsets, unacknowledged deliveries, retry topics."
        ),
    ] = Truth.FALSE,
    as_json: AsJson = False,
) -> None:
    """Delete a group's settings, and with -r true also its offsets, unacknowledged deliveries and retry topics."""
    with open_admin(context, name_server, broker_addr) as admin:
        deleted = admin.delete_sub_group(
            group, remove_offset=bool(remove_offset), broker_addr=broker_addr, cluster_name=cluster
        )
    show_deleted({"group": group}, deleted, as_json=as_json)


def consumer_connection(context: typer.Context, group: Group, name_server: NameServer, as_json: AsJson = False) -> None:
    """Show the clients that have consumed with a group lately: consumers, Spark's queries, RocketMQ's clients."""
    with open_admin(context, name_server) as admin:
        clients = admin.consumer_connection(group)
    columns = ("brokerName", "clientId", "way", "lastMsAgo", "messages", "brokerId")
    show_rows(columns, [facts(one) for one in clients], as_json=as_json)


def consumer_progress(
    context: typer.Context,
    name_server: NameServer,
    group: OptionalGroup = None,
    topic: OptionalTopic = None,
    as_json: AsJson = False,
) -> None:
    """Show the offsets and the lag of each queue of a group, or without -g the lag of each group."""
    with open_admin(context, name_server) as admin:
        progress = admin.consumer_progress(group, topic)
    if group is None:
        totals: dict[str, dict[str, int]] = defaultdict(lambda: {"queues": 0, "diff": 0})
        for one in progress:
            totals[one.group]["queues"] += 1
            totals[one.group]["diff"] += one.diff
        rows: list[dict[str, object]] = [{"group": name, **total} for name, total in sorted(totals.items())]
        show_rows(("group", "queues", "diff"), rows, as_json=as_json)
        return
    if not progress:
        raise Trouble(
            f"group {group} has no committed offset"
            + (f" for topic {topic}" if topic else "")
            + "; without -g the command lists the groups that have one"
        )
    rows = [{**facts(one), "diff": one.diff} for one in progress]
    for row in rows:
        del row["lag"]  # `diff` has the same number as `lag`, which older brokers do not send
    columns = ("topic", "brokerName", "queueId", "brokerOffset", "consumerOffset", "diff", "lastTimestamp", "brokerId")
    show_rows(columns, rows, as_json=as_json, formats={"lastTimestamp": when}, heading="topic")
    if not as_json:
        print(f"Diff Total: {sum(one.diff for one in progress)}")


def reset_offset_by_time(
    context: typer.Context,
    group: Group,
    topic: Topic,
    name_server: NameServer,
    timestamp: Annotated[
        str,
        typer.Option(
            "-s",
            "--timestamp",
            help="The time: ms since 1970, ISO date and time, yyyy-MM-dd#HH:mm:ss:SSS, or now (-1).",
        ),
    ],
    force: Annotated[
        Truth, typer.Option("-f", "--force", help="false: only move offsets back, never forward, as in mqadmin.")
    ] = Truth.TRUE,
    as_json: AsJson = False,
) -> None:
    """Move a group's offsets at once to the first messages stored at or after a time."""
    at = parse_timestamp(timestamp)
    with open_admin(context, name_server) as admin:
        resets = admin.reset_offset_by_time(group, topic, at, force=bool(force))
    rows = [{**facts(one), "status": one.status.name} for one in resets]
    show_rows(("brokerName", "queueId", "previous", "offset", "status"), rows, as_json=as_json)


def parse_timestamp(text: str) -> int:
    """Returns milliseconds since 1970, or -1 for `now`, which means the end of each queue."""
    if text in ("now", "-1"):
        return -1
    if text.isascii() and text.isdigit():
        return int(text)
    for parse in (datetime.fromisoformat, lambda given: datetime.strptime(given, "%Y-%m-%d#%H:%M:%S:%f")):
        try:
            return int(parse(text).timestamp() * 1000)
        except ValueError:
            continue
    raise WrongCommandLine(f"-s {text}: expected ms since 1970, 2026-01-31T13:00:00, 2026-01-31#13:00:00:000, or now")
