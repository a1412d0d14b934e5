"""The source on an instance of a cloud (option `namespace`), whose servers call a topic `INSTANCE%topic`.  Options,
rows, checkpoint and progress have the name without the instance, and only the calls to the servers have it.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from rocketsim_proto.remoting.codes import RequestCode

from rocketsim_client.connection import Connection
from rocketsim_source.batch_reader import RocketSimReader
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import SourceOptions, source_options
from rocketsim_source.schema import source_schema
from rocketsim_source.source_cluster import ClientCluster
from rocketsim_source.stream_reader import RocketSimStreamReader
from tests.support.cloud_instance import INSTANCE, Instance
from tests.support.remoting_peer import GROUP, TOPIC

# One topic of the instance can be read.  The others are the retry topic of a group, a topic of another instance, and
# two topics of no instance.
LISTED = (f"{INSTANCE}%{TOPIC}", f"%RETRY%{INSTANCE}%{GROUP}", f"MQ_INST_2%{TOPIC}", TOPIC, f"{TOPIC}_of_nobody")
PATTERN = f".*{TOPIC}.*"
FROM_32 = json.dumps({TOPIC: {"interop": {"0": 32, "1": "earliest"}}})
START, END = ({TOPIC: {"interop": {"0": offset, "1": 0}}} for offset in (32, 40))
ROWS = [(TOPIC, 0, offset) for offset in range(32, 40)]


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """Yields the servers of an instance, and ends all connections to them after the test."""
    opened: list[ClientCluster] = []
    open_cluster = ClientCluster.open

    def note(connection: Connection) -> ClientCluster:
        opened.append(open_cluster(connection))
        return opened[-1]

    monkeypatch.setattr(ClientCluster, "open", note)
    found = Instance(listed=LISTED)
    with found.peer:
        yield found
        for cluster in opened:
            cluster.close()


def options(instance: Instance, *, streaming: bool, **given: str) -> SourceOptions:
    where = {"nameServer": instance.peer.address, "protocol": "remoting", "namespace": INSTANCE, "group": GROUP}
    times = {"pullTimeoutMs": "60000", "commitTimeoutMs": "60000", "commitReconcileIntervalMs": "3600000"}
    return source_options(where | times | {"idlePollMs": "0"} | given, streaming=streaming)


def stream_reader(given: SourceOptions) -> RocketSimStreamReader:
    return RocketSimStreamReader(source_schema(given), given)


def rows(reader: Any, partitions: Sequence[InputPartition]) -> list[tuple[str, int, int]]:
    """Returns topic, queue id and offset of each row, as Spark's tasks read them."""
    found: list[tuple[str, int, int]] = []
    for partition in partitions:
        for batch in reader.read(partition):
            topics, ids, offsets = (batch.column(name).to_pylist() for name in ("topic", "queueId", "queueOffset"))
            found += zip(topics, ids, offsets, strict=True)
    return found


def test_a_stream_of_a_pattern_starts_and_goes_on_by_names_without_the_instance(instance: Instance) -> None:
    given = options(instance, streaming=True, subscribePattern=PATTERN, startingOffsets=FROM_32, commitOffsets="none")
    reader = stream_reader(given)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (start["q"], end["q"], end["start"]) == (START, END, START)
    assert rows(reader, reader.partitions(start, end)) == ROWS
    progress = reader.reportLatestOffset()
    assert progress is not None
    assert (progress["q"], progress["topic"]) == (END, TOPIC)
    assert INSTANCE not in json.dumps([start, end, progress])

    checkpoint = json.loads(json.dumps(end))
    restarted = stream_reader(given)
    assert restarted.latestOffset(checkpoint, restarted.getDefaultReadLimit()) == checkpoint
    assert rows(restarted, restarted.partitions(start, checkpoint)) == ROWS
    assert instance.names == {f"{INSTANCE}%{TOPIC}", f"{INSTANCE}%{GROUP}"}


