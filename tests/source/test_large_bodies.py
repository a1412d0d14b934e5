"""Sends a body of 128 MiB, the largest that a broker may be configured to take, through Spark's source and sink."""

import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as f
from rocketsim_proto.limits import MAX_BODY_BYTES

from rocketsim_client import Message, Producer
from testbed.processes import Processes
from tests.source.bench import Bench

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture
def large(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yields a master without a slave that takes bodies of 128 MiB."""
    keys = {"maxMessageSize": MAX_BODY_BYTES, "mappedFileSizeCommitLog": 200 << 20, "autoCreateTopicEnable": True}
    with Processes(tmp_path_factory.mktemp("large")) as processes:
        name_server = processes.start_namesrv()
        master = processes.start_broker("broker-a", 0, name_server, **keys)
        with Bench(spark, processes, name_server, master, master) as bench:
            yield bench


def test_the_longest_body_is_read_and_written(large: Bench) -> None:
    source, target = large.topic(), large.topic()
    body = os.urandom(1 << 16) * (MAX_BODY_BYTES >> 16)
    limits = {"max_message_size": MAX_BODY_BYTES, "compress_msg_body_over_howmuch": 1 << 30}
    with Producer(cluster=large.cluster, send_msg_timeout_ms=60_000, **limits) as producer:
        producer.send(Message(source, body, tags="large"))
    rows = large.batch(source, pullTimeoutMs="60s").where("tags = 'large'").select("body", "tags")
    options = large.options(target, maxMessageSize="128m", compressMsgBodyOverHowmuch="1g", sendTimeoutMs="60s")
    rows.write.format("rocketsim").mode("append").options(**options).save()
    written = large.batch(target, pullTimeoutMs="60s").where("tags = 'large'")
    (found,) = written.select(f.length("body"), f.crc32("body")).collect()
    assert tuple(found) == (MAX_BODY_BYTES, zlib.crc32(body))
