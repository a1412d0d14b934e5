"""PullPath: serves RocketMQ's pull request, which reads one queue, with long polling.

The store decides what is found (tables D2b and D3 of docs/decision_tables.md), and `suggestion.py` decides which broker
is suggested (table D1).
"""

from dataclasses import dataclass, replace

import numpy as np
from rocketsim_proto.model import NO_EPOCH, GetMessageStatus, LogEpoch
from rocketsim_proto.reserved import MASTER_ID

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.traffic import Traffic
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.reads.commits import Commits
from broker_service.broker.reads.read_checks import ReadChecks
from broker_service.broker.reads.selection import Selection, select_first
from broker_service.broker.reads.subscription import codes_of
from broker_service.broker.reads.suggestion import PullCode
from broker_service.errors import InvalidParameter
from broker_service.runtime import cold_reads
from broker_service.runtime.histogram import Histogram
from broker_service.store.pull import GetMessageResult

DEFAULT_MAX_MSG_NUMS = 32
UNLIMITED_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int = DEFAULT_MAX_MSG_NUMS
    max_msg_bytes: int = 0
    sub_expression: str = "*"
    expression_type: str = "TAG"
    suspend_s: float = 0.0  # how long the consumer agrees to wait for a message
    commit_offset: int | None = None
    read_in: LogEpoch = NO_EPOCH  # the epoch in which the consumer read the records before `queue_offset`


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    code: PullCode
    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    count: int = 0
    records: bytes = b""
    sizes: bytes = b""
    read_in: LogEpoch = NO_EPOCH  # the epoch that the consumer must send with a pull from `next_begin_offset`


