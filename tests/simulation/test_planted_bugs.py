"""The simulation finds bugs: each bug that is planted here breaks a promise within a few seeds."""

import functools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.records import kernels

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.broker_time import BrokerTime
from broker_service.broker.core.mastership import Mastership
from broker_service.broker.core.visibility import Visibility
from broker_service.broker.metadata.config_table import ConfigTable
from broker_service.broker.metadata.consumer_offsets import ConsumerOffsetTable
from broker_service.broker.reads.pull import PullPath
from broker_service.broker.reads.pull_range import RangePath
from broker_service.config.broker_config import BrokerConfig
from broker_service.delayed import schedule_service
from broker_service.errors import DiskFull, StoreCorrupt
from broker_service.leadership import exchange, leadership
from broker_service.leadership.following import Following
from broker_service.put_result import PutStatus
from broker_service.replication import catch_up
from broker_service.replication.acknowledgement import Acknowledgements
from broker_service.replication.catch_up import LogState
from broker_service.replication.epochs import EpochList
from broker_service.replication.follower import Follower
from broker_service.replication.handshake import epoch_list
from broker_service.replication.slave import ReplicationSlave
from broker_service.store import batch, index, offset_journal, recovery, retention
from broker_service.store.commit_log import CommitLog
from broker_service.store.flushed_offset import FlushedOffset
from broker_service.store.index import Index
from broker_service.store.index_keys import index_keys
from broker_service.store.message_store import MessageStore
from broker_service.store.offset_journal import OffsetJournal
from broker_service.store.queue_reader import QueueReader
from broker_service.store.queue_table import QueueTable
from rocketsim_client import group_offsets
from tests.broker import test_consumer_offsets
from tests.simulation import stories
from tests.simulation.promises import PromiseBroken
from tests.simulation.world import World, plan
from tests.store import test_flush, test_full_disk, test_retention

idle_queue_goes_on = (
    test_retention.test_the_offsets_of_an_idle_queue_go_on_after_its_messages_have_expired_and_the_broker_was_killed
)
SEEDS = 20  # the most seeds to try, beginning near a seed that shows the bug
SYNC_MASTER_WITH_TWO_SLAVES = 161
SYNC_MASTER_WITH_TWO_SLAVES_AND_NO_NAME_SERVER = 13
SYNC_MASTER_SYNC_FLUSH = 4
ASYNC_MASTER_SYNC_FLUSH = 2
SYNC_MASTER_ASYNC_FLUSH = 5  # a seed in which a power loss takes the commits
ASYNC_MASTER_ASYNC_FLUSH = 3
WITH_RETENTION = 7  # a seed with SYNC_MASTER, SYNC_FLUSH and retention
STEPS = 150


def ack_early(plant):
    """The slave acknowledges what it has received, not what it has stored and synced."""
    plant(Follower, "ack", lambda self, _: pb.Ack(ack_offset=self._expected_offset, epoch=self._epochs.epochs.last))


def skip_the_sync(plant):
    """A flush says that it is done although it has not synced."""
    plant(CommitLog, "sync", lambda *_, **__: None)


def believe_the_page_cache(plant):
    """A start counts everything that it finds above the flushed offset as flushed, without a sync."""
    plant(recovery, "_written_again", lambda log, scan, begin, syncs: iter(scan))


def merge_offsets_backwards(plant):
    """The other broker's offsets replace the broker's own, as in RocketMQ."""

    def merge(self, changes):
        for group, topic, entries in changes:
            self._set(group, topic, dict(entries))
        return 0

    plant(ConsumerOffsetTable, "merge", merge)


def lower_what_another_slave_may_bring(plant):
    """A master that still waits for slaves takes over offsets only up to the present ends of its queues."""
    plant(exchange, "Standing", SimpleNamespace(WAITING=None))


def forget_commits_behind_zeros(plant):
    """A start reads the journal of offsets only up to the first zeros, but appends after the last line."""
    honest = offset_journal._lines

    def lines(files, path):
        there, end = honest(files, path)
        return there[: files.read(path).partition(b"\0")[0].count(b"\n")], end

    plant(offset_journal, "_lines", lines)


def answer_commits_unwritten(plant):
    """A commit is answered although it is only in memory, unless it is the first line of the journal."""
    honest = OffsetJournal.append
    plant(OffsetJournal, "append", lambda self, *args, **more: self._end or honest(self, *args, **more))


