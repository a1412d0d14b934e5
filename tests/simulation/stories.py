"""Stories: fixed sequences of crashes, cuts and operators' actions that a seed would rarely produce.

`World.play` plays a story, and checks the promises during it and at its end.
"""

import errno
import random
from pathlib import Path

from tests.simulation.broker import LOG_FILE, Broker
from tests.simulation.clients import TOPICS
from tests.simulation.world import World

DAY_MS = 86_400_000


def send(world: World, broker: Broker, count: int) -> None:
    for number in range(count):
        world.clients.send(broker, random.Random(number))
        world.pass_time(0.2)


def follow(world: World, *slaves: Broker) -> None:
    assert world.loop.run_until(lambda: all(slave.live.replication.slave.is_following() for slave in slaves), 20.0)


def commit(world: World, broker: Broker, offset: int) -> None:
    for topic in TOPICS:
        world.clients.commit_offset(broker, "g", topic, 0, offset)


def cut(world: World, one: str, other: str) -> None:
    world.wire.cut(one, other)
    world.wire.cut(other, one)


def pair(world: World, messages: int) -> tuple[Broker, Broker]:
    """Sends `messages` messages to a master.  Returns this master and its first slave, which follows the master."""
    master, slave = world.brokers[:2]
    follow(world, slave)
    send(world, master, messages)
    return master, slave


def pair_alone(world: World, messages: int) -> tuple[Broker, Broker]:
    """Returns the same as `pair`, with all other slaves stopped."""
    for other in world.brokers[2:]:
        other.kill()
    return pair(world, messages)


def until_writable(world: World, broker: Broker) -> None:
    assert world.loop.run_until(lambda: broker.is_writable, 20.0)


def promote(world: World, broker: Broker) -> None:
    world.promote_by_force(broker)
    until_writable(world, broker)


def replace(world: World, old: Broker, new: Broker) -> None:
    """Kills the old master, and promotes another broker by force."""
    if old.is_up:
        old.kill()
    world.pass_time(1.0)
    promote(world, new)
    world.pass_time(1.0)


def cut_off(world: World, broker: Broker, *others: Broker) -> None:
    """Cuts the broker off from the others and from all name servers."""
    for host in (*(other.host for other in others), *(server.host for server in world.names)):
        cut(world, broker.host, host)


def start_with_damaged_log(world: World, master: Broker) -> Path:
    """Flips a bit of the first log file while the master is down, and starts the master.  Returns the file."""
    path = master.root / "commitlog" / f"{0:020d}"
    world.flip(master, path, 700, 5)
    master.start()
    world.pass_time(5.0)
    return path


def a_tail_is_cut_off_and_the_slave_dies(world: World) -> None:
    """The master has records that its slave does not have.  After the slave's promotion, the old master returns as a
    slave, cuts the records that the new master does not have from its log, and dies.
    """
    old, new = pair(world, 3)
    new.kill()
    send(world, old, 8)
    old.kill()
    new.start()
    world.pass_time(2.0)
    replace(world, old, new)
    old.make_slave()
    old.start()
    world.pass_time(5.0)
    old.kill()
    old.start()
    world.pass_time(5.0)
    send(world, new, 4)
    world.heal()


def offsets_are_committed_on_both_sides_of_a_cut(world: World) -> None:
    """The master has a higher offset than the slave when the slave sends its offset to the master."""
    master, slave = pair(world, 20)
    cut(world, master.host, slave.host)
    world.pass_time(5.0)
    for broker, offset in ((slave, 1), (master, 2)):
        commit(world, broker, offset)
    world.pass_time(5.0)
    world.heal()


def a_slave_comes_to_a_master_of_the_past(world: World) -> None:
    """A replaced master returns after the name servers have restarted, and a slave of its successor connects to it."""
    past, successor, slave = world.brokers[:3]
    follow(world, successor, slave)
    send(world, past, 3)
    replace(world, past, successor)
    follow(world, slave)
    world.pass_time(3.0)
    for broker in (successor, slave):
        broker.kill()
    for server in world.names:
        server.kill()
        server.start()
    past.start()
    until_writable(world, past)
    cut_off(world, slave)
    slave.settings["ha_master_address"] = past.address
    slave.start()
    world.pass_time(5.0)


