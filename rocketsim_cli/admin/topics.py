"""The commands of `rocketsim admin` for topics: list, create, change, delete, route and status."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli.admin.session import change_at_masters, facts, open_admin, show_deleted
from rocketsim_cli.options import AsJson, BrokerAddr, ClusterName, NameServer, OptionalNameServer, Topic, Truth
from rocketsim_cli.tables import show_json, show_rows, when
from rocketsim_cli.trouble import WrongCommandLine

if TYPE_CHECKING:
    from rocketsim_client import Admin, TopicConfig


def topic_list(
    context: typer.Context, name_server: NameServer, cluster: ClusterName = None, as_json: AsJson = False
) -> None:
    """List the names of all topics, or with -c of the topics of one cluster."""
    with open_admin(context, name_server) as admin:
        names = sorted(admin.topic_list())
        if cluster is not None:
            members = {member.broker_name for member in admin.cluster_list(cluster)}
            names = [name for name in names if members & set(admin.topic_route(name).brokers)]
    show_rows(("topic",), [{"topic": name} for name in names], as_json=as_json)


def update_topic(
    context: typer.Context,
    topic: Topic,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    read_queue_nums: Annotated[
        int | None,
        typer.Option("-r", "--read-queue-nums", help="How many queues to read from; 8 for a new topic.", min=0),
    ] = None,
    write_queue_nums: Annotated[
        int | None,
        typer.Option(
            "-w",
            "--write-queue-nums",
            help="How many queues to write to; 8 for a new topic, 0 to drain the topic.",
            min=0,
        ),
    ] = None,
    perm: Annotated[int | None, typer.Option("-p", "--perm", help="2: write, 4: read, 6: both.", min=1)] = None,
    order: Annotated[Truth | None, typer.Option("-o", "--order", help="true: make the topic an ordered topic.")] = None,
    attributes: Annotated[
        str | None,
        typer.Option(
            "-a",
            "--attributes",
            help="Attributes to set and to delete, as in +message.type=FIFO,-other. "
            "message.type, for RocketMQ 5's clients: NORMAL, FIFO, DELAY, TRANSACTION or MIXED.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create or change a topic; settings that are not given stay as they are."""
    changes = attribute_changes(attributes or "")

    def change(admin: "Admin", address: str) -> "Mapping[str, TopicConfig]":
        config = _config_at(admin, address, topic)
        changed = {**config.attributes, **changes}
        return admin.update_topic(
            topic,
            read_queue_nums=config.read_queue_nums if read_queue_nums is None else read_queue_nums,
            write_queue_nums=config.write_queue_nums if write_queue_nums is None else write_queue_nums,
            perm=config.perm if perm is None else perm,
            order=config.order if order is None else bool(order),
            attributes={name: value for name, value in changed.items() if value is not None},
            broker_addr=address,
        )

    rows = change_at_masters(context, name_server, broker_addr, cluster, change)
    columns = ("brokerAddr", "topicName", "readQueueNums", "writeQueueNums", "perm", "order", "attributes", "status")
    show_rows(columns, rows, as_json=as_json)


def attribute_changes(text: str) -> dict[str, str | None]:
    """Parses mqadmin's form `+a=1,-b` into values by attribute name.  A value of None means that the attribute is
    deleted.
    """
    changes: dict[str, str | None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part[1:].partition("=")
        if not name or part[0] not in "+-" or (part[0] == "+") != bool(equals and value):
            raise WrongCommandLine(f"attributes {text!r}: {part!r} is neither +name=value nor -name")
        changes[name] = value or None
    return changes


def _config_at(admin: "Admin", address: str, topic: str) -> "TopicConfig":
    from rocketsim_client import TopicConfig

    known = (config for config in admin.topic_configs(address) if config.topic_name == topic)
    return next(known, TopicConfig(topic_name=topic))


def delete_topic(
    context: typer.Context,
    topic: Topic,
    name_server: OptionalNameServer = None,
    broker_addr: BrokerAddr = None,
    cluster: ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with its queues.  If the topic is created again, its queues continue at their old offsets."""
    with open_admin(context, name_server, broker_addr) as admin:
        deleted = admin.delete_topic(topic, broker_addr=broker_addr, cluster_name=cluster)
    show_deleted({"topic": topic}, deleted, as_json=as_json)


def topic_route(context: typer.Context, topic: Topic, name_server: NameServer, as_json: AsJson = False) -> None:
    """Show which brokers have the topic, and their addresses; --json prints RocketMQ's JSON."""
    with open_admin(context, name_server) as admin:
        route = admin.topic_route(topic)
    if as_json:
        queues = [
            {
                "brokerName": data.broker_name,
                "readQueueNums": data.read_queue_nums,
                "writeQueueNums": data.write_queue_nums,
                "perm": data.perm,
            }
            for data in route.queues
        ]
        brokers = [
            {
                "cluster": data.cluster_name,
                "brokerName": data.broker_name,
                "brokerAddrs": {str(broker_id): address for broker_id, address in sorted(data.addresses.items())},
                "epoch": data.epoch,
            }
            for data in route.brokers.values()
        ]
        show_json({"queueDatas": queues, "brokerDatas": brokers})
        return
    rows: list[dict[str, object]] = [
        {
            "cluster": route.brokers[data.broker_name].cluster_name if data.broker_name in route.brokers else None,
            "brokerName": data.broker_name,
            "addresses": [f"{i}: {at}" for i, at in sorted(route.addresses(data.broker_name).items())],
            "readQueueNums": data.read_queue_nums,
            "writeQueueNums": data.write_queue_nums,
            "perm": data.perm,
        }
        for data in route.queues
    ]
    columns = ("cluster", "brokerName", "addresses", "readQueueNums", "writeQueueNums", "perm")
    show_rows(columns, rows, as_json=False, heading="cluster")


def topic_status(context: typer.Context, topic: Topic, name_server: NameServer, as_json: AsJson = False) -> None:
    """Show the first offset and the end offset of every queue, and when its last message was stored."""
    with open_admin(context, name_server) as admin:
        rows = [facts(status) for status in admin.topic_status(topic)]
    columns = ("brokerName", "queueId", "minOffset", "maxOffset", "lastUpdateTimestamp")
    show_rows(columns, rows, as_json=as_json, formats={"lastUpdateTimestamp": when})