def test_a_batch_of_a_pattern_reads_what_offsets_without_the_instance_say(instance: Instance) -> None:
    ends = json.dumps({TOPIC: {"interop": {"0": 40}}})
    given = options(instance, streaming=False, subscribePattern=PATTERN, startingOffsets=FROM_32, endingOffsets=ends)
    reader = RocketSimReader(source_schema(given), given)
    assert rows(reader, reader.partitions()) == ROWS
    assert instance.names == {f"{INSTANCE}%{TOPIC}", f"{INSTANCE}%{GROUP}"}


def test_assigned_queues_and_commits_of_the_group_have_names_without_the_instance(instance: Instance) -> None:
    assigned = {"assign": json.dumps({TOPIC: {"interop": [0]}}), "commitAsync": "false"}
    chain = json.dumps({TOPIC: {"interop": {"0": "committed,earliest"}}})
    reader = stream_reader(options(instance, streaming=True, startingOffsets=chain, **assigned))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.commit(end)
    whole = {TOPIC: {"interop": {"0": 40}}}
    assert (start["q"], end["q"]) == ({TOPIC: {"interop": {"0": 0}}}, whole)
    progress = reader.reportLatestOffset()
    assert progress is not None
    assert (progress["group"]["name"], progress["group"]["committed"]) == (GROUP, whole)
    assert INSTANCE not in json.dumps([start, end, progress])
    reader.stop()
    commits = [one for one in instance.peer.requests if one.code == RequestCode.UPDATE_CONSUMER_OFFSET]
    assert [one.fields["commitOffset"] for one in commits] == ["0", "40"]
    retry_topic = f"%RETRY%{INSTANCE}%{GROUP}"  # is made so that RocketMQ's tools list the group
    assert instance.names == {f"{INSTANCE}%{TOPIC}", f"{INSTANCE}%{GROUP}", retry_topic}


def test_a_start_that_names_the_instance_is_refused(instance: Instance) -> None:
    starts = json.dumps({f"{INSTANCE}%{TOPIC}": "earliest"})
    reader = stream_reader(options(instance, streaming=True, subscribePattern=PATTERN, startingOffsets=starts))
    with pytest.raises(OptionError, match=f"startingOffsets names {INSTANCE}%{TOPIC}, which is not among the queues"):
        reader.initialOffset()


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("named", "written", "meant"),
    [
        ({"topic": f"{INSTANCE}%{TOPIC}"}, f"{INSTANCE}%{TOPIC}", TOPIC),
        ({"subscribe": f"a,{INSTANCE}%{TOPIC}"}, f"{INSTANCE}%{TOPIC}", TOPIC),
        ({"subscribe": f"%RETRY%{INSTANCE}%{GROUP}"}, f"%RETRY%{INSTANCE}%{GROUP}", f"%RETRY%{GROUP}"),
        ({"assign": json.dumps({f"{INSTANCE}%{TOPIC}": {"b": [0]}})}, f"{INSTANCE}%{TOPIC}", TOPIC),
    ],
    ids=["topic", "subscribe", "retry topic", "assign"],
)
def test_a_topic_that_is_written_with_its_instance_is_refused(
    named: dict[str, str], written: str, meant: str, streaming: bool
) -> None:
    with pytest.raises(OptionError) as refused:
        source_options({"nameServer": "h:1", "namespace": INSTANCE} | named, streaming=streaming)
    assert str(refused.value) == (
        f"topic {written} is written with its instance {INSTANCE}, which the option namespace or the address in "
        f"nameServer names: write {meant}"
    )


@pytest.mark.parametrize("topic", [TOPIC, f"%RETRY%{GROUP}", f"MQ_INST_2%{TOPIC}", INSTANCE])
def test_other_topics_may_be_written_as_they_are(topic: str) -> None:
    given = {"nameServer": "h:1", "topic": topic}
    assert source_options(given | {"namespace": INSTANCE}, streaming=True).topics == (topic,)
    with_prefix = {"nameServer": "h:1", "topic": f"{INSTANCE}%{TOPIC}"}  # no option says that this is an instance
    assert source_options(with_prefix, streaming=True).topics == (f"{INSTANCE}%{TOPIC}",)
