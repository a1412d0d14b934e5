"""A stream's offset as Spark keeps it in the checkpoint.  Pure.

    {"epochs":{"TopicA":{"broker-a":"1#3e9f"}},"q":{"TopicA":{"broker-a":{"0":123}}},
     "split":{"bytes":6400,"cores":8,"rule":2},"start":{"TopicA":{"broker-a":{"0":100}}},"v":1}

Spark compares offsets as JSON text, so keys are always sorted and values are whole numbers.  `split` says how the batch
that ends at this offset is cut into partitions.  With `split`, a driver with other cores, options or code cuts the
batch in the same way when it runs the batch again.  Checkpoints of older versions have no `split`.

When Spark replays a query's first batch, it asks for the initial offset again.  If `latest` has moved before the
replay, the replay would start later and lose the records in between without an error.  So that a replay begins at the
same offsets, the end offset of the first batch also has the start of that batch (`start`).  While a query has nothing
to read, its first batch is empty and only writes the start into the checkpoint.  The offset of an empty first batch is
marked `"anchor":1`.
"""

from dataclasses import dataclass, field
from typing import Any

from rocketsim_client.model import MessageQueue
from rocketsim_source.planning import epochs
from rocketsim_source.planning.splits import RULE, RULE_WITHOUT_BYTES, Parallelism
from rocketsim_source.source_cluster import Offsets, ReadIn

VERSION = 1


class OffsetError(ValueError):
    """Raised if an offset in the checkpoint was not written by this source."""


@dataclass(frozen=True)
class StreamOffset:
    offsets: Offsets
    anchor: bool = False
    # `split` and `read_in` say how a batch was planned, and do not count when two offsets are compared.
    split: Parallelism | None = field(default=None, compare=False)
    read_in: ReadIn = field(default_factory=dict, compare=False)
    # Where the query's first batch starts; None for later batches.
    batch_start: Offsets | None = field(default=None, compare=False)

    def json(self) -> dict[str, Any]:
        written: dict[str, Any] = {"anchor": 1} if self.anchor else {}
        if read_in := epochs.as_json(self.read_in, self.offsets):
            written["epochs"] = read_in
        written["q"] = as_json(self.offsets)
        if self.split is not None:
            written["split"] = split_as_json(self.split)
        if self.batch_start is not None:
            written["start"] = as_json(self.batch_start)
        return written | {"v": VERSION}

    @classmethod
    def of(cls, written: Any) -> "StreamOffset":
        version = written.get("v") if isinstance(written, dict) else None
        if type(version) is not int or version < 1:
            raise OffsetError(f"not an offset of this source in the checkpoint: {written!r}")
        if version > VERSION:
            raise OffsetError(
                f"the offsets in the checkpoint have format version {version}, and this version of RocketSim knows "
                f"only versions up to {VERSION}: run the query with the version that wrote them or a newer one, or "
                "give it a new checkpoint and startingOffsets=committed, which starts at the offsets that its group "
                "has committed"
            )
        if not isinstance(written.get("q"), dict):
            raise OffsetError(f"an offset of the stream in the checkpoint names no queues: {written!r}")
        if not set(written) <= {"anchor", "epochs", "q", "split", "start", "v"}:
            raise OffsetError(f"an offset in the checkpoint has unknown parts: {written!r}")
        split = split_from_json(written["split"]) if "split" in written else None
        offsets = from_json(written["q"])
        try:
            read_in = epochs.from_json(written.get("epochs", {}), offsets)
        except ValueError as error:
            raise OffsetError(f"{error} (checkpoint edited?)") from error
        batch_start = from_json(written["start"]) if "start" in written else None
        return cls(offsets, written.get("anchor") == 1, split, read_in, batch_start)


def split_as_json(split: Parallelism) -> dict[str, int]:
    found = {
        "bytes": split.batch_bytes or None,
        "cores": split.cores,
        "maxRecords": split.max_records_per_partition,
        "minPartitions": split.min_partitions,
        "rule": split.rule,
    }
    return {name: value for name, value in found.items() if value is not None}


def split_from_json(written: Any) -> Parallelism:
    if not isinstance(written, dict) or not all(type(value) is int and value > 0 for value in written.values()):
        raise OffsetError(f"{written!r} in the checkpoint does not say how a batch is cut into partitions")
    rule = written.get("rule")
    if rule not in (RULE_WITHOUT_BYTES, RULE):
        raise OffsetError(
            f"a batch in the checkpoint is cut into partitions by rule {rule}, and this version knows the rules up to "
            f"{RULE}: run it with the version that planned it, or a newer one"
        )
    needed = {"cores", "rule"} if rule == RULE_WITHOUT_BYTES else {"bytes", "cores", "rule"}
    if not needed <= set(written) <= needed | {"maxRecords", "minPartitions"}:
        raise OffsetError(f"{written!r} in the checkpoint does not say how a batch is cut into partitions")
    return Parallelism(
        written["cores"], written.get("minPartitions"), written.get("maxRecords"), written.get("bytes", 0)
    )


def as_json(offsets: Offsets) -> dict[str, dict[str, dict[str, int]]]:
    """Returns topic -> broker name -> queue id -> offset.  The keys of each level are sorted as texts."""
    written: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker_name, queue_id), offset in sorted(
        offsets.items(), key=lambda item: (*item[0][:2], str(item[0][2]))
    ):
        written.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = int(offset)
    return written


def from_json(written: dict[str, Any]) -> Offsets:
    offsets: Offsets = {}
    try:
        for topic, brokers in written.items():
            for broker_name, queues in brokers.items():
                for queue_id, offset in queues.items():
                    if type(offset) is not int or offset < 0 or not queue_id.isascii() or not queue_id.isdigit():
                        raise OffsetError(
                            f"{topic}@{broker_name}:{queue_id} = {offset!r} is no queue offset (checkpoint edited?)"
                        )
                    offsets[MessageQueue(topic, broker_name, int(queue_id))] = offset
    except AttributeError:
        raise OffsetError(
            f"the offsets in the checkpoint are not topic -> broker name -> queue id -> offset: {written!r}"
        ) from None
    return offsets