def cut_without_zero_fill(plant):
    """Records behind the new end stay in the preallocated file, and the next recovery finds them."""
    whole_cut = CommitLog.cut

    def cut(self, offset, **more):
        self.zero = lambda begin, end, **_: begin
        try:
            return whole_cut(self, offset, **more)
        finally:
            del self.zero

    plant(CommitLog, "cut", cut)


def accept_a_stale_epoch(plant):
    """Neither master nor slave refuses the connection if the slave knows a newer epoch than the master."""
    honest_plan = catch_up.plan

    def plan(master, slave, *, takes_writes):
        known = tuple(epoch for epoch in slave.epochs.epochs if epoch.epoch <= master.epochs.last)
        forgetful = LogState(EpochList(known), slave.min_offset, slave.end_offset)
        return honest_plan(master, forgetful, takes_writes=takes_writes)

    plant(catch_up, "plan", plan)
    plant(Follower, "_checked_epochs", lambda self, reply: epoch_list(reply.epochs))


def answer_commits_early(plant):
    """A commit is answered before the slave has it."""

    async def wait_for_commit(*_):
        return PutStatus.PUT_OK

    plant(Acknowledgements, "wait_for_commit", wait_for_commit)


def count_promotions_as_starts(plant):
    plant(EpochList, "next", lambda self, *, promotion, above=0: self.last + 1)


def believe_the_first_answer(plant):
    """A master relies on one name server, which may have restarted and may not know that the master was replaced."""
    honest = Mastership.__init__
    plant(Mastership, "__init__", lambda self, *args, **more: honest(self, *args, **more | {"others": ()}))


def end_where_the_index_has_no_room(plant):
    def work(self, max_bytes):
        stop = self.position + min(self.behind, max_bytes)
        while self.position < stop:
            self._step(stop)

    plant(Index, "work", work)


def a_cut_marks_nothing(plant):
    """When the sync of a cut fails, the next flush does not repeat that sync."""

    def marks_nothing(honest):
        def cut(self, *args):
            self.disk.stop = lambda reason: None
            try:
                return honest(self, *args)
            finally:
                del self.disk.stop

        return cut

    for name in ("truncate", "start_over"):
        plant(MessageStore, name, marks_nothing(getattr(MessageStore, name)))


def offsets_begin_anew(plant):
    """Files and summary forget the offsets of a queue whose records are all gone."""
    plant(QueueTable, "resume_offsets", lambda self: self._remembered.clear())


def believe_every_generation(plant):
    plant(ConsumerOffsetTable, "may_bring", lambda self, entry: True)


def take_an_unreadable_flushed_offset_for_none(plant):
    """A broker that cannot read its flushed offset starts as if it had never flushed: it relies on the checkpoint, and
    cuts off damage after it.
    """
    honest = FlushedOffset.load

    def load(self, *, log_is_empty):
        try:
            return honest(self, log_is_empty=log_is_empty)
        except StoreCorrupt:
            return None

    plant(FlushedOffset, "load", load)


def cut_at_any_damage(plant):
    """A start cuts the log even below the flushed offset."""
    plant(recovery, "_expect", lambda log, scan, flushed: None)


def take_what_comes_unchecked(plant):
    """A slave checks only the sizes of what its master sends."""
    plant(kernels, "compiled", None)
    plant(batch, "FEW", 0)
    plant(batch, "count_valid", lambda records, *_, **__: (len(records), ""))


def delete_what_is_young(plant):
    plant(retention, "expired_files", lambda timestamps, *_: len(list(timestamps)) and 1)


def forget_what_was_delivered(plant):
    """A start does not read the log for the deliveries that came after the positions were last saved."""
    plant(schedule_service, "replayed_positions", lambda *_: iter(()))


def deliver_early(plant):
    plant(BrokerConfig, "delay_levels_ms", property(lambda self: [500, 500]))


def believe_the_wall_clock(plant):
    plant(BrokerTime, "now_ms", lambda self: self._clocks.now_ms())


def expire_by_the_wall_clock(plant):
    plant(BrokerTime, "expiry_ms", lambda self: self._clocks.now_ms())


def expire_by_the_clock_of_a_slave(plant):
    """A slave deletes old files by its own clock, and not where its master's log begins."""
    expire_by_the_wall_clock(plant)
    plant(ReplicationSlave, "master_min_offset", None)


