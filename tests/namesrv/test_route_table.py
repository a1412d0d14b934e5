"""The decisions of the name server, without a server."""

from broker_service.namesrv.route_table import Registration, RouteTable, TopicQueues

ORDERS = {"orders": TopicQueues(8, 8, 6)}
MINUTE = 60_000


def broker(name="broker-a", broker_id=0, address="host:1", **more):
    return Registration(cluster_name="c", broker_name=name, broker_id=broker_id, address=address, **more)


def pair(table, now_ms=0, epoch=0):
    """Registers a master with a topic and its slave, each over a connection of its own."""
    assert table.register(broker(topics=ORDERS, epoch=epoch), "master's", now_ms) == ""
    assert table.register(broker(broker_id=1, address="host:2", epoch=epoch), "slave's", now_ms) == ""


def ids(table, name="broker-a"):
    return [member.broker_id for member in table.members(name)]


def test_a_topic_leads_to_all_brokers_of_each_name_that_has_it():
    table = RouteTable()
    pair(table)
    table.register(broker("broker-b", address="host:3", topics=ORDERS), "b", 0)
    table.register(broker("broker-c", address="host:4"), "c", 0)
    assert table.route("orders") == {"broker-a": TopicQueues(8, 8, 6), "broker-b": TopicQueues(8, 8, 6)}
    assert [(member.broker_id, member.address) for member in table.members("broker-a")] == [
        (0, "host:1"),
        (1, "host:2"),
    ]
    assert table.topics() == ["orders"]


def test_only_a_masters_topics_make_routes():
    table = RouteTable()
    table.register(broker(broker_id=1, topics=ORDERS), "slave's", 0)
    assert table.route("orders") == {}
    assert table.topics() == []


def test_topics_of_a_slave_make_routes_if_its_master_is_a_rocketmq_and_nobody_was_promoted():
    table = RouteTable()
    slave = broker(broker_id=1, address="host:2", topics=ORDERS, follows_rocketmq=True)
    assert table.register(slave, "slave's", 0) == ""
    assert table.route("orders") == {"broker-a": TopicQueues(8, 8, 4)}
    assert table.topics() == ["orders"]
    promoted = broker(address="host:3", epoch=1, topics={"newer": TopicQueues(4, 4, 6)})
    assert table.register(promoted, "promoted one's", 1) == ""
    assert table.register(slave, "slave's", 2) == ""
    assert table.topics() == ["newer"]


def test_the_end_of_its_connection_removes_a_broker_at_once():
    table = RouteTable()
    pair(table)
    assert [str(gone) for gone in table.connection_lost("slave's")] == ["broker-a id 1 at host:2, epoch 0, end 0"]
    assert ids(table) == [0]


def test_without_its_master_a_topic_is_still_read_from_the_slave_and_not_written():
    table = RouteTable()
    pair(table)
    table.connection_lost("master's")
    assert table.route("orders") == {"broker-a": TopicQueues(8, 8, 4)}
    assert ids(table) == [1]
    table.connection_lost("slave's")
    assert table.route("orders") == {}


def test_without_a_master_nobody_takes_the_calls_of_rocketmq_5s_clients():
    """A slave that was the master may still register a port for RocketMQ 5's clients."""
    table = RouteTable()
    assert table.register(broker(topics=ORDERS, v2_address="host:8081"), "master's", 0) == ""
    assert table.register(broker(broker_id=1, address="host:2", v2_address="host:8082"), "slave's", 0) == ""
    assert table.live()["broker-a"].v2_address == "host:8081"
    table.connection_lost("master's")
    assert table.route("orders") == {"broker-a": TopicQueues(8, 8, 4)}
    assert table.live()["broker-a"].v2_address == ""


def test_the_end_of_an_old_connection_does_not_remove_who_registered_again_by_a_new_one():
    table = RouteTable()
    table.register(broker(), "old", 0)
    table.register(broker(), "new", 1)
    assert table.connection_lost("old") == []
    assert ids(table) == [0]


def test_two_minutes_of_silence_remove_a_broker_and_not_a_millisecond_less():
    table = RouteTable()
    pair(table)
    table.register(broker(topics=ORDERS), "master's", 30_000)
    assert table.expire(2 * MINUTE - 1) == []
    assert [gone.registration.broker_id for gone in table.expire(2 * MINUTE)] == [1]
    assert [gone.registration.broker_id for gone in table.expire(2 * MINUTE + 30_000)] == [0]


