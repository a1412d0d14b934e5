"""Writes the leader epoch (a broker's term as master) in which each queue was read into the checkpoint, and reads it
back.  With the epoch the source can tell a restart, which loses nothing, from the promotion of a slave that lacked some
of the records that were read.  Pure.

An offset alone cannot show the difference, because the promoted slave's log soon grows past that offset again, with
other records.  The checkpoint therefore keeps beside each offset the newest epoch at the time of reading.  The source
asks the brokers at which offset the kept epoch ended, as Kafka's consumers do (KIP-320).
"""

import re
from typing import Any

from rocketsim_client.model import LogEpoch, MessageQueue
from rocketsim_source.source_cluster import Offsets, ReadIn


def as_json(read_in: ReadIn, offsets: Offsets) -> dict[str, dict[str, str | dict[str, str]]]:
    """Returns topic -> broker name -> the epoch of all its queues, or queue id -> epoch if the queues differ."""
    queues: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in sorted(offsets, key=lambda queue: (*queue[:2], str(queue.queue_id))):
        queues.setdefault((queue.topic, queue.broker_name), []).append(queue)
    written: dict[str, dict[str, str | dict[str, str]]] = {}
    for (topic, broker_name), members in queues.items():
        known = {str(queue.queue_id): _text(read_in[queue]) for queue in members if queue in read_in}
        if known:
            is_one = len(known) == len(members) and len(set(known.values())) == 1
            written.setdefault(topic, {})[broker_name] = next(iter(known.values())) if is_one else known
    return written


def from_json(written: Any, offsets: Offsets) -> dict[MessageQueue, LogEpoch]:
    """Parses what `as_json` returns.  Raises ValueError if `written` has another form."""
    found: dict[MessageQueue, LogEpoch] = {}
    for queue in offsets:
        try:
            of_broker = written.get(queue.topic, {}).get(queue.broker_name, {})
            text = of_broker if isinstance(of_broker, str) else of_broker.get(str(queue.queue_id))
        except AttributeError:
            raise ValueError(f"not topic -> broker name -> epoch: {written!r}") from None
        if text is not None:
            found[queue] = _parse(text)
    return found


def _text(epoch: LogEpoch) -> str:
    return f"{epoch.epoch}#{epoch.epoch_id:x}"


def _parse(text: Any) -> LogEpoch:
    match = re.fullmatch(r"([0-9]{1,19})#([0-9a-f]{1,16})", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is no epoch")
    return LogEpoch(int(match[1]), int(match[2], 16))
