"""Runs a name server, a master and its slave as processes on this machine, on free ports, so that a test can kill
them.
"""

import contextlib
import itertools
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rocketsim_cli.local_cluster import LocalCluster, ServerProcess, free_port, pair_properties, ready, starting_alone
from rocketsim_cli.until_parent_ends import lifeline
from rocketsim_client import Admin, GroupNotExist, RocketSimError
from rocketsim_testing.relay import Relay

TIMEOUT_S = 60.0
PORTS = range(20_000, 32_000)  # below those that Linux gives to connections, which could take a port before its server
# Deletes the pair's folder once the process that has made the folder ends, even if that process is killed.  The servers
# end at the same moment and may still write, so the deletion is tried several times.
REMOVE_AFTER_PARENT = 'cat; for again in 1 2 3 4 5; do rm -rf -- "$1" && exit; sleep 1; done'


@contextlib.contextmanager
def pair(*, sync: bool = True, endpoints: bool = False, **keys: object) -> "Iterator[Pair]":
    """Starts a broker pair and yields it once it is complete: both brokers are registered, and the slave has all that
    the master has.

        with rocketsim_testing.pair() as pair:
            topic = pair.make_topic()
            with Producer(pair.name_server) as producer:
                producer.send(Message(topic, b"a body"))

    With `sync` the master is a SYNC_MASTER, otherwise an ASYNC_MASTER.  With `endpoints` the master has a port for
    RocketMQ 5's official clients, `Pair.endpoints`.  `keys` are further keys of both brokers' configuration, such as
    `slaveWaitTimeMs=1000`.  The servers and their files are gone after the block, even if this process is killed within
    the block.
    """
    folder = Path(tempfile.mkdtemp(prefix="rocketsim-testing-"))
    remover = subprocess.Popen(
        ["sh", "-c", REMOVE_AFTER_PARENT, "sh", str(folder)],
        stdin=lifeline(),
        stdout=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C in the terminal must not end the remover before the files are deleted
    )
    try:
        given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in keys.items()}
        with contextlib.ExitStack() as parts:
            # Whichever broker is the slave follows the other one through a relay.
            to_master = parts.enter_context(Relay(lambda: cluster.brokers[0].address))
            to_slave = parts.enter_context(Relay(lambda: cluster.brokers[1].address))
            with starting_alone() if endpoints else contextlib.nullcontext():
                grpc_port = free_port(random.choice(PORTS)) if endpoints else -1
                master, slave = pair_properties(0, sync=sync, grpc_port=grpc_port)
                brokers = (
                    {**master, "haMasterAddress": to_slave.address, **given},
                    {**slave, "haMasterAddress": to_master.address, **given},
                )
                cluster = parts.enter_context(LocalCluster(folder, brokers))
                cluster.start()
            admin = parts.enter_context(Admin(cluster.name_server))
            started = Pair(cluster, admin, (to_master, to_slave))
            started.wait_until_complete()
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        remover.kill()
        remover.wait()