def test_unregistering_removes_what_came_by_that_connection_only():
    table = RouteTable()
    pair(table)
    table.unregister("broker-a", "slave's")
    assert ids(table) == [0]
    assert table.unregister("never-heard-of", "slave's") == []


def test_the_master_with_the_higher_epoch_wins_and_the_former_one_is_refused():
    table = RouteTable()
    pair(table, epoch=3)
    assert table.register(broker(address="host:2", epoch=4, topics=ORDERS), "slave's", 5) == ""
    assert [(member.broker_id, member.address) for member in table.members("broker-a")] == [(0, "host:2")]
    refusal = table.register(broker(epoch=3), "master's", 6)
    assert refusal == "broker-a is at epoch 4, this master at host:1 still at 3; its master is host:2"


def test_the_fence_stays_when_the_newer_master_is_gone():
    table = RouteTable()
    table.register(broker(address="host:2", epoch=4), "newer", 0)
    table.connection_lost("newer")
    refusal = table.register(broker(epoch=3), "older", 1)
    assert refusal == "broker-a is at epoch 4, this master at host:1 still at 3; its master is away"
    assert ids(table) == []
    assert table.newest_epoch("broker-a") == 4


def test_a_slave_that_knows_a_newer_epoch_raises_the_fence_and_the_master_below_it_goes():
    table = RouteTable()
    pair(table, epoch=3)
    table.register(broker(broker_id=1, address="host:2", epoch=5), "slave's", 1)
    assert "at epoch 5" in table.register(broker(epoch=3, topics=ORDERS), "master's", 2)
    assert ids(table) == [1]


def test_a_second_master_of_one_epoch_is_refused_while_the_first_is_alive():
    table = RouteTable()
    table.register(broker(epoch=2), "first", 0)
    refusal = table.register(broker(address="host:9", epoch=2), "second", 1)
    assert "broker-a id 0 is already registered at host:1, epoch 2; host:9 must not" in refusal
    assert table.members("broker-a")[0].address == "host:1"
    table.connection_lost("first")
    assert table.register(broker(address="host:9", epoch=2), "second", 2) == ""


def test_a_second_slave_with_one_id_is_refused_whatever_its_epoch():
    table = RouteTable()
    pair(table)
    assert "already registered" in table.register(broker(broker_id=1, address="host:9", epoch=8), "other", 1)
    assert table.members("broker-a")[1].address == "host:2"


def test_a_promoted_slave_leaves_its_place_as_a_slave():
    table = RouteTable()
    pair(table)
    table.connection_lost("master's")
    table.register(broker(address="host:2", epoch=1), "slave's, again", 1)
    assert ids(table) == [0]


def test_a_master_that_takes_no_writes_yet_says_so_in_its_routes():
    table = RouteTable()
    table.register(broker(topics=ORDERS, writable=False), "master's", 0)
    assert table.route("orders")["broker-a"].perm == 4
    table.register(broker(topics=ORDERS, writable=True), "master's", 1)
    assert table.route("orders")["broker-a"].perm == 6


def test_the_brokers_permission_limits_that_of_its_topics():
    table = RouteTable()
    table.register(broker(topics={"TBW102": TopicQueues(8, 8, 7)}, broker_permission=4), "master's", 0)
    assert table.route("TBW102")["broker-a"].perm == 5


def test_wiped_write_permission_holds_over_registrations_until_it_is_added_again():
    table = RouteTable()
    pair(table)
    assert table.wipe_write_perm("broker-a") == 1
    table.register(broker(topics={**ORDERS, "more": TopicQueues(4, 4, 6)}), "master's", 30_000)
    assert {queues.perm for topic in table.topics() for queues in table.route(topic).values()} == {4}
    assert table.add_write_perm("broker-a") == 2
    assert table.route("more")["broker-a"].perm == 6


def test_wiping_a_name_that_nobody_has_changes_nothing():
    table = RouteTable()
    assert table.wipe_write_perm("broker-a") == 0
    pair(table)
    assert table.route("orders")["broker-a"].perm == 6


def test_a_wiped_permission_is_forgotten_when_the_last_of_the_name_leaves():
    table = RouteTable()
    pair(table)
    table.wipe_write_perm("broker-a")
    table.connection_lost("slave's")
    table.connection_lost("master's")
    pair(table)
    assert table.route("orders")["broker-a"].perm == 6


def test_a_table_says_in_a_line_what_it_knows():
    table = RouteTable()
    pair(table, epoch=2)
    table.wipe_write_perm("broker-a")
    assert str(table) == "broker-a epoch=2 0@host:1 1@host:2 topics=1 write permission wiped"