def a_slave_is_promoted_while_the_other_one_comes_back_to_the_old_master(world: World) -> None:
    """Both slaves have lost their master, which is alive.  An operator promotes one slave without force, while the
    other slave reaches the master again.
    """
    master, promoted, other = world.brokers
    follow(world, promoted, other)
    send(world, master, 3)
    for host in (promoted.host, other.host, *(server.host for server in world.names)):
        cut(world, master.host, host)
    world.pass_time(25.0)
    world.clients.promote(promoted, force=False)
    assert world.loop.run_until(lambda: promoted.is_writable, 20.0)
    world.wire.mend(master.host, other.host)
    world.pass_time(6.0)
    send(world, master, 3)
    world.pass_time(3.0)
    world.heal()


def a_slave_is_to_be_promoted_while_the_other_one_follows_the_master(world: World) -> None:
    """An operator tries to promote a slave without force.  The slave cannot reach the master."""
    master, candidate, other = world.brokers
    follow(world, candidate, other)
    send(world, master, 3)
    for host in (candidate.host, *(server.host for server in world.names)):
        cut(world, master.host, host)
    world.pass_time(25.0)
    world.clients.promote(candidate, force=False)
    world.pass_time(5.0)
    send(world, master, 3)
    world.pass_time(3.0)
    world.heal()


def a_commit_reaches_no_slave(world: World) -> None:
    """One slave is down and the other is cut off when the commit comes.  After the commit, the master dies, and the
    slave that was cut off is promoted.
    """
    master, slave, *others = world.brokers
    follow(world, slave, *others)
    send(world, master, 20)
    for other in others:
        other.kill()
    world.pass_time(12.0)
    cut(world, master.host, slave.host)
    commit(world, master, 2)
    world.pass_time(6.0)
    replace(world, master, slave)
    world.heal()


def a_commit_is_on_one_slave_and_the_other_one_is_asked_first(world: World) -> None:
    """The other slave is cut off from the master, and the master dies after the commit."""
    master, behind, ahead = world.brokers
    follow(world, behind, ahead)
    send(world, master, 20)
    commit(world, master, 1)
    world.pass_time(3.0)
    cut(world, master.host, behind.host)
    world.pass_time(25.0)
    commit(world, master, 2)
    world.pass_time(3.0)
    assert world.promises.offsets.committed > len(TOPICS)
    master.kill()
    world.clients.query_name("g")
    world.pass_time(6.0)
    world.heal()


def a_slave_that_is_behind_hands_back_an_offset_before_another_one_brings_its_records(world: World) -> None:
    """A power loss takes the end of the master's log, which a consumer has read.  The consumer commits at a slave that
    lacks the lost records, and the returning master reaches that slave first.
    """
    master, behind, ahead = world.brokers
    follow(world, behind, ahead)
    send(world, master, 4)
    cut(world, master.host, behind.host)
    world.pass_time(1.0)
    for number in range(12):
        world.clients.send(master, random.Random(number))
    assert world.loop.run_until(lambda: ahead.live.store.end_offset > 6000, 2.0)
    cut(world, master.host, ahead.host)
    master.lose_power()
    world.pass_time(0.5)
    commit(world, behind, 6)
    world.pass_time(0.5)
    for one, other in ((master, behind), (behind, master)):
        world.wire.mend(one.host, other.host)
    master.start()
    world.pass_time(2.0)
    assert master.live.store.end_offset < ahead.live.store.end_offset
    world.heal()


def a_slave_goes_on_behind_zeros_in_its_journal(world: World) -> None:
    """While the master is down, a power loss takes the first of the slave's last commits, but not the others.  After
    the power loss, the slave takes another commit, and is killed before its offsets are in another file.
    """
    master, slave = pair_alone(world, 20)
    master.kill()
    world.pass_time(2.0)
    for offset in (1, 2):
        commit(world, slave, offset)
        world.pass_time(0.1)
    slave.kill()
    journal = slave.root / "rocketsim" / "offsets.journal"
    first = slave.disk.content(journal, durable=False).index(b"\n") + 1
    slave.disk.overwrite(journal, 0, bytes(first))
    slave.start()
    world.pass_time(0.3)
    commit(world, slave, 3)
    world.pass_time(0.1)
    assert slave.disk.content(journal, durable=False).startswith(bytes(first))
    slave.kill()
    slave.start()
    world.pass_time(0.3)
    query_for(world, slave, 0.1)
    world.heal()


def a_master_of_the_past_starts_twice(world: World) -> None:
    """The replaced master starts alone, so no name server and no slave tells it that it was replaced."""
    past, successor = pair(world, 3)
    replace(world, past, successor)
    send(world, successor, 3)
    cut_off(world, past, successor)
    servers, past.settings["namesrv_addr"] = past.settings["namesrv_addr"], ""
    for _ in range(2):
        past.start()
        until_writable(world, past)
        world.pass_time(1.0)
        past.kill()
    past.settings["namesrv_addr"] = servers
    world.heal()


