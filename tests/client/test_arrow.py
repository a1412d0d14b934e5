"""Topics and pulled messages as Arrow: they equal the messages, and a missing record is an error."""

import pyarrow as pa
import pytest
from rocketsim_proto import broker_pb2 as pb

from rocketsim_client import (
    BadAnswer,
    InvalidParameter,
    MasterNotExist,
    Message,
    MessageQueue,
    OffsetIllegal,
    Producer,
    PullConsumer,
)
from tests.support.fake_broker import Answer, FakeCluster

A0, B3 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-b", 3)
COLUMNS = (
    *("topic", "brokerName", "queueId", "queueOffset", "msgId", "keys", "tags", "body", "flag", "bornTimestamp"),
    *("storeTimestamp", "reconsumeTimes", "messageGroup", "properties"),
)


@pytest.fixture
def sent(cluster: FakeCluster) -> list:
    with Producer(cluster.address, compress_msg_body_over_howmuch=50) as producer:
        return [
            producer.send(
                Message("T", b"%d" % n * (1 + n % 9 * 40), "AB"[n % 2], f"k{n}" if n % 3 else None, {"n": str(n)}),
                message_group="g" if n % 4 == 0 else None,
            )
            for n in range(60)
        ]


@pytest.fixture
def consumer(cluster: FakeCluster):
    with PullConsumer(cluster.address, "g") as made:
        yield made


def test_a_topic_is_read_as_the_messages_that_are_pulled(sent: list, consumer: PullConsumer) -> None:
    rows = consumer.read("T").read_all().to_pylist()
    assert {row["msgId"] for row in rows} == {result.msg_id for result in sent} and len(rows) == 60
    assert tuple(rows[0]) == COLUMNS
    for queue in consumer.message_queues("T"):
        mine = [row for row in rows if (row["brokerName"], row["queueId"]) == queue[1:]]
        pulled = consumer.pull(queue, 0, 100).messages
        assert len(mine) == len(pulled)
        for row, message in zip(mine, pulled, strict=True):
            assert (row["queueOffset"], row["body"], row["tags"]) == (message.queue_offset, message.body, message.tags)
            assert (row["keys"], row["messageGroup"]) == (message.keys, message.message_group)
            assert dict(row["properties"]) == message.properties
            assert row["bornTimestamp"].timestamp() * 1000 == pytest.approx(message.born_timestamp)


def test_pulled_messages_are_a_table(sent: list, consumer: PullConsumer) -> None:
    queue = sent[0].message_queue
    messages = consumer.pull(queue, 0, 100).messages
    table = messages.to_arrow()
    assert tuple(table.column_names) == COLUMNS
    assert table["body"].to_pylist() == [message.body for message in messages]
    assert {tuple(row.values()) for row in table.select(["topic", "brokerName", "queueId"]).to_pylist()} == {queue}
    assert messages.to_arrow(["bornHost", "body"]).column_names == ["bornHost", "body"]
    nothing = consumer.pull(queue, len(messages)).messages.to_arrow()
    assert nothing.num_rows == 0 and nothing.schema == table.schema


def test_only_some_columns_queues_and_tags_are_read(sent: list, consumer: PullConsumer) -> None:
    queue = sent[0].message_queue
    mine = [n for n, result in enumerate(sent) if result.message_queue == queue]
    table = consumer.read("T", queues=[queue], columns=["tags"], expression="B").read_all()
    assert table.column_names == ["tags"] and table["tags"].to_pylist() == ["B"] * sum(n % 2 for n in mine)


def test_a_read_starts_where_it_is_told_and_ends_where_the_queues_ended(sent: list, consumer: PullConsumer) -> None:
    queue = sent[0].message_queue
    size = consumer.max_offset(queue)
    given = consumer.read("T", start={queue: 2}, end={queue: size - 1}).read_all()
    assert given["queueOffset"].to_pylist() == list(range(2, size - 1))
    consumer.commit(queue, 3)
    reader = consumer.read("T", queues=[queue], start="committed")
    assert reader.read_all()["queueOffset"].to_pylist() == list(range(3, size))
    assert consumer.read("T", start=0).read_all().num_rows == 60


