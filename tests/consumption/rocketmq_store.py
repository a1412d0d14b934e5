"""Writes a store like one that RocketMQ 5.5.0 leaves when deliveries of its pops are open.

The records are those that a real RocketMQ has written (`test_rocketmq_pops.py` has a sample, `tests/interop` uses a
real one).
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocketsim_proto.records.record import Record, encode_host
from rocketsim_proto.reserved import TIMER_TOPIC

from broker_service.rocketmq_handover import timer_check
from broker_service.rocketmq_handover.timer_check import TimerCheck
from broker_service.state import timer_record
from broker_service.store.config import StoreConfig
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from tests.interop.stores import topic_config

HOST = encode_host("127.0.0.1", 10911)
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_lab"
QUEUES = 8
SIZES = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


class RocketMQStore:
    """The store of a RocketMQ broker whose clock says `now_ms`.  At the end of the context, the broker stops cleanly.

    `offsets` maps a group and a topic to the committed offsets by queue id.
    """

    def __init__(self, root: Path, now_ms: int) -> None:
        self.now_ms = now_ms
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.topics: dict[str, int] = {REVIVE_TOPIC: QUEUES}
        self.delivered_to = 0  # ms; messages in the timer topic with an earlier time are delivered
        self._root = root
        self._store = MessageStore.open(StoreConfig(root=root, **SIZES), now_ms)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        end = self._store.queues.end(TIMER_TOPIC, 0)
        self._store.close()
        config = self._root / "config"
        self._write("topics.json", "topicConfigTable", {name: topic_config(name, n) for name, n in self.topics.items()})
        known = JsonFile(config / "consumerOffset.json").load() or {}
        offsets = known.get("offsetTable", {}) | {
            f"{topic}@{group}": {str(queue): offset for queue, offset in queues.items()}
            for (group, topic), queues in self.offsets.items()
        }
        self._write("consumerOffset.json", "offsetTable", offsets)
        check = TimerCheck(read_ms=self.delivered_to, queue_offset=end, masters_queue_offset=end)
        (config / "timercheck").write_bytes(timer_check.FIELDS.pack(*check).ljust(4096, b"\0"))

    def _write(self, name: str, member: str, content: object) -> None:
        version = {"counter": 1, "stateVersion": 0, "timestamp": self.now_ms}
        JsonFile(self._root / "config" / name).save({"dataVersion": version, member: content})

    def send(self, topic: str, *bodies: str, queue_id: int = 0, reconsume_times: int = 0) -> None:
        self.topics.setdefault(topic, 1)
        for body in bodies:
            one = Record(topic, body.encode(), queue_id=queue_id, reconsume_times=reconsume_times)
            self._store.append_one(one, self.now_ms, HOST)

    def popped(
        self, group: str, topic: str, *offsets: int, at: int, invisible: int = 60_000, waits: bool = True, **more: Any
    ) -> None:
        """Writes a checkpoint for offsets of queue 0.  With `waits`, the checkpoint is in the timer topic, else in the
        revive topic.
        """
        body = {"bm": 0, "bn": "lab", "c": group, "d": [one - offsets[0] for one in offsets], "it": invisible}
        body |= {"n": len(offsets), "pt": at, "q": 0, "ro": 0, "so": offsets[0], "sp": False, "t": topic, **more}
        self._append("ck", body, at + invisible - 1000, waits)

    def acked(
        self, group: str, topic: str, start: int, offset: int, *, at: int, invisible: int = 60_000, waits: bool = True
    ) -> None:
        body = {"ao": offset, "bn": "lab", "c": group, "pt": at, "q": 0, "so": start, "t": topic}
        self._append("ack", body, at + invisible, waits)

    def waits(self, topic: str, body: str, deliver_ms: int) -> None:
        """Writes a user's message with a delivery time."""
        one = Record(topic, body.encode(), properties={"UNIQ_KEY": body})
        self._store.append_one(timer_record.waiting_record(one, deliver_ms, self.now_ms), self.now_ms, HOST)

    def _append(self, tag: str, body: dict[str, Any], deliver_ms: int, waits: bool) -> None:
        properties = {"TAGS": tag, "TIMER_DELIVER_MS": str(deliver_ms)}
        one = Record(REVIVE_TOPIC, json.dumps(body, separators=(",", ":")).encode(), properties=properties)
        if waits:
            one = timer_record.waiting_record(one, deliver_ms, deliver_ms - 1000)
        self._store.append_one(one, self.now_ms, HOST)
