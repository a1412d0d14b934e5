"""The promises about committed offsets: no answer to a query is lower than an earlier answer (I7).

This module reads the files on the disks (docs/storage_format.md) to find out which brokers have an offset.  A broker
that has a committed offset must answer queries with this offset.  If a master could have received an offset from
another broker, the master must answer with this offset, too, and in the end every broker must (docs/replication.md).
Only a reset, the deletion of a topic, or the loss of the records before an offset makes the offset lower.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketsim_proto import message_pb2
from rocketsim_proto.records.record import Record

from broker_service.replication.epochs import PROMOTION
from rocketsim_client import group_offsets
from rocketsim_client.transport.reads import OffsetsAnswer

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.promises import Promises
    from tests.simulation.world import World

Key = tuple[str, str, int]  # group, topic, queue id
# The position at which a generation was raised: epoch, the epoch's id, log offset (all 0 for the first generation).
Point = tuple[int, int, int]
ON_ITS_WAY_S = 10.0  # the longest time for an answer, or for the offsets that a slave sends to a new master
# The longest time until a committed offset is synced.  The journal syncs after 5 s by default, and after 1 s here.
SYNCED_WITHIN_S = 8.0


class Entry(NamedTuple):
    """A committed offset.  Entries are compared by generation, and then by offset."""

    generation: int = 0
    offset: int = -1


Table = dict[Key, tuple[Entry, Point]]


@dataclass(eq=False)
class Standing:
    """The highest offset of a group and queue that any client was told, and the brokers that have it."""

    key: Key
    entry: Entry
    raised_at: Point
    since: float
    holders: set[int] = field(default_factory=set)
    lost_records: bool = False  # a master continued without the records before the offset


class OffsetPromises:
    """What brokers promise about committed offsets.  `broken` makes the exception that names a broken promise."""

    def __init__(self, world: World, promises: Promises, broken: type[AssertionError]) -> None:
        self._world = world
        self._promises = promises
        self._broken = broken
        self.standing: list[Standing] = []
        self._ends: dict[int, int] = {}  # broker -> the highest end of its log since the last cut
        self._epochs: dict[int, dict[tuple[int, int], int]] = {}  # broker -> (number, id) of each epoch -> its start
        self._trouble_at: dict[int, float] = {}  # broker -> when its disk was last full or failed
        self._before_power_loss: dict[int, tuple[float, Table]] = {}
        # (slave, its run, master, its run) -> when the slave began to follow the master
        self._following: dict[tuple[int, int, int, int], float] = {}
        self._last_followed: dict[tuple[int, int], int] = {}  # (slave, its run) -> the master that it followed last
        self.committed = self.queried = 0

    # --- promises, as they are made -------------------------------------------------------------------------------

    def answered_commit(self, broker: Broker, request: Any, response: Any) -> None:
        offsets = {
            (request.consumer_group, entry.topic, entry.queue_id): standing
            for entry, standing in zip(request.entries, response.offsets, strict=True)
        }
        for entry in request.entries:
            key = request.consumer_group, entry.topic, entry.queue_id
            if offsets[key] < entry.offset:
                raise self._broken(
                    f"{broker.name}: a commit of {entry.offset} is answered with the lower offset {offsets[key]}"
                )
        self._stands(broker, offsets, response.status)

    def answered_reset(self, broker: Broker, request: Any, response: Any) -> None:
        offsets = {(request.group, request.topic, entry.queue_id): entry.offset for entry in response.entries}
        self._stands(broker, offsets, response.status)

    def _stands(self, broker: Broker, offsets: dict[Key, int], status: int) -> None:
        self.watch()
        disks = {other.broker_id: on_disk(other) for other in self._world.brokers}
        is_ok = status == message_pb2.COMMIT_OK and broker.is_writable
        for key, offset in offsets.items():
            here, raised_at = disks[broker.broker_id].get(key, NOTHING)
            if here.offset < offset and not self._may_be_lower(key):
                raise self._broken(
                    f"{broker.name}: a commit of {key} is answered with {offset}, and its disk has {here}"
                )
            entry = Entry(here.generation, min(here.offset, offset))
            holders = {number for number, table in disks.items() if table.get(key, NOTHING)[0] >= entry}
            if (
                is_ok
                and self._world.levels.sync_master
                and not (holders - {broker.broker_id} or self._was_on(key, entry))
            ):
                raise self._broken(f"{broker.name}: a commit of {key} at {offset} is OK, and on no slave")
            sure = {other.broker_id for other in self._world.brokers if other.serves or other.was_killed}
            self.committed += 1
            standing = Standing(key, entry, raised_at, self._world.loop.now, holders & sure)
            self.standing = [other for other in self.standing if not _is_less(other, standing)]
            self.standing.append(standing)

    def _was_on(self, key: Key, entry: Entry) -> bool:
        """Returns True if a broker had the offset until it lost its power a moment ago, when its acknowledgement may
        have been on the way.
        """
        return any(
            self._world.loop.now - died_at < ON_ITS_WAY_S and table.get(key, NOTHING)[0] >= entry
            for died_at, table in self._before_power_loss.values()
        )

    # --- what ends a promise --------------------------------------------------------------------------------------

    def power_goes(self, broker: Broker) -> None:
        """Notes that the broker may lose what is not synced.  Entries that are older than a few seconds are synced,
        unless the disk has failed or was full.
        """
        there = on_disk(broker)
        self._before_power_loss[broker.broker_id] = self._world.loop.now, there
        kept = on_disk(broker, durable=True)
        for standing in self.standing:
            if broker.broker_id not in standing.holders or kept.get(standing.key, NOTHING)[0] >= standing.entry:
                continue
            if there.get(standing.key, NOTHING)[0] < standing.entry:
                continue  # the offset was lost earlier; the check of queries finds that
            age_s = self._world.loop.now - max(standing.since, broker.started_at)
            if age_s > SYNCED_WITHIN_S and not self._had_trouble(broker):
                raise self._broken(
                    f"{broker.name} loses with its power {standing.key} {standing.entry}, which "
                    f"it had for {age_s:.0f} s"
                )
            standing.holders.discard(broker.broker_id)

    def _had_trouble(self, broker: Broker) -> bool:
        self.watch()
        at = self._trouble_at.get(broker.broker_id, -SYNCED_WITHIN_S)
        return self._world.loop.now - at < SYNCED_WITHIN_S

    def begins_anew(self, broker: Broker) -> None:
        for standing in self.standing:
            standing.holders.discard(broker.broker_id)
        self._ends.pop(broker.broker_id, None)
        self._epochs.pop(broker.broker_id, None)

    def watch(self) -> None:
        """Notes which slave follows which master, and which brokers' logs were cut.  A broker lowers offsets that are
        beyond the end of its cut log.
        """
        now = self._world.loop.now
        for broker in self._world.brokers:
            if broker.is_full or any(fault.nth <= 0 for fault in broker.disk.faults):
                self._trouble_at[broker.broker_id] = now
        for broker in self._world.serving():
            epochs = broker.live.epochs.epochs.epochs
            starts = {(epoch.epoch, epoch.id): epoch.start_offset for epoch in epochs}
            before = self._epochs.get(broker.broker_id, starts)
            end = self._ends.get(broker.broker_id, 0)
            changed = dict(before.items() ^ starts.items())
            forks = [start for start in changed.values() if start < end]
            self._epochs[broker.broker_id] = starts
            if forks:
                self._goes_on_from(broker, min(forks))
                end = 0
            self._ends[broker.broker_id] = max(end, broker.live.store.end_offset)
            for standing in self.standing:
                if not _knows(broker, standing.raised_at):
                    standing.holders.discard(broker.broker_id)
        pairs = {
            (slave.broker_id, slave.run, master.broker_id, master.run)
            for slave in self._world.serving()
            for master in self._world.serving()
            if slave.live.replication.slave.is_following() and slave.live.following.last_followed == master.address
        }
        self._following = {pair: self._following.get(pair, now) for pair in pairs}
        self._last_followed |= {(slave, run): master for slave, run, master, _ in pairs}

    def _goes_on_from(self, broker: Broker, fork: int) -> None:
        ends = self._queue_ends(broker, fork)
        for standing in self.standing:
            _, topic, queue_id = standing.key
            if ends.get((topic, queue_id), 0) < standing.entry.offset:
                standing.holders.discard(broker.broker_id)
                standing.lost_records = True

    def becomes_master(self, broker: Broker, start: int) -> None:
        """Notes that a new master lowers offsets beyond the end of their queues, and gives them a new generation."""
        self.watch()
        ends = self._queue_ends(broker, start)
        for standing in self.standing:
            if ends.get(standing.key[1:], 0) < standing.entry.offset:
                standing.lost_records = True

    def _queue_ends(self, broker: Broker, until: int) -> dict[tuple[str, int], int]:
        """Returns the ends of the queues in the log before that offset.  Queues whose records have all expired are left
        out.
        """
        records = self._promises.records(broker)
        return {(one.topic, one.queue_id): one.queue_offset + 1 for one in records if one.commit_log_offset < until}

    # --- checking -------------------------------------------------------------------------------------------------

    def answered_query(self, broker: Broker, request: Any, response: Any) -> None:
        self.watch()
        self.queried += 1
        group = request.consumer_group
        answers = {(group, e.topic, e.queue_id): Entry(e.generation, e.offset) for e in response.entries}
        for standing in self.standing:
            if standing.key[0] != group:
                continue
            if standing.key not in answers:  # the offset was deleted, which raises its generation, or is missing
                answers[standing.key] = on_disk(broker).get(standing.key, NOTHING)[0]._replace(offset=-1)
            answer = answers[standing.key]
            if not self._is_kept(broker, standing, answer) and (why := self._why(broker, standing)):
                raise self._broken(
                    f"{broker.name} says {answer} of {standing.key}, which was {standing.entry} before: {why}"
                )

    def standing_of(self, group: str) -> list[Standing]:
        return [standing for standing in self.standing if standing.key[0] == group]

    def answered_by_slaves(self, asked: list[Standing], answers: list[tuple[Broker, Any]]) -> None:
        """Checks what a client concludes from the slaves' answers while no master answers.  The client must use the
        answer of a slave that has the group's last known offset, even if the client has asked another slave first.
        """
        self.watch()
        entries = [
            {(e.topic, e.queue_id): Entry(e.generation, e.offset) for e in response.entries} for _, response in answers
        ]
        told = group_offsets.newest_offsets([_as_client_has_it(response) for _, response in answers])
        for standing in asked:
            queue = standing.key[1:]
            newest = max((found.get(queue, Entry()) for found in entries), default=Entry())
            for broker, _ in answers:
                if standing not in self.standing or broker.broker_id not in standing.holders:
                    continue
                if not self._is_kept(broker, standing, newest) or told.get(queue, newest.offset) != newest.offset:
                    self._promises.broken = self._promises.broken or self._broken(
                        f"a client that asks all slaves is told {told.get(queue)} of {standing.key}, which "
                        f"was {standing.entry} before, as {broker.name} knows"
                    )

    def _is_kept(self, broker: Broker, standing: Standing, found: Entry) -> bool:
        """Returns True if the answer is high enough, or is allowed to be lower."""
        if not _knows(broker, standing.raised_at):
            return True
        if found.generation == standing.entry.generation:
            # NB: a slave lowers offsets beyond its queues without a new generation, which only a master makes.
            return found.offset >= standing.entry.offset or (standing.lost_records and not broker.leads)
        is_raised = found.generation > standing.entry.generation
        may_be_lower = standing.lost_records or self._may_be_lower(standing.key)
        return is_raised and (may_be_lower or found.offset >= standing.entry.offset)

    def _may_be_lower(self, key: Key) -> bool:
        group, topic, _ = key
        return (group, topic) in self._world.clients.resets or topic in self._world.deleted_topics

    def _why(self, broker: Broker, standing: Standing) -> str:
        """Returns why the broker must know the offset, or an empty text if it need not."""
        world = self._world
        if broker.broker_id in standing.holders:
            return "it had it"
        if not broker.leads or self._had_trouble(broker) or not world.is_quiet:
            return ""
        for other in world.serving():
            if other.broker_id not in standing.holders or self._had_trouble(other):
                continue
            since = self._following.get((other.broker_id, other.run, broker.broker_id, broker.run), world.loop.now)
            if world.loop.now - since > ON_ITS_WAY_S:
                return f"{other.name} has it, and follows it"
            if world.could_meet(broker, other) and self._waits_for(broker, other):
                return f"{other.name} has it, and was there all the time"
        return ""

    def _waits_for(self, broker: Broker, other: Broker) -> bool:
        """Returns True if a starting master waits for the other broker's offsets (docs/replication.md, Committed
        offsets).

        The master waits for each slave of which it learns from a name server or from its own configuration.  The master
        also waits for each slave that has followed it before, because such a slave still knows the master's address.
        The master does not wait for an earlier master that it has replaced, because an earlier master sends its offsets
        when it is restarted as a slave.
        """
        if other.leads and other.role_epoch() < broker.role_epoch():
            return False
        names = self._world.names
        is_told = not names or any(name.is_up for name in names)
        return is_told or self._last_followed.get((other.broker_id, other.run)) == broker.broker_id

    def check_all(self, broker: Broker, records: Iterable[Record]) -> None:
        """Checks that no master has an offset beyond the end of the queue, and that each offset's generation was raised
        at a position in the master's own log.
        """
        if not broker.is_writable:
            return
        ends = {(one.topic, one.queue_id): one.queue_offset + 1 for one in records}
        for key, (entry, raised_at) in on_disk(broker).items():
            if not _knows(broker, raised_at):
                raise self._broken(f"{broker}: {key} {entry} was raised at {raised_at}, which is not in its history")
            if entry.offset > ends.get(key[1:], entry.offset):
                raise self._broken(f"{broker}: {key} {entry} is beyond the queue's end, {ends[key[1:]]}")

    def everybody_has_all(self) -> None:
        """Checks that all brokers have the same offsets.  Call this method when every broker follows the master."""
        self.watch()
        for broker in self._world.serving():
            table = on_disk(broker)
            for standing in self.standing:
                found = table.get(standing.key, NOTHING)[0]
                if standing.holders and not self._is_kept(broker, standing, found):
                    raise self._broken(
                        f"{broker} has the offset {found} of {standing.key}, which was {standing.entry} before"
                    )


def _as_client_has_it(response: Any) -> OffsetsAnswer:
    offsets = [(entry.topic, entry.queue_id, entry.offset) for entry in response.entries]
    return OffsetsAnswer(offsets, response.broker_id, generations=[entry.generation for entry in response.entries])


NOTHING = Entry(), (0, 0, 0)


def _is_less(one: Standing, other: Standing) -> bool:
    """Returns True if `other` makes `one` superfluous: its offset is not lower, and all brokers that have the offset of
    `one` also have that of `other`.
    """
    return one.key == other.key and one.entry <= other.entry and one.holders <= other.holders


def _knows(broker: Broker, raised_at: Point) -> bool:
    """Returns True if the position is in the broker's history: the broker's log has the position's epoch, up to the
    position's offset or further.

    An epoch that ended without a byte may have been replaced by the next epoch of the same promotion, which has the
    same start.
    """
    number, number_id, log_offset = raised_at
    if not number or not broker.serves:
        return True
    epochs = broker.live.epochs.epochs.epochs
    for epoch, after in zip(epochs, [*epochs[1:], None], strict=True):
        if (epoch.epoch, epoch.id) == (number, number_id):
            return after is None or log_offset <= after.start_offset
    return any(
        epoch.start_offset == log_offset and epoch.epoch > number and epoch.epoch // PROMOTION == number // PROMOTION
        for epoch in epochs
    )


def on_disk(broker: Broker, *, durable: bool = False) -> Table:
    """Returns the entries on the broker's disk, each with the position at which its generation was raised.  Deleted
    entries have the offset -1.
    """

    def read(path: str) -> bytes:
        return broker.disk.content(broker.root / path, durable=durable)

    def read_json(path: str) -> dict[str, Any]:
        content = read(path) or read(f"{path}.bak")
        return json.loads(content) if content.strip(b"\0") else {}

    table: Table = {}
    for name, queues in read_json("config/consumerOffset.json").get("offsetTable", {}).items():
        topic, _, group = name.partition("@")
        for queue, offset in queues.items():
            table[group, topic, int(queue)] = Entry(0, offset), (0, 0, 0)
    raised = read_json("rocketsim/offset_generations.json")
    for name, queues in raised.get("generations", {}).items():
        topic, _, group = name.partition("@")
        for queue, (generation, offset) in queues.items():
            key = group, topic, int(queue)
            written = table.get(key, NOTHING)[0].offset
            number, number_id, at = raised.get("raisedAt", {}).get(name, {}).get(queue, (0, 0, 0))
            offset = written if written >= 0 <= offset else offset
            table[key] = Entry(generation, offset), (number, number_id, at)
    names = [path.name for path in broker.disk.files_below(broker.root / "rocketsim")]
    rotated = sorted((name for name in names if re.fullmatch(r"offsets\.journal\.\d+", name)), key=_number)
    for name in (*rotated, "offsets.journal"):
        for line in whole_lines(read(f"rocketsim/{name}")):
            group, topic, queues, *replaces = json.loads(line)
            for queue, (generation, offset, *raised_at) in queues.items():
                key, entry = (group, topic, int(queue)), Entry(generation, offset)
                if replaces or entry > table.get(key, NOTHING)[0]:
                    table[key] = entry, tuple(raised_at[0]) if raised_at else (0, 0, 0)
    return table


def whole_lines(journal: bytes) -> list[bytes]:
    """Returns the JSON of each line whose checksum is right.  A line also counts if only its checksum did not reach the
    disk.  Zeros, which a power loss leaves anywhere, belong to no line.
    """
    lines = re.findall(rb'(?<![^\0\n])(?:([0-9a-f]{8}) )?(\["[^\0\n]+)\n', journal)
    return [text for checksum, text in lines if not checksum or int(checksum, 16) == zlib.crc32(text)]


def _number(name: str) -> int:
    return int(name.rpartition(".")[2])