def keep_what_the_master_lacks(plant):
    """A slave sends no offsets to a returning master that lacks them."""
    plant(ConsumerOffsetTable, "to_hand_back", lambda self: iter(()))


def answer_before_the_slave_has(plant):
    plant(Broker, "check_answers_for_offsets", lambda self: None)


def believe_the_first_slave(plant):
    """A client takes the first answer of a slave while no master answers."""
    honest = group_offsets.newest_offsets
    plant(group_offsets, "newest_offsets", lambda answers: honest(answers[:1]))


def promise_and_forget(plant):
    """A slave answers a candidate for promotion even while it follows a master, and acknowledges the old master after
    that.
    """
    plant(Following, "address", property(lambda self: ""))
    plant(Follower, "_check_promise", lambda self, masters_epoch: None)


def refuse_to_start_without_room(plant):
    honest = MessageStore.open

    def open_store(config, now_ms, files):
        if files.disk_usage(config.root).used_percent == 100:
            raise DiskFull(f"opening {config.root}: no room on the disk")
        return honest(config, now_ms, files)

    plant(MessageStore, "open", open_store)


def take_messages_although_fenced(plant):
    plant(Mastership, "check_writable", lambda *_, **__: None)


def show_the_logs_end(plant):
    """Readers see what no slave has yet."""
    honest = Visibility.changed
    plant(Visibility, "changed", lambda self, visible_offset: honest(self, None))


def tell_nobody_of_what_is_gone(plant):
    """A consumer has read records that a promoted slave lacks, and continues at its offset without being told."""
    plant(PullPath, "_truncated", lambda *_: None)


def give_ranges_whatever_was_planned(plant):
    plant(RangePath, "_within", lambda self, wanted, ends: wanted)


def pass_over_what_a_range_has(plant):
    """A range continues one message too late."""
    honest = RangePath._frame

    def frame(self, *args):
        made, index, offset = honest(self, *args)
        segments = [replace(one, next_offset=one.next_offset + (one.count > 1)) for one in made.segments]
        return replace(made, segments=segments), index, offset

    plant(RangePath, "_frame", frame)


def end_a_queue_early(plant):
    honest = QueueReader.bounds

    def bounds(self, *queue):
        low, high = honest(self, *queue)
        return low, max(low, high - 1)

    plant(QueueReader, "bounds", bounds)


def find_what_is_younger(plant):
    """A search by time returns the message after the right one."""
    honest = QueueReader.search_offset_by_time
    plant(QueueReader, "search_offset_by_time", lambda self, *args: honest(self, *args) + 1)


def leave_a_key_out(plant):
    """The index lacks the first key of each batch."""
    plant(index, "index_keys", lambda records: index_keys(records)[1:])


def keep_a_table_of_its_own(plant):
    """A slave does not take over its master's topics and groups."""
    plant(ConfigTable, "adopt", lambda *_, **__: set())


def full_disks(tmp_path):
    for room in range(12):
        test_full_disk.test_a_store_reads_ticks_and_flushes_on_a_full_disk(room)


@pytest.mark.parametrize(
    "bug, named",
    [
        (a_cut_marks_nothing, lambda _: test_flush.test_a_failed_sync_in_a_cut_stops_the_store("truncate")),
        (a_cut_marks_nothing, lambda _: test_flush.test_a_failed_sync_in_a_cut_stops_the_store("start_over")),
        (end_where_the_index_has_no_room, full_disks),
        (
            offsets_begin_anew,
            lambda _: idle_queue_goes_on(test_retention.lose_the_queue, 20, "kill"),
        ),
        (
            believe_every_generation,
            test_consumer_offsets.test_of_a_generation_of_another_history_nothing_stays_on_a_slave,
        ),
    ],
)
def test_a_planted_bug_fails_the_test_that_is_named_for_it(monkeypatch, tmp_path, bug, named):
    bug(monkeypatch.setattr)
    with pytest.raises((AssertionError, OSError, pytest.fail.Exception)):
        named(tmp_path)


@functools.cache
def keeps_every_promise(seed, story):
    """Checks that the story breaks no promise without a bug.  One run of this check serves all bugs that the same story
    shows.
    """
    World(seed).play(story)