def name_servers_forget_who_was_replaced(world: World) -> None:
    """The name servers restart together with a replaced master, and the master's successor cannot reach that master."""
    past, successor = pair(world, 3)
    replace(world, past, successor)
    world.pass_time(8.0)
    cut(world, past.host, successor.host)
    for server in world.names:
        server.kill()
        server.start()
    past.start()
    world.pass_time(10.0)
    world.heal()


def a_disk_fills_up_while_messages_with_keys_come(world: World) -> None:
    master, slave = pair(world, 3)
    for broker in (master, slave):
        broker.fill()
    for _ in range(4):
        send(world, master, 10)
        world.pass_time(5.0)
    world.heal()


def query_for(world: World, broker: Broker, seconds: float) -> None:
    """Queries offsets again and again for `seconds`, also while the broker starts."""
    until = world.loop.now + seconds
    while world.loop.now < until:
        if broker.is_up:
            world.clients.query(broker, "g")
        world.pass_time(0.02)


def the_log_grows_over_several_files(world: World) -> None:
    pair(world, 30)
    world.pass_time(12.0)


def a_master_dies_behind_a_delivery(world: World) -> None:
    master, slave = world.brokers[:2]
    follow(world, slave)
    for number in range(3):
        world.clients.send(master, random.Random(number), delay=1)
        world.pass_time(0.2)
    world.pass_time(1.0)
    master.kill()
    master.start()
    world.pass_time(8.0)
    world.heal()
    assert len(world.promises.queues.delivered) == 3


def a_clock_is_put_back_behind_a_delayed_message(world: World) -> None:
    master, slave = world.brokers[:2]
    follow(world, slave)
    world.clients.send(master, random.Random(0), delay=2)
    world.pass_time(0.2)
    world.move_clock(master, -3_600_000)
    world.clients.send(master, random.Random(1), delay=2)
    world.pass_time(4.0)
    world.heal()
    assert len(world.promises.queues.delivered) == 2


def the_clock_of_a_master_is_ahead_for_a_while(world: World) -> None:
    pair(world, 60)
    be_ahead_for_a_while(world, world.brokers[:1])


def the_clocks_of_slaves_are_ahead_for_a_while(world: World) -> None:
    pair(world, 60)
    be_ahead_for_a_while(world, world.brokers[1:])


def be_ahead_for_a_while(world: World, brokers: list[Broker]) -> None:
    """Sets the brokers' clocks a hundred days ahead for a minute.  Every log has several files, and retention may
    delete files at any hour, but must not delete any file meanwhile.
    """
    follow(world, *world.brokers[1:])
    assert all(broker.live.store.end_offset > 2 * LOG_FILE for broker in world.brokers)
    for broker in brokers:
        world.move_clock(broker, 100 * DAY_MS)
    world.pass_time(60.0)
    for broker in brokers:
        world.move_clock(broker, -100 * DAY_MS)
    world.heal()
    assert all(broker.live.store.min_offset == 0 for broker in world.brokers)


def a_clock_that_was_ahead_is_right_after_a_restart(world: World) -> None:
    """New store times are later than those in the log, also on a promoted slave."""
    master, slave = pair(world, 2)
    world.move_clock(master, 3_600_000)
    world.clients.send(master, random.Random(0), delay=2)
    world.pass_time(0.2)
    master.kill()
    master.start()
    until_writable(world, master)
    world.clients.send(master, random.Random(1), delay=2)
    send(world, master, 3)
    master.kill()
    world.move_clock(master, -7_200_000)
    master.start()
    until_writable(world, master)
    follow(world, slave)
    world.clients.send(master, random.Random(2), delay=2)
    send(world, master, 3)
    replace(world, master, slave)
    world.clients.send(slave, random.Random(3), delay=2)
    send(world, slave, 3)
    world.pass_time(5.0)
    world.heal()
    assert len(world.promises.queues.delivered) == 4


def a_master_loses_what_its_slave_has_acknowledged(world: World) -> None:
    """A power loss takes the commits of the master's last moment.  The master is queried as soon as it answers."""
    master, *slaves = world.brokers
    follow(world, *slaves)
    send(world, master, 20)
    world.pass_time(8.0)
    commit(world, master, 2)
    world.pass_time(0.2)
    master.lose_power()
    master.start()
    query_for(world, master, 3.0)
    world.pass_time(12.0)
    query_for(world, master, 0.1)
    world.heal()


