"""`rocketsim store dump` prints the content of a store directory, without a broker.

The command takes no lock, changes nothing, and works on RocketMQ's stores, too.  The lines have the same form as those
that RocketMQ's own code printed for the golden store of the tests.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import PROPERTY_KEYS, PROPERTY_TAGS

from broker_service.store.consume_queue import ENTRY_SIZE
from broker_service.store.offline.file import numbered_files
from broker_service.store.offline.log import Blank, Damaged, Misfit, Whole
from broker_service.store.offline.offsets import committed_offsets
from broker_service.store.offline.queue import queues
from broker_service.store.offline.survey import Survey

Line = dict[str, Any]


def dump(directory: Path, survey: Survey | None = None) -> Iterator[Line]:
    """Yields one line for each record, blank and damaged part of the log, in physical order.  Files that are missing,
    cut short or too long, and bytes behind the last record that are no record, are damaged parts, too.

    After the log come lines for the queues, the log's bounds and the committed offsets.
    """
    survey = survey or Survey()
    files = numbered_files(directory / "commitlog")
    log_min = log_max = int(files[0].name) if files else 0
    for part in survey.log_parts(directory):
        if isinstance(part, Whole):
            yield from _messages(part.records)
            log_max = part.offset + int(part.records.sizes.sum())
        elif isinstance(part, Blank):
            yield {"kind": "blank", "commitLogOffset": part.offset, "storeSize": part.size}
            log_max = part.offset + part.size
        elif isinstance(part, Damaged):
            yield _damaged(part.path, part.offset, part.size, part.reason)
            log_max = part.offset + part.size
        elif isinstance(part, Misfit):
            yield _damaged(part.path, part.offset, part.size, part.reason)
        elif part.reason:
            yield _damaged(
                part.path, part.offset, int(part.path.name) + part.path.stat().st_size - part.offset, part.reason
            )
    for queue in queues(directory, log_min):
        survey.queues += 1
        entries = queue.read(queue.min_offset, queue.max_offset)
        yield {
            "kind": "queue",
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "cqType": "SimpleCQ",
            "unitSize": ENTRY_SIZE,
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
            "entries": len(entries),
            "entriesSha1": hashlib.sha1(entries.tobytes()).hexdigest(),
        }
    yield {"kind": "log", "minOffset": log_min, "maxOffset": log_max}
    try:
        offsets = committed_offsets(directory)
    except ValueError as error:
        yield {"kind": "damaged", "file": "config/consumerOffset.json", "reason": str(error)}
        return
    for one in offsets:
        yield {
            "kind": "offset",
            "group": one.group,
            "topic": one.topic,
            "queueId": one.queue_id,
            "offset": one.offset,
        }


def _damaged(path: Path, log_offset: int, size: int, reason: str) -> Line:
    where = {"commitLogOffset": log_offset, "storeSize": size, "file": f"commitlog/{path.name}"}
    return {"kind": "damaged", **where, "reason": reason}


def _messages(records: Records) -> Iterator[Line]:
    """Yields one line per record with RocketMQ's names.  `bodySha1` is of the stored body, which may be compressed."""
    columns = {
        "topic": records.topics().to_pylist(),
        "queueId": records.queue_id.tolist(),
        "queueOffset": records.queue_offset.tolist(),
        "commitLogOffset": records.commit_log_offset.tolist(),
        "storeSize": records.sizes.tolist(),
        "magic": [f"{magic:08x}" for magic in records.magic.tolist()],
        "bodyCRC": records.body_crc.tolist(),
        "flag": records.flag.tolist(),
        "sysFlag": records.sys_flag.tolist(),
        "bornTimestamp": records.born_timestamp.tolist(),
        "bornHost": [_java_host(host) for host in records.born_hosts().to_pylist()],
        "storeTimestamp": records.store_timestamp.tolist(),
        "storeHost": [_java_host(host) for host in records.store_hosts().to_pylist()],
        "reconsumeTimes": records.reconsume_times.tolist(),
        "preparedTransactionOffset": records.prepared_transaction_offset.tolist(),
        "offsetMsgId": records.offset_message_ids().to_pylist(),
        "tags": records.property(PROPERTY_TAGS).to_pylist(),
        "keys": records.property(PROPERTY_KEYS).to_pylist(),
        "properties": [dict(sorted(pairs)) for pairs in records.properties().to_pylist()],
        "propertiesLength": records.properties_size.tolist(),
        "bodyLength": records.body_size.tolist(),
        "bodySha1": [hashlib.sha1(body).hexdigest() for body in records.bodies().to_pylist()],
    }
    for values in zip(*columns.values(), strict=True):
        yield {"kind": "message", **dict(zip(columns, values, strict=True))}


def _java_host(host: str) -> str:
    """Formats an address as RocketMQ's dump does: 127.0.0.1/10911."""
    address, _, port = host.rpartition(":")
    return f"{address.strip('[]')}/{port}"
