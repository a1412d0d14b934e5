"""Makes the rows of each view by asking all brokers when a query runs.

A broker that does not answer is an error, and so is a name server that knows no broker, because a table that lacks some
rows would hide problems.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rocketsim_client.admin import Admin
from rocketsim_client.admin_model import ClusterMember, ConsumeProgress
from rocketsim_client.errors import BrokerNotExist, NotSupported
from rocketsim_client.model import MASTER_ID
from rocketsim_source.options.view_options import ViewOptions

Row = dict[str, Any]


def rows_of(options: ViewOptions) -> list[Row]:
    """Returns the rows, each with every column of the view.  Raises an error if a broker refuses or does not answer."""
    with Admin(options.connection) as admin:
        if not admin.cluster_list():
            raise BrokerNotExist(f"the name server {';'.join(options.name_server)} knows no broker")
        return list(_ROWS[options.view](admin, options))


def _lag(admin: Admin, options: ViewOptions) -> Iterator[Row]:
    places: dict[tuple[str, str], list[ConsumeProgress]] = {}
    for one in _progress(admin, options):
        places.setdefault((one.group, one.queue.topic), []).append(one)
    for (group, topic), queues in sorted(places.items()):
        lags = [one.diff for one in queues]
        yield {
            "group": group,
            "topic": topic,
            "lag": sum(lags),
            "largestQueueLag": max(lags),
            "queues": len(queues),
            "lastConsumedTimestamp": _time(max(one.last_timestamp for one in queues)),
        }


def _offsets(admin: Admin, options: ViewOptions) -> Iterator[Row]:
    for one in sorted(_progress(admin, options), key=lambda one: (one.group, one.queue)):
        yield {
            "group": one.group,
            "topic": one.queue.topic,
            "brokerName": one.queue.broker_name,
            "queueId": one.queue.queue_id,
            "nextOffset": one.consumer_offset,
            "endOffset": one.broker_offset,
            "lag": one.diff,
            "lastConsumedTimestamp": _time(one.last_timestamp),
            "generation": one.generation,
            "servedByBrokerId": one.broker_id,
        }


def _queues(admin: Admin, options: ViewOptions) -> Iterator[Row]:
    for topic in options.topics or sorted(admin.topic_list()):
        for one in admin.topic_status(topic):
            yield {
                "topic": one.queue.topic,
                "brokerName": one.queue.broker_name,
                "queueId": one.queue.queue_id,
                "minOffset": one.min_offset,
                "maxOffset": one.max_offset,
                "messages": one.max_offset - one.min_offset,
                "lastStoreTimestamp": _time(one.last_update_timestamp),
            }


def _groups(admin: Admin, options: ViewOptions) -> Iterator[Row]:
    lags: dict[tuple[str, str], int] = {}
    topics: dict[tuple[str, str], set[str]] = {}
    for one in admin.consumer_progress(options.group):
        key = one.group, one.queue.broker_name
        lags[key] = lags.get(key, 0) + one.diff
        topics.setdefault(key, set()).add(one.queue.topic)
    for name in sorted({member.broker_name for member in admin.cluster_list()}):
        for group in sorted(admin.cluster.ask_name(name, admin.sub_groups), key=lambda one: one.group_name):
            if options.group not in (None, group.group_name):
                continue
            key = group.group_name, name
            yield {
                "group": group.group_name,
                "brokerName": name,
                "consumeEnable": group.consume_enable,
                "consumeMessageOrderly": group.consume_message_orderly,
                "retryMaxTimes": group.retry_max_times,
                "topics": sorted(topics.get(key, ())),
                "lag": lags.get(key, 0),
            }


def _brokers(admin: Admin, options: ViewOptions) -> Iterator[Row]:
    for member in admin.cluster_list():
        (values,) = admin.broker_status(broker_addr=member.address).values()
        try:
            (ha,) = admin.ha_status(broker_addr=member.address)
        except NotSupported:
            yield _of_rocketmq(member, values)
            continue
        yield {
            "clusterName": member.cluster_name,
            "brokerName": member.broker_name,
            "brokerId": member.broker_id,
            "address": member.address,
            "role": values.get("brokerRole", member.role),
            "isMaster": ha.is_master,
            "isWritable": values.get("brokerActive") == "true",
            "epoch": ha.epoch,
            "logEndOffset": ha.commit_log_max_offset,
            "confirmOffset": ha.confirm_offset,
            "slavesInSync": sum(slave.in_sync for slave in ha.slaves) if ha.is_master else None,
            "largestSlaveLagBytes": max((slave.diff_bytes for slave in ha.slaves), default=None),
            "diskUsedRatio": _number(values.get("commitLogDiskRatio")),
            "state": ha.state,
        }


def _of_rocketmq(member: ClusterMember, values: Mapping[str, str]) -> Row:
    """Returns the row of a broker of Apache RocketMQ.  RocketMQ has no epochs, and this function does not ask for the
    broker's slaves."""
    is_master = member.broker_id == MASTER_ID
    end = int(values.get("commitLogMaxOffset", "0"))
    return {
        "clusterName": member.cluster_name,
        "brokerName": member.broker_name,
        "brokerId": member.broker_id,
        "address": member.address,
        "role": "MASTER" if is_master else "SLAVE",
        "isMaster": is_master,
        "isWritable": is_master,
        "epoch": 0,
        "logEndOffset": end,
        "confirmOffset": end,
        "slavesInSync": None,
        "largestSlaveLagBytes": None,
        "diskUsedRatio": _number(values.get("commitLogDiskRatio")),
        "state": values.get("brokerVersionDesc", ""),
    }


def _progress(admin: Admin, options: ViewOptions) -> Iterator[ConsumeProgress]:
    for topic in options.topics or (None,):
        yield from admin.consumer_progress(options.group, topic)


def _time(ms: int) -> datetime | None:
    """Converts milliseconds since 1970 to a time, and 0 to None, because a broker reports 0 if there is no message."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


_ROWS: Mapping[str, Callable[[Admin, ViewOptions], Iterator[Row]]] = {
    "lag": _lag,
    "offsets": _offsets,
    "queues": _queues,
    "groups": _groups,
    "brokers": _brokers,
}