def test_what_a_queue_does_not_have_is_refused(sent: list, consumer: PullConsumer, cluster: FakeCluster) -> None:
    queue = sent[0].message_queue
    end = consumer.max_offset(queue)
    with pytest.raises(OffsetIllegal, match=f"offsets 0 to {end + 1} were to be read; the queue has 0 to {end}"):
        consumer.read("T", queues=[queue], end={queue: end + 1})
    with pytest.raises(OffsetIllegal, match=f"offsets {end + 5} to {end}"):
        consumer.read("T", start={queue: end + 5})
    with pytest.raises(InvalidParameter, match="no queue 9"):
        consumer.read("T", queues=[queue._replace(queue_id=9)])
    with pytest.raises(InvalidParameter, match="no queue 9"):
        consumer.read("T", end={queue._replace(queue_id=9): 1})
    with pytest.raises(InvalidParameter, match="for other queues than"):
        consumer.read("T", queues=[queue, queue._replace(queue_id=(queue.queue_id + 1) % 4)], start={queue: 0})
    with pytest.raises(InvalidParameter, match="start 'latest'"):
        consumer.read("T", start="latest")
    with pytest.raises(InvalidParameter, match="column 'boddy' is not known"):
        consumer.read("T", columns=["boddy"])
    cluster.stop("broker-a")
    with pytest.raises(MasterNotExist, match="it is not known if group 'g' has an offset"):
        consumer.read("T", start="committed")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (pb.PullResponse.OFFSET_TOO_SMALL, "retention has deleted some of them"),
        (pb.PullResponse.OFFSET_TRUNCATED, "a slave was promoted"),
        (pb.PullResponse.OFFSET_OVERFLOW_BADLY, "does not have all of them"),
        (pb.PullResponse.NO_MATCHED_LOGIC_QUEUE, "does not exist"),
    ],
)
def test_what_went_while_it_was_read_is_an_error(
    sent: list, consumer: PullConsumer, cluster: FakeCluster, status: int, says: str
) -> None:
    queue = sent[0].message_queue
    reader = consumer.read("T", queues=[queue])
    frame = pb.PullFrame(segments=[pb.PullFrame.Segment(range_index=0, next_offset=5, min_offset=5, status=status)])
    cluster.brokers[queue.broker_name, 0].script["PullRange"].append(Answer(frame))
    with pytest.raises(OffsetIllegal, match=says):
        reader.read_all()


def test_records_that_do_not_add_up_are_given_to_nobody(
    sent: list, consumer: PullConsumer, cluster: FakeCluster
) -> None:
    queue = sent[0].message_queue
    end = consumer.max_offset(queue)
    frame = pb.PullFrame(segments=[pb.PullFrame.Segment(range_index=0, next_offset=end, max_offset=end)])
    cluster.brokers[queue.broker_name, 0].script["PullRange"].append(Answer(frame))
    with pytest.raises(BadAnswer, match=f"0 records for the offsets 0 to {end}"):
        consumer.read("T", queues=[queue]).read_all()


def test_a_read_goes_on_at_the_slave(sent: list, consumer: PullConsumer, cluster: FakeCluster) -> None:
    cluster.brokers["broker-a", 0].frames_before_break = 1
    rows = consumer.read("T", columns=["msgId"]).read_all()["msgId"].to_pylist()
    assert sorted(rows) == sorted(result.msg_id for result in sent)


@pytest.mark.parametrize("library", ["pandas", "duckdb"])
def test_data_frames_are_one_line_away(sent: list, consumer: PullConsumer, library: str) -> None:
    found = pytest.importorskip(library)
    reader = consumer.read("T", columns=["tags", "queueOffset"])
    assert isinstance(reader, pa.RecordBatchReader)
    if library == "pandas":
        assert reader.read_pandas().groupby("tags").size().to_dict() == {"A": 30, "B": 30}
    else:
        assert found.sql("select count(*) from reader").fetchall() == [(60,)]
