"""The examples for Spark in docs/ run unchanged, and the errors and options that they name exist in the code."""

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketsim_client import Admin, Message, MessageQueue
from rocketsim_source.options.option_values import OptionError, option_names
from rocketsim_source.options.positions import positions
from rocketsim_source.options.sink_options import SinkOptions, sink_options
from rocketsim_source.options.source_options import SourceOptions, source_options
from testbed.polling import wait_until
from tests.source.bench import TIMEOUT_S, Bench
from tests.support.command_line import CommandLine

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    name: (ROOT / "docs" / name).read_text()
    for name in ("spark.md", "spark-recipes.md", "spark-errors.md", "move-from-kafka.md")
}


def section(title: str) -> str:
    """Returns the text below a heading, which only one of the documents may have."""
    (text,) = (text for text in DOCUMENTS.values() if f"\n## {title}\n" in text)
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(title: str) -> list[list[str]]:
    """Returns the rows of all tables below a heading, without the tables' head rows."""
    lines = section(title).splitlines()
    rows = [line for line, after in zip(lines, [*lines[1:], ""], strict=True) if not after.startswith("|---")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| ")]
    assert cells, title
    return cells


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- the snippets -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def snippets(pair: Bench, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Any]]:
    """Runs the code blocks of a section.  Each block knows the names that earlier blocks have defined, as in a
    notebook.

    Queries that a block starts read everything before the next block runs.
    """
    names: dict[str, Any] = {"spark": pair.spark}
    for number in range(20):
        tags = "alarm" if number % 4 == 0 else "red"
        pair.producer.send(Message("telemetry", b"reading %d" % number, tags, f"key {number % 3}"))
    topics = ("telemetry", "telemetry-upper", "all", "alarms", "copies", "orders")
    with Admin(pair.name_server.address) as admin:
        for topic in topics[1:]:
            admin.update_topic(topic)
    wait_until(lambda: all(map(pair.is_known, topics)), "the topics", TIMEOUT_S)
    checkpoints = str(tmp_path_factory.mktemp("checkpoints"))

    def run(title: str, language: str) -> dict[str, Any]:
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.M | re.S)
        assert blocks
        for block in blocks:
            code = block.replace("localhost:9876", pair.name_server.address).replace("/tmp/checkpoints", checkpoints)
            if language == "sql":
                names["tables"] = [pair.spark.sql(statement).collect() for statement in code.split(";")]
            else:
                exec(compile(code, f"docs, {title}", "exec"), names)
                for query in pair.spark.streams.active:
                    finish(query)
        return names

    return run