class Pair:
    """A running broker pair, whose waiting methods raise a TimeoutError that says what is missing."""

    def __init__(self, cluster: LocalCluster, admin: Admin, relays: Sequence[Relay] = ()) -> None:
        self._cluster = cluster
        self._admin = admin
        self._relays = relays  # the network between the brokers
        self._master, self._slave = cluster.brokers
        self._topics = itertools.count(1)

    @property
    def name_server(self) -> str:
        """The address of the name server, for clients."""
        return self._cluster.name_server

    @property
    def admin(self) -> Admin:
        """An admin client that is connected to the pair."""
        return self._admin

    @property
    def master_address(self) -> str:
        """The address of the master, also after the master was killed."""
        return self._master.address

    @property
    def slave_address(self) -> str:
        """The address of the slave."""
        return self._slave.address

    @property
    def endpoints(self) -> str:
        """The address for RocketMQ 5's official clients.  Raises ValueError if the master has no port for them."""
        port = int(str(self._master.keys.get("grpcServerPort", -1)))
        if port < 0:
            raise ValueError("this pair has no port for RocketMQ 5's clients; make it with pair(endpoints=True)")
        return f"127.0.0.1:{port}"

    def make_topic(self, name: str = "", *, queues: int = 4) -> str:
        """Creates a topic, with a new name if none is given, and returns the name once clients can send to the
        topic.
        """
        topic = name or f"Topic-{next(self._topics)}"
        self._admin.update_topic(topic, read_queue_nums=queues, write_queue_nums=queues)
        self._wait(lambda: topic in self._admin.topic_list(), f"the name server knows topic {topic}", TIMEOUT_S)
        return topic

    def kill_master(self) -> None:
        """Kills the master with SIGKILL, like a crash.  Until `promote` or `restart` is called, clients read from the
        slave, and sends fail.
        """
        self._master.kill()

    def kill_slave(self) -> None:
        """Kills the slave with SIGKILL.  While the slave is dead, sends to a SYNC_MASTER get the status
        SLAVE_NOT_AVAILABLE.
        """
        self._slave.kill()

    def promote(self) -> None:
        """Makes the slave the master after `kill_master`, and returns once clients find the new master.  A later
        `restart` starts the former master as the slave.  Raises InvalidParameter if the master is running.
        """
        if self._master.is_running():
            self._promote_slave()
        else:
            self._wait(self._try_promotion, "the slave has become the master", TIMEOUT_S)
        self._master, self._slave = self._slave, self._master
        self._wait(self._is_master_known, "the name server knows the new master", TIMEOUT_S)

    def restart(self, timeout_s: float = TIMEOUT_S) -> None:
        """Starts the brokers that are not running, and returns once the pair is complete."""
        stopped = [broker for broker in (self._master, self._slave) if not broker.is_running()]
        for broker in stopped:
            # A master that was replaced comes back as a slave, with an id that differs from the new master's.
            broker.launch(**({"brokerRole": "SLAVE", "brokerId": 1} if broker is self._slave else {}))
        for broker in stopped:
            ready(broker)
        if stopped:
            self.wait_until_complete(timeout_s)

    @contextlib.contextmanager
    def partition(self, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
        """Cuts the network between the brokers during the block, while clients reach both.  The slave keeps what it
        has, and sends to a SYNC_MASTER get the status SLAVE_NOT_AVAILABLE.  The block ends once the pair is
        complete again, unless a broker was killed.
        """
        for relay in self._relays:
            relay.cut()
        try:
            self._wait(lambda: not self._is_slave_in_sync(), "the master has lost its slave", timeout_s)
            yield
        finally:
            for relay in self._relays:
                relay.heal()
            if self._master.is_running() and self._slave.is_running():
                self.wait_until_complete(timeout_s)

    def wait_until_complete(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns once both brokers are registered and the slave has all that the master has."""

        def is_complete() -> bool:
            return (
                self._is_master_known()
                and self._slave.address in {member.address for member in self._admin.cluster_list()}
                and self._is_slave_in_sync()
            )

        self._wait(is_complete, "the pair is complete", timeout_s)

    def lag(self, group: str, topic: str) -> int | None:
        """Returns how many messages of the topic the group has not settled yet, or None if it has not begun."""
        try:
            rows = self._admin.consumer_progress(group=group, topic=topic)
        except GroupNotExist:
            return None
        return sum(row.diff for row in rows) if rows else None

    def wait_for_lag(self, group: str, topic: str, lag: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        """Returns once the group has begun and has at most `lag` messages of the topic left to settle."""

        def is_reached() -> bool:
            found = self.lag(group, topic)
            return found is not None and found <= lag

        self._wait(is_reached, f"group {group} has a lag of {lag} in topic {topic}", timeout_s)

    def _promote_slave(self) -> None:
        self._admin.promote_slave(self._slave.address, broker_name=self._slave.broker_name)

    def _try_promotion(self) -> bool:
        """Promotes the slave, unless an earlier call, whose answer was lost, has promoted it.  The slave refuses until
        it has noticed that its connection to the killed master has ended, so the caller tries again.
        """
        (status,) = self._admin.ha_status(broker_addr=self._slave.address)
        if not status.is_master:
            self._promote_slave()
        return True

    def _is_slave_in_sync(self) -> bool:
        (status,) = self._admin.ha_status(broker_addr=self._master.address)
        return any(slave.in_sync for slave in status.slaves)

    def _is_master_known(self) -> bool:
        masters = {member.address for member in self._admin.cluster_list() if member.broker_id == 0}
        return masters == {self._master.address}

    def _wait(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        until, trouble = time.monotonic() + timeout_s, ""
        while True:
            try:
                if holds():
                    return
                trouble = ""
            except RocketSimError as error:  # expected from a broker that is starting or has just ended
                trouble = f": {error}"
            if time.monotonic() > until:
                servers = "; ".join(map(_words, self._cluster.servers))
                raise TimeoutError(f"still false after {timeout_s:g} s: {what}{trouble} ({servers})")
            time.sleep(0.02)


def _words(server: ServerProcess) -> str:
    return str(server) if server.is_running() else f"{server}: {server.last_words()}"
