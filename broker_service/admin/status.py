"""Status: a broker's figures for haStatus, brokerStatus and the metrics."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from rocketsim_proto import version
from rocketsim_proto.records import kernels
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.admin.mornings import Mornings
from broker_service.admin.rates import Rates
from broker_service.admin.volumes import Volumes
from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.core.traffic import Traffic
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.leadership.following import Following
from broker_service.leadership.promises import Promises
from broker_service.replication.log_ages import LogAges
from broker_service.replication.master import ReplicationMaster
from broker_service.replication.slave import ReplicationSlave
from broker_service.replication.tracker import SlaveProgress
from broker_service.runtime.figures import Figure, by_labels, counter, gauge
from broker_service.store.cuts import KeptCut, diverged_directory, kept_cuts

RATE_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveStatus:
    address: str
    broker_id: int
    ack_offset: int
    diff_bytes: int
    in_sync: bool
    transfer_bytes_per_second: int
    transfer_from_where: int


class Status:
    def __init__(
        self,
        broker: Broker,
        following: Following,
        promises: Promises,
        master: ReplicationMaster,
        slave: ReplicationSlave,
        taken: Traffic,
        given: Traffic,
        schedule: ScheduleService,
    ) -> None:
        self._broker = broker
        self._following = following
        self._promises = promises
        self._master = master
        self._slave = slave
        self._taken = taken
        self._given = given
        self._schedule = schedule
        self.put_volumes, self.get_volumes = Volumes(taken, broker.clock()), Volumes(given, broker.clock())
        self._mornings = Mornings(self._today())
        self._rates = Rates()
        self._ages = LogAges()
        self._booted_ms = broker.now_ms()

    def sample(self) -> None:
        """Takes the samples for rates.  Must be called about once a second."""
        acked = {f"slave-{slave.slave_id}": slave.ack_offset or 0 for slave in self._slaves()}
        all_have = min(acked.values(), default=None)
        self._rates.sample(self._broker.clock(), {**self.counters(), **acked})
        self._ages.sample(self._broker.clock(), self._broker.store.end_offset, all_have)
        self._mornings.sample(self._today(), self.counters())
        if self._broker.config.remoting_port >= 0:  # only RocketMQ's tools ask for the volumes
            for volumes in (self.put_volumes, self.get_volumes):
                volumes.sample(self._broker.clock())

    def counters(self) -> dict[str, int]:
        return {
            "put_messages": self._taken.messages,
            "put_bytes": self._taken.bytes,
            "get_messages": self._given.messages,
            "get_bytes": self._given.bytes,
        }

    def figures(self) -> Iterator[Figure]:
        broker, store, config = self._broker, self._broker.store, self._broker.config
        yield by_labels(
            "rocketsim_broker_info",
            "Always 1. The labels say which broker this is, and its role.",
            ("cluster", "broker", "broker_id", "role"),
            [((config.broker_cluster_name, config.broker_name, str(broker.broker_id), broker.mastership.role.name), 1)],
        )
        yield counter("rocketsim_messages_in", "Messages taken from clients since the start.", self._taken.messages)
        yield counter("rocketsim_bytes_in", "Record bytes taken from clients since the start.", self._taken.bytes)
        yield counter("rocketsim_messages_out", "Messages given to consumers since the start.", self._given.messages)
        yield counter("rocketsim_bytes_out", "Record bytes given to consumers since the start.", self._given.bytes)
        yield gauge("rocketsim_master", "1: this broker is the master of its name.", not broker.is_slave)
        yield gauge("rocketsim_writable", "1: clients may send to this broker.", broker.takes_clients_writes)
        yield gauge("rocketsim_epoch", "The epoch of the log.", broker.epoch)
        yield gauge("rocketsim_log_min_offset", "Where the commit log begins.", store.min_offset)
        yield gauge("rocketsim_log_end_offset", "Where the commit log ends.", store.end_offset)
        yield gauge("rocketsim_log_flushed_offset", "The end of the log that is on disk.", store.flushed_offset)
        yield gauge("rocketsim_log_confirm_offset", "The end of the log that consumers see.", self.confirm_offset)
        yield counter("rocketsim_clock_steps", "Steps of this machine's clock since the start.", broker.time.steps)
        yield gauge(
            "rocketsim_clock_doubted_seconds",
            "How far this machine's clock is ahead of the time that the broker uses; 0: it uses the clock's time.",
            broker.time.doubted_s,
        )
        yield gauge(
            "rocketsim_store_time_ahead_seconds",
            "How far store times are ahead of the time of day.",
            broker.time.ahead_s,
        )
        yield gauge(
            "rocketsim_pulls_held",
            "Pulls and idle Spark queries that wait for messages.",
            broker.long_polling.held,
        )
        yield gauge("rocketsim_topics", "Topics of users.", len(broker.topics.of_users()))
        yield gauge("rocketsim_consumer_groups", "Consumer groups.", len(broker.groups.entries))
        yield from self._slave_figures()
        yield from self._disk_figures()

    def _slave_figures(self) -> Iterator[Figure]:
        broker, now = self._broker, self._broker.clock()
        slaves = {(str(slave.broker_id),): slave for slave in self.slaves()}
        yield by_labels(
            "rocketsim_slave_behind_bytes",
            "Log bytes that a slave has not acknowledged.",
            ("slave",),
            ((labels, slave.diff_bytes) for labels, slave in slaves.items()),
        )
        yield by_labels(
            "rocketsim_slave_behind_seconds",
            "Seconds for which the log has had bytes that a slave has not acknowledged.",
            ("slave",),
            ((labels, self._ages.behind_s(now, slave.ack_offset)) for labels, slave in slaves.items()),
        )
        known = {} if broker.is_slave else {(str(slave),): False for slave in sorted(broker.known_slaves.addresses)}
        yield by_labels(
            "rocketsim_slave_in_sync",
            "1: the slave counts for SYNC_MASTER. 0: it does not, or is not connected to this master.",
            ("slave",),
            (known | {labels: slave.in_sync for labels, slave in slaves.items()}).items(),
        )

    def _disk_figures(self) -> Iterator[Figure]:
        store, config = self._broker.store, self._broker.config
        help_text = "Bytes of the log that are not on disk yet."
        yield gauge("rocketmq_storage_flush_behind_bytes", help_text, store.end_offset - store.flushed_offset)
        try:
            usage = store.disk.disk_usage(config.store_path_root_dir)
            refused = store.admission.why_no_sends() is not None
        except OSError:
            return  # if the disk fails, these metrics are missing
        levels = (
            config.disk_max_used_space_ratio,
            config.disk_space_clean_forcibly_ratio,
            config.disk_space_warning_level_ratio,
        )
        yield gauge("rocketsim_disk_size_bytes", "Size of the disk that has the store.", usage.total)
        yield gauge("rocketsim_disk_free_bytes", "Free bytes of the disk that has the store.", usage.free)
        yield gauge("rocketsim_disk_used_ratio", "Used part of the disk, from 0 to 1.", usage.used_percent / 100)
        yield gauge(
            "rocketsim_disk_level",
            "How many of these the disk has passed: diskMaxUsedSpaceRatio, from which on old files are deleted early, "
            "diskSpaceCleanForciblyRatio, and diskSpaceWarningLevelRatio, from which on clients may not send.",
            sum(usage.used_percent > level for level in levels),
        )
        help_text = "1: clients may not send, because the disk is full, fails, or is above its warning level."
        yield gauge("rocketsim_sends_refused_by_disk", help_text, refused)

    def slaves(self) -> list[SlaveStatus]:
        end = self._broker.store.end_offset
        tracker = self._broker.acknowledgements.tracker
        return [
            SlaveStatus(
                address=slave.address,
                broker_id=slave.slave_id,
                ack_offset=slave.ack_offset or 0,
                diff_bytes=end - (slave.ack_offset or 0),
                in_sync=tracker.is_in_sync(slave, end),
                transfer_bytes_per_second=round(self._rates.per_second(f"slave-{slave.slave_id}", RATE_S)),
                transfer_from_where=slave.ack_offset or 0,
            )
            for slave in self._slaves()
        ]

    def cuts(self) -> list[KeptCut]:
        """Returns what this broker has cut off its log and kept, the oldest first.  If the disk fails, the list is
        empty, because operators need the rest of the status then.
        """
        broker = self._broker
        try:
            return kept_cuts(broker.store.disk, diverged_directory(broker.config.store_path_root_dir))
        except OSError:
            return []

    @property
    def master_address(self) -> str:
        return self._following.master_address if self._broker.is_slave else self._master.identity.address

    @property
    def confirm_offset(self) -> int:
        visible = self._broker.store.queues.confirm_offset
        return self._broker.store.end_offset if visible is None else visible

    def line(self) -> str:
        """Returns the state of this broker as one line."""
        if self._broker.is_slave:
            promised = self._promises.promised
            return f"{self._broker} | {self._slave}" + (f" | has promised {promised}" if promised else "")
        waiting = self._broker.mastership.standing is Standing.WAITING
        return f"{self._broker} | {self._master}" + (f" | waits: {self._broker.waits_for()}" if waiting else "")

    def values(self) -> dict[str, str]:
        """Returns the values of brokerStatus, under RocketMQ's names where RocketMQ has one, else under our own."""
        broker, store = self._broker, self._broker.store
        usage = store.disk.disk_usage(broker.config.store_path_root_dir)
        values = {
            "bootTimestamp": self._booted_ms,
            "runtime": f"{(broker.now_ms() - self._booted_ms) // 1000} s",
            "brokerVersionDesc": version.described(),
            "recordKernels": kernels.in_use(),
            "brokerName": broker.config.broker_name,
            "brokerId": broker.broker_id,
            "brokerRole": broker.mastership.role.name,
            "brokerActive": str(broker.takes_clients_writes).lower(),
            "state": self.line(),
            "epoch": broker.epoch,
            "knownSlaves": broker.known_slaves,
            "commitLogMinOffset": store.min_offset,
            "commitLogMaxOffset": store.end_offset,
            "commitLogFlushedOffset": store.flushed_offset,
            "confirmOffset": self.confirm_offset,
            "commitLogDiskRatio": f"{usage.used_percent / 100:.4f}",
            "commitLogDirCapacity": f"Total : {usage.total >> 20} MiB, Free : {usage.free >> 20} MiB.",
            "dispatchBehindBytes": 0,
            "putTps": self._rates.text("put_messages"),
            "getTransferedTps": self._rates.text("get_messages"),
            "putMessageTimesTotal": self._taken.messages,
            "putMessageSizeTotal": self._taken.bytes,
            "getMessageTimesTotal": self._given.messages,
            "getMessageSizeTotal": self._given.bytes,
            "msgPutTotalTodayMorning": self._mornings.today.get("put_messages", 0),
            "msgPutTotalYesterdayMorning": self._mornings.yesterday.get("put_messages", 0),
            "msgGetTotalTodayMorning": self._mornings.today.get("get_messages", 0),
            "msgGetTotalYesterdayMorning": self._mornings.yesterday.get("get_messages", 0),
            "pullsHeld": broker.long_polling.held,
            "queues": len(store.queues.keys()),
            "topics": len(broker.topics.of_users()),
            "consumerGroups": len(broker.groups.entries),
            "timerNow": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(broker.day_ms() / 1000)),
            "clockSteps": broker.time.steps,
            "clockDoubtedBy": f"{broker.time.doubted_s:.0f} s",
            "storeTimeAheadBy": f"{broker.time.ahead_s:.0f} s",
        }
        if reason := broker.failure or store.admission.why_no_sends():
            values["notWritable"] = reason
        for level, offset in sorted(self._schedule.position().offsets.items()):
            values[f"scheduleMessageOffset_{level}"] = f"{offset},{store.queues.bounds(SCHEDULE_TOPIC, level - 1)[1]}"
        return {name: str(value) for name, value in sorted(values.items())}

    def _today(self) -> date:
        return date.fromtimestamp(self._broker.day_ms() / 1000)

    def _slaves(self) -> list[SlaveProgress]:
        tracked = self._broker.acknowledgements.tracker.slaves
        return [tracked[slave_id] for slave_id in sorted(tracked)]