@pytest.mark.parametrize(
    "bug, seed, story, broken_promise",
    [
        (
            ack_early,
            SYNC_MASTER_SYNC_FLUSH,
            stories.a_slave_receives_more_while_it_syncs,
            "is OK, but in no slave's disk",
        ),
        (
            believe_the_page_cache,
            ASYNC_MASTER_SYNC_FLUSH,
            stories.a_sync_fails_the_broker_is_restarted_and_loses_its_power,
            "ended by itself: StoreCorrupt|is gone from",
        ),
        (
            cut_without_zero_fill,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_tail_is_cut_off_and_the_slave_dies,
            "differ below|do not come into step",
        ),
        (
            merge_offsets_backwards,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.offsets_are_committed_on_both_sides_of_a_cut,
            "went back from",
        ),
        (
            lower_what_another_slave_may_bring,
            SYNC_MASTER_WITH_TWO_SLAVES_AND_NO_NAME_SERVER,
            stories.a_slave_that_is_behind_hands_back_an_offset_before_another_one_brings_its_records,
            "says .* before: it had it",
        ),
        (
            forget_commits_behind_zeros,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_slave_goes_on_behind_zeros_in_its_journal,
            "offset .* went back from",
        ),
        (
            answer_commits_unwritten,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_slave_goes_on_behind_zeros_in_its_journal,
            "is answered with .*, and its disk has",
        ),
        (
            accept_a_stale_epoch,
            SYNC_MASTER_WITH_TWO_SLAVES,
            stories.a_slave_comes_to_a_master_of_the_past,
            "of an older epoch|went back from epoch",
        ),
        (
            answer_commits_early,
            SYNC_MASTER_WITH_TWO_SLAVES,
            stories.a_commit_reaches_no_slave,
            "is OK, and on no slave",
        ),
        (
            believe_the_first_slave,
            SYNC_MASTER_WITH_TWO_SLAVES_AND_NO_NAME_SERVER,
            stories.a_commit_is_on_one_slave_and_the_other_one_is_asked_first,
            "that asks all slaves is told 1 of",
        ),
        (
            promise_and_forget,
            SYNC_MASTER_WITH_TWO_SLAVES_AND_NO_NAME_SERVER,
            stories.a_slave_is_promoted_while_the_other_one_comes_back_to_the_old_master,
            "is OK, although broker-1, which does not have it, was promoted .* nobody forced that",
        ),
        (
            promise_and_forget,
            SYNC_MASTER_WITH_TWO_SLAVES_AND_NO_NAME_SERVER,
            stories.a_slave_is_to_be_promoted_while_the_other_one_follows_the_master,
            "is OK, although broker-1, which does not have it, was promoted .* nobody forced that",
        ),
        (
            count_promotions_as_starts,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_master_of_the_past_starts_twice,
            "outranks with epoch",
        ),
        (
            believe_the_first_answer,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.name_servers_forget_who_was_replaced,
            "becomes master with epoch .*, and .* was there",
        ),
        (
            take_an_unreadable_flushed_offset_for_none,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_broker_loses_its_note_of_what_is_flushed_and_a_bit_of_that,
            "its note that .* is flushed cannot be read",
        ),
        (
            cut_at_any_damage,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_broker_loses_a_bit_of_what_is_flushed,
            "has cut its log at .*, below the flushed offset",
        ),
        (
            take_what_comes_unchecked,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_master_loses_a_bit_of_what_its_slave_does_not_have,
            "the log cannot be replayed",
        ),
        (
            end_where_the_index_has_no_room,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_disk_fills_up_while_messages_with_keys_come,
            "ended by itself",
        ),
        (
            refuse_to_start_without_room,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_broker_is_killed_on_a_full_disk,
            "ended by itself: DiskFull",
        ),
        (
            delete_what_is_young,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.the_log_grows_over_several_files,
            "has deleted the message at .*, which is 0 minutes old",
        ),
        (
            forget_what_was_delivered,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_master_dies_behind_a_delivery,
            "is delivered twice",
        ),
        (
            deliver_early,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_master_dies_behind_a_delivery,
            "ms before its time",
        ),
        (
            believe_the_wall_clock,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_clock_is_put_back_behind_a_delayed_message,
            "store times fall by",
        ),
        (
            expire_by_the_wall_clock,
            WITH_RETENTION,
            stories.the_clock_of_a_master_is_ahead_for_a_while,
            "has deleted",
        ),
        (
            expire_by_the_clock_of_a_slave,
            SYNC_MASTER_SYNC_FLUSH,
            stories.the_clocks_of_slaves_are_ahead_for_a_while,
            "has deleted",
        ),
        (
            keep_what_the_master_lacks,
            SYNC_MASTER_ASYNC_FLUSH,
            stories.a_master_loses_what_its_slave_has_acknowledged,
            "says .* before: .* has it, and",
        ),
        (
            answer_before_the_slave_has,
            SYNC_MASTER_ASYNC_FLUSH,
            stories.a_master_loses_what_its_slave_has_acknowledged,
            "says .* before: .* has it, and was there",
        ),
        (
            believe_every_generation,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_replaced_master_resets_offsets,
            "which is not in its history",
        ),
        (
            take_messages_although_fenced,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_producer_sends_to_a_master_that_was_replaced,
            "takes a message in epoch .*, and .* was there",
        ),
        (
            leave_a_key_out,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_producer_sends_to_a_master_that_was_replaced,
            "key .* is not found at",
        ),
        (
            keep_a_table_of_its_own,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_clock_is_put_back_behind_a_delayed_message,
            "do not come into step again: .* has .*, and",
        ),
        (
            show_the_logs_end,
            SYNC_MASTER_ASYNC_FLUSH,
            stories.readers_ask_for_what_no_slave_has,
            "gives .*, and slaves have acknowledged up to",
        ),
        (
            tell_nobody_of_what_is_gone,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_consumer_reads_what_a_promoted_slave_has_not,
            "answers .*, and lacks the record that was read at",
        ),
        (
            give_ranges_whatever_was_planned,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_consumer_reads_what_a_promoted_slave_has_not,
            "gives another record at .* than was there when .* was planned",
        ),
        (
            pass_over_what_a_range_has,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_consumer_reads_what_a_promoted_slave_has_not,
            "and goes on at",
        ),
        (
            end_a_queue_early,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_consumer_reads_what_a_promoted_slave_has_not,
            "says .*, although it has|gives no records, with status .*, although it has",
        ),
        (
            find_what_is_younger,
            ASYNC_MASTER_ASYNC_FLUSH,
            stories.a_consumer_reads_what_a_promoted_slave_has_not,
            "finds offset",
        ),
    ],
)
def test_a_story_shows_a_planted_bug(monkeypatch, bug, seed, story, broken_promise):
    keeps_every_promise(seed, story)
    bug(monkeypatch.setattr)
    with pytest.raises(PromiseBroken, match=broken_promise):
        World(seed).play(story)


