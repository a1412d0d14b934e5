"""A record that one broker cannot read is read from another one.  If no broker can read the record, the task fails or
skips the record, as an option says.
"""

import logging
import zlib
from collections.abc import Sequence

import pytest

from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source.options.source_options import source_options
from rocketsim_source.planning.partition import QueueRangesPartition
from rocketsim_source.reading import partition_reader
from rocketsim_source.reading.unreadable import CorruptRecord
from rocketsim_source.schema import source_schema
from tests.source.memory_cluster import MemoryCluster

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
Row = tuple[MessageQueue, int, int]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Returns a pair with fifty messages in each of two queues."""
    made = MemoryCluster(0, 1)
    for queue in (Q0, Q1):
        made.put(queue, 50)
    monkeypatch.setattr(partition_reader, "worker_cluster", lambda options: made)
    monkeypatch.setattr(partition_reader, "hints_of_process", {})
    return made


def damage(
    cluster: MemoryCluster, how: str, offsets: Sequence[int], *broker_ids: int, queue: MessageQueue = Q0
) -> None:
    for broker_id in broker_ids:
        for offset in offsets:
            if how == "body":
                cluster.brokers[broker_id].packed[queue, offset] = b"not what zlib makes"
            else:
                cluster.brokers[broker_id].flipped.add((queue, offset))


def read(ranges: Sequence[OffsetRange] = (OffsetRange(Q0, 0, 50),), **given: str) -> list[Row]:
    """Returns (queue, offset, id of the broker that served it) of every row."""
    given = {"nameServer": "h:1", "topic": "T", "checkCrcs": "true", "pullRetryBackoffMs": "1"} | given
    options = source_options(given, streaming=True)
    rows: list[Row] = []
    for batch in partition_reader.read_partition(QueueRangesPartition(ranges), source_schema(options), options):
        for row in batch.to_pylist():
            queue = MessageQueue(row["topic"], row["brokerName"], row["queueId"])
            rows.append((queue, row["queueOffset"], row["servedByBrokerId"]))
    return rows


def offsets_of(rows: list[Row], queue: MessageQueue = Q0) -> list[int]:
    return [offset for of_queue, offset, _ in rows if of_queue == queue]


@pytest.mark.parametrize("how", ["body", "checksum"])
def test_what_one_broker_spoiled_the_other_has(cluster: MemoryCluster, how: str) -> None:
    damage(cluster, how, [17, 18, 33], 0)
    ranges = [OffsetRange(Q0, 0, 50), OffsetRange(Q1, 0, 50)]
    rows = read(ranges)
    assert [row[:2] for row in rows] == [(queue, offset) for queue in (Q0, Q1) for offset in range(50)]
    served = dict(((queue, offset), broker_id) for queue, offset, broker_id in rows)
    assert (served[Q0, 9], served[Q0, 17], served[Q1, 49]) == (0, 1, 0)


@pytest.mark.parametrize("how", ["body", "checksum"])
def test_what_no_broker_has_is_an_error_that_says_where_it_is(cluster: MemoryCluster, how: str) -> None:
    damage(cluster, how, [17], 0, 1)
    with pytest.raises(
        CorruptRecord, match=r"T@broker-a:0 offset 17 .*broker id 0, 1 of broker-a.*corrupt=skip"
    ) as error:
        read()
    assert error.value.place == (Q0, 17)


@pytest.mark.parametrize("how", ["body", "checksum"])
def test_what_no_broker_has_can_be_left_out_and_is_counted(
    cluster: MemoryCluster, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    lost = [0, 17, 18, 33, 49]
    damage(cluster, how, lost, 0, 1)
    with caplog.at_level(logging.WARNING):
        rows = read([OffsetRange(Q0, 0, 50), OffsetRange(Q1, 0, 50)], corrupt="skip")
    assert offsets_of(rows) == [offset for offset in range(50) if offset not in lost]
    assert offsets_of(rows, Q1) == list(range(50))
    said = [entry.getMessage() for entry in caplog.records if "left out" in entry.getMessage()]
    assert "offsets [17, 18], 3 records in this task so far" in said[1]
    assert "5 records in this task so far" in said[-1]


def test_a_run_of_unreadable_records_costs_a_few_calls(cluster: MemoryCluster) -> None:
    """A producer that marks uncompressed bodies as compressed can cause a long run of unreadable records."""
    damage(cluster, "body", range(50), 0, 1)
    assert read(corrupt="skip") == []
    calls = sum(len(broker.pulls) for broker in cluster.brokers.values())
    assert calls <= 15  # five frames of ten


def test_nothing_is_left_out_that_a_broker_may_have_which_is_away(cluster: MemoryCluster) -> None:
    damage(cluster, "checksum", [17], 0)
    cluster.brokers[1].up = False
    with pytest.raises(CorruptRecord, match="broker id 0 of broker-a"):
        read(corrupt="skip", pullRetries="2")


def test_nothing_is_left_out_when_the_route_names_nobody(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(cluster, "checksum", [17], 0)
    monkeypatch.setattr(cluster, "members", lambda queue: {})
    with pytest.raises(CorruptRecord):
        read(corrupt="skip", pullRetries="2")


def test_a_slave_that_has_trimmed_a_record_does_not_have_it(cluster: MemoryCluster) -> None:
    damage(cluster, "checksum", [17], 0)
    cluster.brokers[1].first[Q0] = 30
    with pytest.raises(CorruptRecord):
        read()
    assert offsets_of(read(corrupt="skip")) == [offset for offset in range(50) if offset != 17]


def test_a_slave_that_is_behind_may_get_a_record_yet(cluster: MemoryCluster) -> None:
    damage(cluster, "checksum", [17], 0)
    cluster.brokers[1].end[Q0] = 12
    with pytest.raises(CorruptRecord):
        read(corrupt="skip", pullRetries="2")


def test_master_only_asks_nobody_else(cluster: MemoryCluster) -> None:
    damage(cluster, "checksum", [17], 0)
    with pytest.raises(CorruptRecord, match="broker id 0 of broker-a"):
        read(readFrom="masterOnly")
    assert len(read(readFrom="masterOnly", corrupt="skip")) == 49
    assert not cluster.brokers[1].pulls


@pytest.mark.parametrize("given", [{}, {"subExpression": "A"}, {"columns": "queueOffset,topic,brokerName,queueId"}])
def test_rows_of_a_frame_that_were_given_on_come_once(cluster: MemoryCluster, given: dict[str, str]) -> None:
    """Bodies are unpacked a few at a time, so that a frame can fail in its middle."""
    cluster.rows = 30
    for broker in cluster.brokers.values():
        for offset in range(50):
            broker.packed[Q0, offset] = zlib.compress(b"%d" % offset * 400)
    damage(cluster, "body", [18], 0)
    given = {
        "pullMaxBytes": "1024",
        "checkCrcs": "false",
        "columns": "body,queueOffset,topic,brokerName,queueId",
    } | given
    given |= {"columns": given["columns"] + ",servedByBrokerId"}
    wanted = [offset for offset in range(50) if offset % 6 == 0 or "subExpression" not in given]
    assert offsets_of(read(**given)) == wanted


def test_without_the_check_and_the_body_nothing_is_unreadable(cluster: MemoryCluster) -> None:
    damage(cluster, "body", [15], 0, 1)
    rows = read(checkCrcs="false", columns="queueOffset,topic,brokerName,queueId,servedByBrokerId")
    assert [row[1:] for row in rows] == [(offset, 0) for offset in range(50)]
