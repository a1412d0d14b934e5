"""Tests the options accessKey and secretKey of source and sink with brokers that have access control.  No plan and no
representation may have the secret.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.sink_options import sink_options
from rocketsim_source.options.source_options import READER_GROUP, source_options
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from tests.support.access import ADMIN, KEYS
from tests.support.broker_thread import BrokerThread, broker_thread

SECRET = "sp4rk-s3cr3t"
TIMEOUT_S = PROCESS_PATIENCE_S


@pytest.fixture
def broker(spark: Any, tmp_path: Path) -> Iterator[BrokerThread]:
    """Yields a broker with a user `spark` that may send to and read topic T."""
    with broker_thread(tmp_path / "broker", mapped_file_size_commit_log=8 << 20, **KEYS) as started:
        access = started.node.access
        assert access is not None
        wait_until(lambda: access.users.get(ADMIN.access_key) is not None, "the first user")
        started.make_topic("T")

        async def allow() -> None:
            await access.users.apply(lambda: access.users.putting(User("spark", SECRET), 1))
            policies = [
                Policy.parse("Topic:T", ["Pub", "Sub"]),
                Policy.parse("Group:g", ["Sub"]),
                Policy.parse(f"Group:{READER_GROUP}", ["Sub"]),
            ]
            await access.acls.apply(lambda: access.acls.putting(Acl("User:spark").with_policies(policies), 1))

        started.run(allow())
        yield started


def test_spark_reads_writes_and_commits_and_nobody_sees_its_secret(
    spark: Any,
    broker: BrokerThread,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("broker_service", "rocketsim_client", "rocketsim_source"):  # without py4j, which logs every command
        caplog.set_level(logging.DEBUG, name)
    reached = {"brokers": f"broker-a=0@{broker.node.address}", "topic": "T"}
    patient = {"pullTimeoutMs": "60s", "commitTimeoutMs": "60s"}
    keys = {"accessKey": "spark", "secretKey": SECRET}
    rows = spark.createDataFrame([(b"a",), (b"b",)], "body binary")
    rows.write.format("rocketsim").mode("append").options(**reached, **keys, sendTimeoutMs="60s").save()
    assert broker.do(lambda: broker.node.store.queues.end("T", 0)) == 2
    stream = spark.readStream.format("rocketsim").options(
        **reached, **keys, **patient, group="g", startingOffsets="earliest", commitOffsets="onTrigger"
    ).load()  # fmt: skip
    checkpoint = tmp_path / "checkpoint"
    query = (
        stream.select("body")
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT_S)
        assert sorted(row.body for row in spark.sql("SELECT body FROM seen").collect()) == [b"a", b"b"]
        wait_until(lambda: broker.do(lambda: broker.node.offsets.progress("g", "T", 0).offset) == 2, "the commit")
        progress = [json.dumps(json.loads(one.json)) for one in query.recentProgress]
        assert progress
        batch = spark.read.format("rocketsim").options(**reached, **keys, **patient).load()
        plans = [frame._jdf.queryExecution().toString() for frame in (batch, stream)]
        written = [path.read_text(errors="replace") for path in checkpoint.rglob("*") if path.is_file()]
        assert batch.count() == 2 and written
    finally:
        query.stop()
    # A wrong secret is refused at once, with the reason.
    with pytest.raises(Exception, match="check signature failed") as refused:
        wrong = (
            spark.read.format("rocketsim")
            .options(**reached, accessKey="spark", secretKey=f"{SECRET}-wrong", **patient)
            .load()
        )
        wrong.count()
    out, err = capfd.readouterr()
    seen = [*progress, *plans, *written, str(refused.value), caplog.text, out, err]
    assert not [text for text in seen if SECRET in text]


def test_the_plans_that_spark_keeps_of_reads_and_writes_have_no_secret(
    spark: Any, broker: BrokerThread, tmp_path: Path
) -> None:
    """Spark shows its plans on its pages and writes them to its event log."""
    reached = {"brokers": f"broker-a=0@{broker.node.address}", "topic": "T"}
    keys = {"accessKey": "spark", "secretKey": SECRET}
    spark.createDataFrame([(b"a",)], "body binary").write.format("rocketsim").mode("append").options(
        **reached, **keys, sendTimeoutMs="60s"
    ).save()
    query = (
        spark.readStream.format("rocketsim")
        .options(**reached, **keys, pullTimeoutMs="60s", startingOffsets="earliest")
        .load()
        .select("body")
        .writeStream.format("rocketsim")
        .options(**reached, **keys, sendTimeoutMs="60s")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT_S)
        plan = query._jsq.explainInternal(True)
        progress = str(query.lastProgress)
    finally:
        query.stop()
    assert broker.do(lambda: broker.node.store.queues.end("T", 0)) == 2
    kept = spark._jsparkSession.sharedState().statusStore().executionsList()
    shown = [str(kept.apply(number).physicalPlanDescription()) for number in range(kept.size())]
    assert sum("rocketsim" in text.lower() for text in shown) >= 2
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("checkpoint/**/*") if path.is_file()]
    assert written
    assert not [text for text in (plan, progress, *shown, *written) if SECRET in text]


@pytest.mark.parametrize("parse", [lambda given: source_options(given, streaming=True), sink_options])
def test_the_options_belong_together_and_are_in_no_representation(parse: Any) -> None:
    where = {"nameServer": "h:1", "topic": "T"}
    options = parse({**where, "accessKey": "spark", "secretKey": SECRET})
    assert options.connection.credentials.secret_key == SECRET
    assert SECRET not in repr(options) + repr(options.connection)
    assert parse(where).connection.credentials is None
    for given in ({"accessKey": "spark"}, {"secretKey": SECRET}, {"accessKey": "spark", "secretKey": " "}):
        with pytest.raises(OptionError, match=r"accessKey|secretKey") as refused:
            parse(where | given)
        assert SECRET not in str(refused.value)