@pytest.mark.parametrize(
    "bug, first, broken_promises",
    [
        (skip_the_sync, 0, "is OK, but not on .* disk|is OK, but in no slave's disk|below the flushed offset"),
    ],
)
def test_a_planted_bug_is_caught(monkeypatch, bug, first, broken_promises):
    bug(monkeypatch.setattr)
    with pytest.raises(PromiseBroken, match=broken_promises) as caught:
        for seed in range(first, first + SEEDS):
            World(seed).run(plan(seed, STEPS))
    assert f"seed {seed}, " in str(caught.value)


def promote_the_slave_that_lags(world):
    """The first slave has all acknowledged messages, and the second one was away.  The master dies, and the second
    slave is promoted.
    """
    master, slave, lagging = world.brokers
    world.loop.run_until(lambda: all(broker.live.replication.slave.is_following() for broker in (slave, lagging)), 20.0)
    lagging.kill()
    world.loop.run_for(1.0)
    for number in range(5):
        world.clients.send(master, random.Random(number))
    world.loop.run_for(2.0)
    master.kill()
    lagging.start()
    world.loop.run_for(30.0)
    world.clients.promote(lagging, force=False)
    world.loop.run_for(20.0)
    assert world.promises.ok == 5


def test_a_promotion_that_leaves_a_slaves_messages_behind_is_refused_or_caught(monkeypatch):
    world = World(SYNC_MASTER_WITH_TWO_SLAVES)
    world.play(promote_the_slave_that_lags)
    assert not any(broker.is_writable for broker in world.brokers)
    monkeypatch.setattr(leadership, "objections", lambda *_: [])
    with pytest.raises(PromiseBroken, match=r"becomes master .* without .*, and nobody forced the promotion"):
        World(SYNC_MASTER_WITH_TWO_SLAVES).play(promote_the_slave_that_lags)