class PullPath:
    def __init__(self, broker: Broker, checks: ReadChecks, commits: Commits, traffic: Traffic) -> None:
        self._broker = broker
        self._checks = checks
        self._commits = commits
        self._traffic = traffic
        self.seconds = Histogram(
            "rocketsim_pull_seconds",
            "How long it took to read the messages of a pull, without the time for which it waited for messages.",
        )

    def pull_at_once(self, pull: Pull) -> Pulled | None:
        """Does the same as `pull` if that needs no waiting.

        Otherwise returns None, and has changed nothing: there is no message yet, the messages are not in memory, the
        group must be created, or the filter is SQL92.
        """
        _check_limits(pull)
        if not self._checks.has_group(pull.group):
            return None
        group = self._readable(pull)
        selection = self._checks.selection_at_once(pull.sub_expression, pull.expression_type)
        if selection is None:
            return None
        if (refused := self._refused(pull, group)) is not None:
            return refused
        began = self._broker.clock()
        found = cold_reads.read_at_once(
            self._broker.store, lambda: self._found(pull, pull.queue_offset, group, selection)
        )
        if found is None or (found.code is PullCode.PULL_NOT_FOUND and pull.suspend_s > 0):
            return None
        self.seconds.observe(self._broker.clock() - began)
        self._commit(pull)
        self._traffic.add((pull.topic, pull.group), found.count, len(found.records))
        return found

    async def pull(self, pull: Pull) -> Pulled:
        _check_limits(pull)
        await self._checks.make_group(pull.group)
        group = self._readable(pull)
        selection = await self._checks.selection(pull.sub_expression, pull.expression_type)
        if (refused := self._refused(pull, group)) is not None:
            return refused
        deadline = self._broker.clock() + self._broker.hold_s(pull.suspend_s)
        pulled = await self._read(pull, pull.queue_offset, group, selection)
        self._commit(pull)
        if pulled.code is PullCode.PULL_NOT_FOUND:
            pulled = await self._held(pull, pulled, deadline, group, selection)
        self._traffic.add((pull.topic, pull.group), pulled.count, len(pulled.records))
        return pulled

    def _commit(self, pull: Pull) -> None:
        if pull.commit_offset is not None and not self._broker.is_slave:
            self._commits.commit_on_pull(pull.group, pull.topic, pull.queue_id, pull.commit_offset)

    async def _held(
        self, pull: Pull, pulled: Pulled, deadline: float, group: SubscriptionGroup, selection: Selection
    ) -> Pulled:
        """Waits for messages.  Returns a new answer, or the old one if no message came in time."""
        offset = pull.queue_offset
        queue = pull.topic, pull.queue_id
        while await self._broker.long_polling.wait({queue: offset}, deadline - self._broker.clock()):
            group = self._readable(pull)  # the group or the topic may have been deleted meanwhile
            pulled = await self._read(pull, offset, group, selection)
            if pulled.status is GetMessageStatus.NO_MATCHED_MESSAGE and pulled.next_begin_offset == pulled.max_offset:
                # The new messages are excluded by the filter, so they need not be read again.
                offset = pulled.next_begin_offset
            elif pulled.code is not PullCode.PULL_NOT_FOUND:
                break
        return pulled

    async def _read(self, pull: Pull, offset: int, group: SubscriptionGroup, selection: Selection) -> Pulled:
        began = self._broker.clock()
        pulled = await cold_reads.read(self._broker.store, lambda: self._found(pull, offset, group, selection))
        self.seconds.observe(self._broker.clock() - began)
        return pulled

    def _found(self, pull: Pull, offset: int, group: SubscriptionGroup, selection: Selection) -> Pulled:
        policy = self._checks.policy(group)
        find = self._by_tags if selection.condition is None else self._by_condition
        found = find(pull, offset, selection, policy.corrects_offsets)
        code, suggestion = policy.answer(found.status, offset, from_slave=found.suggest_pull_from_slave)
        return Pulled(
            read_in=self._read_in(pull, found.next_begin_offset, found.max_offset),
            code=code,
            status=found.status,
            next_begin_offset=found.next_begin_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
            suggested_broker_id=suggestion,
            count=found.count,
            records=found.records,
            sizes=found.sizes,
        )

    def _by_tags(self, pull: Pull, offset: int, selection: Selection, corrects_offsets: bool) -> GetMessageResult:
        return self._broker.store.queues.get_message(
            pull.topic,
            pull.queue_id,
            offset,
            pull.max_msg_nums or DEFAULT_MAX_MSG_NUMS,
            pull.max_msg_bytes or UNLIMITED_BYTES,
            codes_of(selection.tags),
            correct_offset=corrects_offsets,
        )

    def _by_condition(self, pull: Pull, offset: int, selection: Selection, corrects_offsets: bool) -> GetMessageResult:
        """Finds messages like `_by_tags`, but by a condition on their properties."""
        one = replace(pull, max_msg_nums=1)
        first = self._by_tags(one, offset, replace(selection, tags=None), corrects_offsets)
        if first.status is not GetMessageStatus.FOUND:
            return first
        config = self._broker.config
        most, most_bytes = (
            (config.max_transfer_count_on_message_in_disk, config.max_transfer_bytes_on_message_in_disk)
            if first.suggest_pull_from_slave
            else (config.max_transfer_count_on_message_in_memory, config.max_transfer_bytes_on_message_in_memory)
        )
        chosen = select_first(
            self._broker.store,
            pull.topic,
            pull.queue_id,
            offset,
            first.max_offset,
            min(pull.max_msg_nums or DEFAULT_MAX_MSG_NUMS, most),
            min(pull.max_msg_bytes or UNLIMITED_BYTES, most_bytes),
            selection,
        )
        records = [data for data, _ in chosen.messages]
        return replace(
            first,
            status=GetMessageStatus.FOUND if records else GetMessageStatus.NO_MATCHED_MESSAGE,
            next_begin_offset=chosen.next,
            records=b"".join(records),
            sizes=np.fromiter(map(len, records), "<u4").tobytes(),
            count=len(records),
        )

    def _truncated(self, pull: Pull, group: SubscriptionGroup) -> Pulled | None:
        """If the consumer has read records that this log lacks, returns an answer with the offset from which it must
        read again; otherwise None.
        """
        log_end = self._broker.end_of(pull.read_in)
        if log_end is None:
            return None
        end = self._broker.store.queues.end_at(pull.topic, pull.queue_id, log_end)
        if pull.queue_offset <= end:
            return None
        min_offset, max_offset = self._broker.store.queues.bounds(pull.topic, pull.queue_id)
        return Pulled(
            code=PullCode.PULL_OFFSET_MOVED,
            status=GetMessageStatus.OFFSET_TRUNCATED,
            next_begin_offset=end,
            min_offset=min_offset,
            max_offset=max_offset,
            suggested_broker_id=self._checks.policy(group).suggested_broker_id(from_slave=False),
            read_in=self._broker.log_epoch,
        )

    def _read_in(self, pull: Pull, next_offset: int, max_offset: int) -> LogEpoch:
        """Returns the epoch that the consumer must send with its next pull.

        As long as the broker cannot tell whether its log has the records that the consumer has read, the consumer keeps
        the epoch of its present pull.
        """
        here = self._broker.log_epoch
        if not pull.read_in.epoch or pull.read_in == here or self._has_all_before(pull):
            return here if next_offset <= max_offset else pull.read_in
        return here if here < pull.read_in and pull.queue_offset < next_offset else pull.read_in

    def _has_all_before(self, pull: Pull) -> bool:
        """Returns True if this log has all records that the consumer has read, even if a newer master has replaced this
        broker.
        """
        log_end = self._broker.end_here_of(pull.read_in)
        if log_end is None:
            return False
        return pull.queue_offset <= self._broker.store.queues.end_at(pull.topic, pull.queue_id, log_end)

    def _refused(self, pull: Pull, group: SubscriptionGroup) -> Pulled | None:
        """Returns the answer of a broker that does not read for this pull; otherwise None."""
        if not self._checks.is_refused_here():
            return self._truncated(pull, group)
        min_offset, max_offset = self._broker.store.queues.bounds(pull.topic, pull.queue_id)
        return Pulled(
            code=PullCode.PULL_RETRY_IMMEDIATELY,
            status=GetMessageStatus.NO_MATCHED_MESSAGE,
            next_begin_offset=pull.queue_offset,
            min_offset=min_offset,
            max_offset=max_offset,
            suggested_broker_id=MASTER_ID,
        )

    def _readable(self, pull: Pull) -> SubscriptionGroup:
        group = self._checks.group(pull.group)
        self._checks.check_queue(pull.topic, pull.queue_id)
        return group


def _check_limits(pull: Pull) -> None:
    if pull.max_msg_nums < 0 or pull.max_msg_bytes < 0:
        raise InvalidParameter(
            f"a pull asks for {pull.max_msg_nums} messages and {pull.max_msg_bytes} bytes: "
            "neither may be negative, and 0 stands for the broker's own limit"
        )
