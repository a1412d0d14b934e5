"""The slave of a RocketMQ master on the network.  `rocketmq_follower.py` decides what happens to received bytes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol

from rocketsim_proto.metadata_pb2 import ConsumerOffset
from rocketsim_proto.signature import Credentials

from broker_service.errors import DiskFull, ServiceNotAvailable
from broker_service.replication import ha_stream
from broker_service.replication.flusher import Flusher
from broker_service.replication.protocols import SlaveBroker
from broker_service.replication.refusals import ProtocolViolation
from broker_service.replication.rocketmq_follower import LogBounds, RocketMQFollower, check_bounds, start_of
from broker_service.replication.rocketmq_master import (
    Floor,
    RocketMQLost,
    RocketMQMaster,
    check_config,
    connect,
    host_and_port,
    open_master,
)
from broker_service.replication.slave import ReplicationSlave, SlaveSettings
from broker_service.replication.stream_tasks import end_in_silence, run_together

logger = logging.getLogger(__name__)

REPORT_EVERY_S = 5.0  # a master closes the connection of a slave that is silent for 20 s
_READ_BYTES = 1 << 20

_Place = tuple[str, str, int]


class RocketMQSlaveBroker(SlaveBroker, Protocol):
    """The operations of the broker that RocketMQSlave needs."""

    def generation(self, group: str, topic: str, queue_id: int) -> int:
        """Returns the generation of the committed offset of a group for a queue."""


class RocketMQSlave(ReplicationSlave):
    """Follows a RocketMQ master, and hands no offsets back, since a RocketMQ master takes none from a slave."""

    def __init__(self, *, file_size: int, user: Credentials | None, broker: RocketMQSlaveBroker, **others: Any) -> None:
        super().__init__(broker=broker, **others)
        self._file_size = file_size
        self._user = user
        self._generation = broker.generation
        self._offsets_seen: dict[_Place, int] = {}
        # What `RocketMQMaster.floors` has found so far, by topic, for the log that begins at `_floors_at`.
        self._floors: dict[str, list[Floor]] = {}
        self._floors_at: tuple[str, int] | None = None  # the master's address, and where its log begins

    async def _follow_once(self, master_address: str) -> NoReturn:
        async with self._asking(master_address) as master:
            config = await master.config()
            check_config(config, self._file_size)
            bounds = await master.bounds()
            start = start_of(LogBounds(self._log.min_offset, self._log.end_offset), bounds)
            if start.begins_at is not None and start.begins_at % self._file_size:
                raise ProtocolViolation(f"a log cannot begin at {start.begins_at}, inside a log file")
            if start.begins_at is not None and (start.begins_at or self._log.end_offset):
                self._log.start_over(start.begins_at, await self._all_floors(master, master_address, bounds))
        host, _ = host_and_port(master_address)
        ha_address = f"[{host}]:{config['haListenPort']}" if ":" in host else f"{host}:{config['haListenPort']}"
        self._broker.follows_master_that_waits(
            for_slave=config.get("brokerRole") == "SYNC_MASTER", for_flush=config.get("flushDiskType") == "SYNC_FLUSH"
        )
        try:
            async with asyncio.timeout(self._settings.metadata_timeout_s):
                reader, writer = await connect(ha_address)
        except TimeoutError as error:
            raise RocketMQLost(f"{ha_address} cannot be reached: no connection in time") from error
        try:
            follower = RocketMQFollower(self._log, start)
            stream = _HaStream(ha_address, reader, writer, follower, self._flusher, self._broker, self._settings)
            stream.master_min_offset = bounds.min_offset
            self._stream = stream
            await stream.run(self._poll_metadata(master_address, stream))
        finally:
            writer.transport.abort()
        raise AssertionError("the stream has ended without an exception")

    async def _all_floors(self, master: RocketMQMaster, address: str, bounds: LogBounds) -> list[Floor]:
        """Returns the floors of all queues.  A round that does not come to its end leaves its results to the next one.

        While the master's log begins at the same offset, a queue that had messages still has them, and a queue without
        messages goes on at its floor, so that earlier results stay right.
        """
        if self._floors_at != (address, bounds.min_offset):
            self._floors, self._floors_at = {}, (address, bounds.min_offset)
        floors = await master.floors(self._floors)
        self._floors, self._floors_at = {}, None
        return floors

    @asynccontextmanager
    async def _asking(self, address: str) -> AsyncIterator[RocketMQMaster]:
        """Opens a connection for one round of questions, which must end within `metadata_timeout_s`.  Raises
        RocketMQLost.
        """
        try:
            async with asyncio.timeout(self._settings.metadata_timeout_s):
                master = await open_master(address, self._user)
                try:
                    yield master
                finally:
                    master.close()
        except TimeoutError as error:
            raise RocketMQLost(f"{address} did not answer within {self._settings.metadata_timeout_s} s") from error

    async def _poll_metadata(self, address: str, stream: "_HaStream") -> NoReturn:
        trouble = ""
        while True:
            end_before = self._log.end_offset
            try:
                async with self._asking(address) as master:
                    metadata, bounds = await master.metadata()
            except (RocketMQLost, ProtocolViolation) as error:
                if trouble != str(error):  # the log is still copied, and a reason is logged only once
                    logger.warning("metadata of master %s: %s", address, error)
                trouble = str(error)
            else:
                check_bounds(LogBounds(self._log.min_offset, end_before), bounds)
                if bounds.min_offset > stream.next_offset:
                    raise RocketMQLost(f"the master's log begins at {bounds.min_offset} by now; connecting again")
                stream.master_min_offset = bounds.min_offset
                raise_generations(metadata.consumer_offsets, self._offsets_seen, self._generation)
                try:
                    self._broker.apply_metadata(metadata)
                    trouble = ""
                except (DiskFull, ValueError) as error:
                    if trouble != str(error):
                        logger.error("metadata of master %s cannot be stored yet: %s", address, error)
                    trouble = str(error)
            await asyncio.sleep(self._settings.metadata_interval_s)


class _HaStream:
    """One HA connection to a master: tasks that receive, report and watch for silence, around a RocketMQFollower."""

    master_min_offset: int | None = 0

    def __init__(
        self,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        follower: RocketMQFollower,
        flusher: Flusher,
        broker: SlaveBroker,
        settings: SlaveSettings,
    ) -> None:
        self.uses_socket = False  # no master has offered a socket
        self._address = address
        self._reader = reader
        self._writer = writer
        self._follower = follower
        self._flusher = flusher
        self._broker = broker
        self._settings = settings
        self._heard_at = _now()
        self._received = asyncio.Event()
        self._has_heard = False

    @property
    def is_accepted(self) -> bool:
        return self._has_heard and self._follower.is_accepted

    @property
    def next_offset(self) -> int:
        return self._follower.next_offset

    def hand_back(self) -> None:
        """Does nothing: a RocketMQ master takes no offsets from a slave."""

    async def run(self, polling: Any) -> None:
        """Runs until a task fails, and raises its error; if several tasks have failed, the receiver's error."""
        silence = end_in_silence(lambda: self._heard_at, self._settings.housekeeping_s)
        await run_together(self._receive(), self._report(), silence, polling)

    async def show_unacknowledged(self) -> None:
        """Makes the records visible that this slave has not reported yet."""
        try:
            await self._flusher.wait(self._follower.end_offset)
        except ServiceNotAvailable:
            return  # Flushing has failed for good.
        self._broker.replicated(self._follower.end_offset)

    async def _receive(self) -> NoReturn:
        frames = ha_stream.HaFrames()
        while received := await self._reader.read(_READ_BYTES):
            self._heard_at = _now()
            for frame in ha_stream.joined(frames.feed(received)):
                self._follower.receive(frame)
                self._hear()
                self._received.set()
        raise RocketMQLost(f"{self._address} ended the connection")

    def _hear(self) -> None:
        was_accepted, self._has_heard = self.is_accepted, True
        if not was_accepted and self.is_accepted:
            logger.info("following the RocketMQ master %s: %s", self._address, self._follower)

    async def _report(self) -> NoReturn:
        """Sends all reports; no other code writes to this connection.

        One flush serves all frames that arrived during the previous one.
        """
        while True:
            if self.is_accepted:
                await self._flusher.wait(self._follower.end_offset)
            offset = self._follower.report(self._flusher.flushed_offset)
            self._writer.write(ha_stream.report(offset))
            await self._writer.drain()
            if self.is_accepted:
                self._broker.replicated(min(offset, self._follower.end_offset))
            try:
                async with asyncio.timeout(REPORT_EVERY_S):
                    await self._received.wait()
            except TimeoutError:
                pass
            self._received.clear()

    def __str__(self) -> str:
        return f"{self._follower} master={self._address}"


def raise_generations(
    offsets: Iterable[ConsumerOffset], seen: dict[_Place, int], generation_of: Callable[[str, str, int], int]
) -> None:
    """Gives each committed offset of the master a generation, which is raised if the offset is lower than the one last
    `seen`.

    RocketMQ resets an offset by overwriting it, but in RocketSim an offset can go back only with a new generation.
    """
    for offset in offsets:
        place = offset.group, offset.topic, offset.queue_id
        offset.generation = generation_of(*place) + (offset.offset < seen.get(place, -1))
        seen[place] = offset.offset


def _now() -> float:
    return asyncio.get_running_loop().time()