def a_replaced_master_resets_offsets(world: World) -> None:
    """The master does not know that it was replaced, and has records that no other broker has."""
    past, successor = pair(world, 20)
    commit(world, past, 2)
    world.pass_time(3.0)
    cut_off(world, past, successor)
    world.pass_time(1.0)
    promote(world, successor)
    send(world, past, 3)
    for topic in TOPICS:
        world.clients.reset_offset(past, "g", topic, 0)
    world.pass_time(3.0)
    world.heal()


def a_broker_is_killed_on_a_full_disk(world: World) -> None:
    _, slave = pair(world, 3)
    slave.fill()
    slave.kill()
    slave.start()
    world.pass_time(5.0)
    world.heal()


def a_broker_loses_its_note_of_what_is_flushed_and_a_bit_of_that(world: World) -> None:
    """The broker refuses to start and names the file.  When both files are restored, the broker starts."""
    master, _ = pair(world, 10)
    world.pass_time(1.0)
    master.kill()
    world.damage_flushed(master, 3)
    start_with_damaged_log(world, master)
    assert "rocketsim/flushed is damaged" in master.ended
    world.heal()


def a_broker_loses_a_bit_of_what_is_flushed(world: World) -> None:
    """The broker refuses to start, and names file and offset.  When the file is restored, the broker starts."""
    master, _ = pair(world, 10)
    world.pass_time(1.0)
    master.kill()
    path = start_with_damaged_log(world, master)
    assert f"{path} is damaged at log offset" in master.ended
    world.heal()


def a_master_loses_a_bit_of_what_its_slave_does_not_have(world: World) -> None:
    """The slave stores nothing of the damaged record, and acknowledges nothing after it."""
    master, slave = pair(world, 3)
    slave.kill()
    end = master.live.store.end_offset
    send(world, master, 5)
    begin, record_end = end, end + int.from_bytes(master.log(end, end + 4), "big")
    assert record_end // LOG_FILE == begin // LOG_FILE
    path = master.root / "commitlog" / f"{begin // LOG_FILE * LOG_FILE:020d}"
    world.flip(master, path, begin % LOG_FILE + 90, 5)
    slave.start()
    world.pass_time(5.0)
    assert slave.live.store.end_offset == end
    world.heal()
    assert slave.live.store.end_offset > record_end


def a_slave_receives_more_while_it_syncs(world: World) -> None:
    """With SYNC_MASTER and SYNC_FLUSH, an OK means that the slave has synced the message."""
    master, _ = pair_alone(world, 0)
    for number in range(40):
        world.clients.send(master, random.Random(number))
        world.loop.run_for(0.0015)
    world.pass_time(5.0)
    assert world.promises.ok == 40
    world.heal()


def a_sync_fails_the_broker_is_restarted_and_loses_its_power(world: World) -> None:
    """The start must sync the contents of the page cache before it counts them as flushed."""
    master, _ = pair(world, 3)
    master.disk.fail("fdatasync", errno.EIO, matching="commitlog")
    send(world, master, 3)
    master.kill()
    master.disk.heal()
    master.start()
    until_writable(world, master)
    send(world, master, 3)
    master.lose_power()
    master.start()
    world.pass_time(10.0)
    world.heal()


def readers_ask_for_what_no_slave_has(world: World) -> None:
    """The messages are sent when the slave has just been cut off, and the master believes that the
    slave still follows.
    """
    master, slave = pair_alone(world, 5)
    world.pass_time(1.0)
    cut(world, master.host, slave.host)
    send(world, master, 5)
    for number in range(20):
        world.clients.pull(master, random.Random(number))
    world.pass_time(1.0)
    assert world.promises.read > 0
    world.heal()


def a_consumer_reads_what_a_promoted_slave_has_not(world: World) -> None:
    """A consumer and a planned range continue at the new master, whose queues are as long as those of the old master,
    but have different records.
    """
    old, new = world.brokers[:2]
    follow(world, new)
    send(world, old, 3)
    new.kill()
    send(world, old, 12)
    read(world, old)
    old.kill()
    new.start()
    world.pass_time(2.0)
    replace(world, old, new)
    send(world, new, 30)
    read(world, new)
    world.heal()
    assert world.promises.reads.judged > 4