def finish(query: Any) -> None:
    try:
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.spark
@pytest.mark.cluster
def test_the_snippets_of_the_documents_run(
    pair: Bench,
    snippets: Callable[[str, str], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # a snippet sets it
    snippets("Before the first query", "python")
    line = CommandLine(capsys, monkeypatch, **{"localhost:9876": pair.name_server.address, "telemetry": "before"})
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", section("Before the first query"), re.M | re.S)
    assert line.run(commands).count("SEND_OK") == 20 == pair.batch("before").count()

    found = snippets("First queries", "python")
    upper = pair.batch("telemetry-upper").collect()
    assert {bytes(row.body) for row in upper} == {b"READING %d" % number for number in range(20)}

    tables = snippets("SQL", "sql")["tables"]
    assert {row.tags: row.messages for row in tables[1]} == {"alarm": 5, "red": 15}

    narrowed = snippets("What to read", "python")
    assert (narrowed["hour"].count(), narrowed["reds"]) == (0, 15)
    pair.spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert snippets("Spark: the same query", "python")["values"].columns == ["key", "value", "partition", "offset"]

    found["stream"] = pair.stream("telemetry", startingOffsets="earliest")
    snippets("Several sinks: foreachBatch", "python")
    assert (pair.batch("all").count(), pair.batch("alarms").count()) == (20, 5)

    snippets("Writing", "python")
    queues = {(row["keys"], row.queueId) for row in pair.batch("copies").collect()}
    assert len(queues) == 3  # all rows with the same key go to one queue

    # The rows have the columns of Kafka's source.
    found["rows"] = pair.stream("telemetry", startingOffsets="earliest", schemaProfile="kafka")
    snippets("Copy what Kafka has", "python")
    orders = pair.batch("orders").collect()
    assert {bytes(row.body) for row in orders} == {b"reading %d" % number for number in range(20)}
    assert len({row.msgId for row in orders}) == len({(row["keys"], bytes(row.body)) for row in orders}) == 20
    assert len({(row["keys"], row.queueId) for row in orders}) == 3


@pytest.mark.spark
@pytest.mark.cluster
def test_the_recipe_drops_copies_in_different_batches_and_forgets_ids_behind_the_watermark(
    pair: Bench, snippets: Callable[[str, str], dict[str, Any]], checkpoint: str
) -> None:
    topic = pair.topic()
    frame = pair.spark.range(6).selectExpr("CAST(id AS STRING) AS body", "id % 3 AS number")

    def send() -> None:
        options = pair.options(topic, sinkMode="idempotent", idColumns="number", sinkName="recipe")
        frame.write.format("rocketsim").mode("append").options(**options).save()

    send()  # the ids 0, 1 and 2, twice
    found = snippets("Spark: the same query", "python")
    found["stream"] = pair.stream(topic, startingOffsets="earliest").where("body != 'first'")
    once = snippets("Dropping duplicates", "python")["once"]

    def run() -> list[int]:
        bodies: list[int] = []
        writer = once.writeStream.foreachBatch(lambda rows, _: bodies.extend(int(row.body) for row in rows.collect()))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)
        return sorted(body % 3 for body in bodies)

    assert run() == [0, 1, 2]
    send()  # as a repeated batch does: the same ids, but other offsets and store times
    assert run() == []


def test_the_offsets_of_the_document_are_read() -> None:
    (written,) = re.findall(r"^```json\n(.*?)^```", DOCUMENTS["spark.md"], re.M | re.S)
    found = positions(written)
    queues = MessageQueue("TopicA", "broker-a", 0), MessageQueue("TopicA", "broker-a", 7)
    queues += MessageQueue("TopicA", "broker-b", 0), MessageQueue("TopicB", "broker-c", 0)
    assert [found.at(queue) for queue in queues] == [(23,), ("latest",), ("earliest",), ("committed", "earliest")]


# --- the tables -------------------------------------------------------------------------------------------------------


def test_kafkas_options_are_compared_with_options_that_are_there() -> None:
    rows = table("Spark: options")
    ours = {name for row in rows for name in quoted(row[1])}
    assert ours <= {*option_names(SourceOptions), *option_names(SinkOptions)}
    assert len(rows) > 15


@pytest.mark.parametrize("name", sorted({name for row in table("Spark: options") for name in quoted(row[0])}))
def test_an_option_of_kafkas_is_taken_under_its_name_or_refused_by_it(name: str) -> None:
    """No option of Kafka's is ignored."""
    value = {"assign": '{"T":{"b":[0]}}', "startingOffsets": "earliest", "endingOffsets": "latest"}.get(name, "1")
    by_timestamp = "ByTimestamp" in name
    if by_timestamp:
        value = "error" if name.endswith("Strategy") else '{"T":{"b":{"0":1}}}'
    if name == "failOnDataLoss":
        value = "true"
    given = {"nameServer": "h:1", name: value}
    if name == "includeHeaders":
        given |= {"includeHeaders": "true", "schemaProfile": "kafka"}
    if name not in ("assign", "subscribe", "subscribePattern"):
        given["topic"] = "T"
    if name in option_names(SourceOptions):
        source_options(given, streaming=True)
    else:
        for options in (lambda: source_options(given, streaming=True), lambda: sink_options(given)):
            with pytest.raises(OptionError, match=f"(?i){re.escape(name)}"):
                options()


def texts_of_errors() -> list[str]:
    """Returns the strings in the code of the source, the client and the contract, with … in place of an f-string's
    values.
    """
    found = []
    packages = ("rocketsim_source", "rocketsim_client", "proto/rocketsim_proto")
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                values = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_errors_of_the_document_are_those_of_the_code() -> None:
    rows = table("Errors")
    texts = texts_of_errors()
    of_spark_and_python = {"DATA_SOURCE_NOT_FOUND", "No module named 'rocketsim_source'"}
    shown = [text for row in rows for text in quoted(row[0])]
    patterns = {text: ".*".join(re.escape(part) for part in text.split("…")) for text in shown}
    unknown = [text for text in shown if not any(re.search(patterns[text], known, re.S) for known in texts)]
    assert set(unknown) == of_spark_and_python
    assert len(rows) > 20


def test_the_actions_of_the_errors_are_options() -> None:
    known = {name.lower() for name in (*option_names(SourceOptions), *option_names(SinkOptions))}
    for row in table("Errors"):
        for text in quoted(row[2]):
            option, _, value = text.partition("=")
            if value and " " not in text:
                assert option.lower() in known, text
