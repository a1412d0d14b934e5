import zlib

import lz4.frame
import numpy as np
import pytest
import zstandard
from rocketsim_proto import record
from rocketsim_proto.columnar import RecordError, Records
from rocketsim_proto.compression import LZ4, ZLIB, ZSTD, CompressionError, decompress
from rocketsim_proto.record import Record

from tests.support.golden import golden_records

BODY = b"a body that repeats itself, " * 1000
PACKED = {
    LZ4: lz4.frame.compress(BODY),
    ZSTD: zstandard.ZstdCompressor(write_content_size=False).compress(BODY),
    ZLIB: zlib.compress(BODY),
}


@pytest.mark.parametrize("kind", PACKED)
def test_a_body_is_unpacked_by_the_type_in_its_flag(kind: int) -> None:
    assert decompress(PACKED[kind], 1 | kind, len(BODY)) == BODY


def test_a_body_without_a_type_is_zlib_as_older_clients_wrote_it() -> None:
    assert decompress(PACKED[ZLIB], 1, len(BODY)) == BODY


@pytest.mark.parametrize("kind", PACKED)
def test_a_body_never_unpacks_to_more_than_is_allowed(kind: int) -> None:
    with pytest.raises(CompressionError, match="more than"):
        decompress(PACKED[kind], 1 | kind, len(BODY) - 1)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda b: b[: len(b) // 2], id="half of it"),
        pytest.param(lambda b: b[:-1], id="last byte missing"),
        pytest.param(lambda b: b"", id="empty"),
        pytest.param(lambda b: b"no compressed body", id="something else"),
    ],
)
def test_a_damaged_body_is_refused(kind: int, damage) -> None:
    with pytest.raises(CompressionError):
        decompress(damage(PACKED[kind]), 1 | kind, len(BODY))


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(CompressionError, match="type 4"):
        decompress(b"", 0x401, 10)


def test_a_batch_is_unpacked_row_by_row_and_the_bad_record_is_named() -> None:
    plain = record.encode(Record("t", b"plain"))
    packed = [record.encode(Record("t", body, sys_flag=1 | kind)) for kind, body in PACKED.items()]
    records = Records.walk(plain + b"".join(packed) + plain)
    assert records.bodies_uncompressed(len(BODY)).to_pylist() == [b"plain", BODY, BODY, BODY, b"plain"]
    bad = record.encode(Record("t", b"no", sys_flag=1))
    with pytest.raises(RecordError) as error:
        Records.walk(plain + bad + plain).bodies_uncompressed(100)
    assert error.value.at == len(plain)


def test_bodies_that_rocketmq_compressed_are_read() -> None:
    messages, data = golden_records()
    rows = [row for row, line in enumerate(messages) if line["topic"] == "golden_compressed"]
    bodies = Records.walk(data)[np.array(rows)].bodies_uncompressed(1 << 20).to_pylist()
    assert [len(body) for body in bodies] == [4095, 4096, 50000] * 3
    assert {body.split()[0] for body in bodies} == {b"LZ4", b"ZSTD", b"ZLIB"}
    assert all(body.count(b"lorem ipsum") > 300 for body in bodies)