def read(world: World, broker: Broker) -> None:
    """Reads every queue from several offsets, among them where the last read ended, and all planned ranges."""
    for number in range(20):
        world.clients.pull(broker, random.Random(number))
        world.clients.pull_range(broker, random.Random(number))
        world.clients.look(broker, random.Random(number))
        world.pass_time(0.2)


def a_producer_sends_to_a_master_that_was_replaced(world: World) -> None:
    past, successor = world.brokers[:2]
    follow(world, successor)
    send(world, past, 3)
    replace(world, past, successor)
    send(world, successor, 3)
    world.pass_time(8.0)
    past.start()
    world.pass_time(3.0)
    send(world, past, 3)
    world.heal()


def a_slave_that_was_away_shows_what_its_master_has_lost(world: World) -> None:
    """A power loss takes the end of the master's log, and the master goes on alone.  A reader gets the lost end from
    the slave, which has not heard of its master yet.  Later the master tells the reader that the records are gone.
    """
    master, slave = pair_alone(world, 8)
    world.pass_time(2.0)
    lose_the_tail(world, master, slave, 6)
    master.start()
    until_writable(world, master)
    cut_off(world, slave, master)
    slave.start()
    world.pass_time(1.0)
    behind = slave.live.store.end_offset
    assert behind > master.live.store.end_offset
    read(world, slave)
    assert slave.live.store.end_offset == behind
    world.wire.heal()
    world.pass_time(12.0)
    assert slave.live.store.end_offset < behind
    send(world, master, 12)
    read(world, master)
    world.heal()


def lose_the_tail(world: World, master: Broker, slave: Broker, messages: int) -> None:
    """Makes a master lose the end of its log in a power loss, before the master has flushed that end.  The slave has
    received the lost end of the log, and is killed.
    """
    for number in range(messages):
        world.clients.send(master, random.Random(number))
    end = master.live.store.end_offset
    assert world.loop.run_until(lambda: slave.live.store.end_offset == master.live.store.end_offset > end, 0.2, 0.001)
    master.lose_power()
    slave.kill()


def a_master_has_lost_what_its_slave_has_deleted(world: World) -> None:
    """The master's log ends before the slave's log begins, because the slave's disk was full.  The
    slave is promoted.
    """
    master, slave = pair_alone(world, 8)
    world.pass_time(2.0)
    lose_the_tail(world, master, slave, 60)
    slave.fill()
    slave.start()
    world.pass_time(10.5)
    slave.make_room()
    master.start()
    world.pass_time(5.0)
    assert slave.live.store.min_offset > master.live.store.end_offset
    world.heal()
    assert slave.leads
    assert not master.leads


def a_replaced_master_copies_again_what_has_expired_there(world: World) -> None:
    """The first log file of the replaced master expires, so the broker deletes its log and copies the new master's when
    it becomes a slave.  The broker is checked while it copies.
    """
    old, new = a_replaced_master_with_more_files(world)
    old.start()
    world.pass_time(2.0)
    for broker in world.brokers:
        broker.clock.let_pass(70 * 60_000)
    world.pass_time(10.5)
    assert old.live.store.min_offset > new.live.store.end_offset
    old.kill()
    start_over(world, old, new)
    world.heal()


def a_replaced_master_on_a_full_disk_copies_again_what_it_has_just_deleted(world: World) -> None:
    """The broker deletes its first log file and then copies the log again from the beginning, and no check runs between
    the two.
    """
    old, new = a_replaced_master_with_more_files(world)
    old.fill()
    world.wire.delay_s = 0.3
    start_over(world, old, new)
    world.heal()


def a_replaced_master_with_more_files(world: World) -> tuple[Broker, Broker]:
    """Returns a master that is down, and the slave that has replaced it by force.  The master has written more log
    files than the slave.
    """
    old, new = pair_alone(world, 8)
    world.pass_time(2.0)
    new.kill()
    send(world, old, 20)
    old.kill()
    new.start()
    world.pass_time(2.0)
    promote(world, new)
    return old, new


def start_over(world: World, old: Broker, new: Broker) -> None:
    """Makes the replaced master a slave whose log begins after the common history, so that the slave copies from the
    beginning.
    """
    old.make_slave()
    old.start()
    end = new.live.store.end_offset
    assert world.loop.run_until(lambda: old.serves and old.live.store.min_offset > end, 20.0, 0.001)
    assert world.loop.run_until(lambda: old.serves and old.live.store.min_offset == 0, 20.0, 0.001)
    assert old.live.store.end_offset < end  # it copies
    world.check(full=True)
