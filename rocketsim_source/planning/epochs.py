"""Writes the leader epoch (a broker's term as master) in which each queue was read into the checkpoint, and reads it
back.  Pure.

The restart of a broker loses nothing, but a promoted slave may lack records that were already read.  Offsets alone do
not tell a restart from a promotion, because the promoted slave's log soon grows past the lost offsets again, with other
records.  To detect a promotion, the checkpoint keeps with each offset the newest leader epoch at the time of reading.
The source asks the brokers at which offset the epoch of the checkpoint ended, as Kafka's consumers do (KIP-320).
"""

import re
from typing import Any

from rocketsim_client.model import LogEpoch, MessageQueue
from rocketsim_source.source_cluster import Offsets, ReadIn


def as_json(read_in: ReadIn, offsets: Offsets) -> dict[str, dict[str, str | dict[str, str]]]:
    """Returns topic -> broker name -> epoch.  If the epochs of a broker name's queues differ, the broker name is mapped
    to queue id -> epoch."""
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
            raise ValueError(
                f"the epochs in the checkpoint are not topic -> broker name -> epoch: {written!r}"
            ) from None
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
