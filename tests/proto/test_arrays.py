"""Arrow arrays that are made without pandas equal pa.array's, and rows are read and written without
importing pandas.
"""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import arrays


@given(st.lists(st.none() | st.text(max_size=5)))
def test_texts_and_bytes_are_those_of_arrow(values: list[str | None]) -> None:
    assert arrays.texts(values).equals(pa.array(values, pa.string()))
    encoded = [None if value is None else value.encode() for value in values]
    assert arrays.binaries(encoded).equals(pa.array(encoded, pa.binary()))
    arrays.texts(values).validate(full=True)


@given(st.lists(st.booleans()), st.integers(0, 9))
def test_truths_go_there_and_back(values: list[bool], first: int) -> None:
    truths = np.array(values, np.bool_)
    assert arrays.booleans(truths).equals(pa.array(values, pa.bool_()))
    assert arrays.mask(arrays.booleans(truths)[first:]).tolist() == values[first:]


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64])
def test_numbers_go_there_and_back(kind: type) -> None:
    values = np.arange(20, dtype=kind)
    for some in (values, values[3:7], values[::2], values[:0]):
        assert arrays.numbers(some).equals(pa.array(some))
        assert arrays.numpy_of(arrays.numbers(some)).tolist() == some.tolist()
    assert arrays.numpy_of(arrays.numbers(values)[5:9]).tolist() == values[5:9].tolist()


READS_AND_WRITES = """
import sys
class Watch:
    asked = False
    def find_spec(self, name, path=None, target=None):
        Watch.asked = Watch.asked or name == "pandas"
sys.meta_path.insert(0, Watch())
import numpy as np
from rocketsim_client.arrow import COLUMNS, OfQueue, RecordDecoder, schema_of
from rocketsim_client.model import MessageQueue
from rocketsim_client.transport import record_frame
from rocketsim_client.sending.columns import ColumnPlan, plan_columns
from rocketsim_proto.records.arrays import binaries, texts
from rocketsim_proto.records.columnar import Records, UniqIds

queues = [MessageQueue("T", "a", number) for number in range(4)]
plan = ColumnPlan(topic="T", batch_bytes=1 << 20, max_message_size=1 << 20, compress_over=1 << 20, compress_type="ZLIB",
                  queues=queues, first=0, may_move=True)
for count, many in ((5, "x"), (500, "x"), (500, "xx")):  # few; of one size; of several
    bodies = binaries([(many * (number % 3 + 1) if many == "xx" else many).encode() for number in range(count)])
    keys = texts([many * (number % 3 + 1) if many == "xx" else many for number in range(count)])
    ids = UniqIds().next(count, 1)
    for batch, _ in plan_columns(plan, bodies, keys, keys, None, None, ids, 1):
        records = Records.walk(record_frame.encode(batch.outgoing(), bytes(4))[0])
        decoder = RecordDecoder(schema_of(None))
        runs = [OfQueue(queues[0], 2), OfQueue(queues[1], len(records) - 2)]
        (read,) = decoder.batches(records, runs, 0)
        assert read.num_rows == len(records)
        assert read.column("msgId").equals(ids) and read.column("keys").equals(keys)
print(Watch.asked, "pandas" in sys.modules)
"""


def test_rows_are_written_and_read_without_pandas() -> None:
    """Where pandas is installed, its import would take 0.4 s of CPU and 42 MB in each of Spark's workers."""
    ran = subprocess.run([sys.executable, "-c", READS_AND_WRITES], capture_output=True, text=True, env=os.environ)
    assert (ran.returncode, ran.stdout.split()) == (0, ["False", "False"]), ran.stderr
