"""Queue offsets and queue entries of whole batches equal those of one record at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import Record, tags_code

from broker_service.store.dispatch import queue_extents, queue_offsets

queue_ids = st.lists(st.sampled_from([0, 0, 0, 1, 2, 7]), min_size=1, max_size=40)


@given(queue_ids | queue_ids.map(sorted), st.data())
def test_each_record_gets_the_next_offset_of_its_queue(ids, data):
    queued = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    following = {queue_id: 10 * queue_id + 3 for queue_id in ids}
    moved = dict(following)
    found = queue_offsets(np.array(ids, np.int32), np.array(queued), moved)
    expected = []
    for queue_id, has_place in zip(ids, queued, strict=True):
        expected.append(following[queue_id] if has_place else 0)
        following[queue_id] += has_place
    assert found.tolist() == expected
    assert moved == following


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1, 2, -1]), st.integers(0, 3)), max_size=90),
    st.booleans(),
)
def test_entries_are_those_of_each_queue_in_log_order(rows, in_order):
    rows = sorted(rows) if in_order else rows
    batch = [
        Record(
            topic=topic,
            body=b"",
            queue_id=queue_id,
            queue_offset=offset,
            commit_log_offset=100 * number,
            properties={"TAGS": f"t{number % 3}"},
        )
        for number, (topic, queue_id, offset) in enumerate(rows)
    ]
    runs = queue_extents(Records.walk(b"".join(map(record.encode, batch))), [])
    found = {}
    for run in runs:
        entries = found.setdefault((run.topic, run.queue_id), [])
        for number, entry in enumerate(run.entries.tolist()):
            entries.append((run.queue_offset + number, *entry))
    expected = {}
    for one in batch:
        entry = (one.queue_offset, one.commit_log_offset, len(record.encode(one)), tags_code(one.properties["TAGS"]))
        expected.setdefault((one.topic, one.queue_id), []).append(entry)
    assert found == expected
