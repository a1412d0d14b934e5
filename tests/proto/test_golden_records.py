"""The columns of a log that Apache RocketMQ wrote equal what its own code reads from it."""

import hashlib

from rocketsim_proto.records.columnar import Records

from tests.support.golden import golden_records

FIELDS = {
    "sizes": "storeSize",
    "body_crc": "bodyCRC",
    "queue_id": "queueId",
    "flag": "flag",
    "queue_offset": "queueOffset",
    "commit_log_offset": "commitLogOffset",
    "sys_flag": "sysFlag",
    "born_timestamp": "bornTimestamp",
    "store_timestamp": "storeTimestamp",
    "reconsume_times": "reconsumeTimes",
    "prepared_transaction_offset": "preparedTransactionOffset",
    "body_size": "bodyLength",
    "properties_size": "propertiesLength",
}


def test_every_field_of_the_golden_log_is_read_as_rocketmq_reads_it() -> None:
    messages, data = golden_records()
    records = Records.walk(data, count=len(messages))
    records.check()
    for column, key in FIELDS.items():
        assert getattr(records, column).tolist() == [line[key] for line in messages], column
    assert records.topics().to_pylist() == [line["topic"] for line in messages]
    assert records.property("TAGS").to_pylist() == [line["tags"] for line in messages]
    assert records.property("KEYS").to_pylist() == [line["keys"] for line in messages]
    assert [dict(pairs) for pairs in records.properties().to_pylist()] == [line["properties"] for line in messages]
    assert [hashlib.sha1(body).hexdigest() for body in records.bodies().to_pylist()] == [
        line["bodySha1"] for line in messages
    ]
    assert [host.replace(":", "/") for host in records.born_hosts().to_pylist()] == [m["bornHost"] for m in messages]
    assert [host.replace(":", "/") for host in records.store_hosts().to_pylist()] == [m["storeHost"] for m in messages]
    assert records.message_ids().to_pylist() == [
        line["properties"].get("UNIQ_KEY", line["offsetMsgId"]) for line in messages
    ]
