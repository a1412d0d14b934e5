import gzip
import zlib
from typing import Any

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import columnar, record
from rocketsim_proto.records.columnar import RecordError, Records
from rocketsim_proto.records.compression import LZ4, ZLIB, ZSTD, CompressionError, decompress
from rocketsim_proto.records.record import Record

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


def test_a_body_without_a_type_may_be_gzip_as_rocketmqs_proxy_wrote_it() -> None:
    assert decompress(gzip.compress(b"hello"), 1) == b"hello"


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


def unpacked(records: Records, most_bytes: int = 1 << 30) -> list[bytes]:
    return [body for _, bodies in records.bodies_uncompressed(most_bytes) for body in bodies.to_pylist()]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=30), st.integers(1, 500))
def test_rows_come_once_in_order_and_in_pieces_of_at_most_so_many_bytes(
    rows: list[tuple[bool, int]], most_bytes: int
) -> None:
    bodies = [bytes([65 + row % 26]) * size for row, (_, size) in enumerate(rows)]
    data = b"".join(
        record.encode(Record("t", zlib.compress(body) if packed else body, sys_flag=1 if packed else 0))
        for (packed, _), body in zip(rows, bodies, strict=True)
    )
    at = 0
    for piece, found in Records.walk(data).bodies_uncompressed(most_bytes):
        assert piece.start == at and len(found) == piece.stop - piece.start > 0
        assert found.to_pylist() == bodies[piece]
        total = sum(map(len, bodies[piece]))
        assert total <= most_bytes or len(found) == 1
        if piece.stop < len(bodies):  # one more row would have exceeded the limit
            assert total + len(bodies[piece.stop]) > most_bytes
        at = piece.stop
    assert at == len(bodies)


@pytest.mark.parametrize("most_bytes", [100, 10_000, 1 << 30])
def test_sizes_are_summed_up_once_however_many_rows_are_compressed(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    rows, summed, cumsum = 2000, 0, np.cumsum

    def counted(sizes: Any) -> Any:
        nonlocal summed
        summed += len(sizes)
        return cumsum(sizes)

    data = b"".join(
        record.encode(Record("t", zlib.compress(b"x" * 90) if n % 2 else b"x" * 90, sys_flag=n % 2))
        for n in range(rows)
    )
    records = Records.walk(data)
    monkeypatch.setattr(np, "cumsum", counted)
    assert sum(len(bodies) for _, bodies in records.bodies_uncompressed(most_bytes)) == rows
    assert summed <= 4 * rows


def test_no_more_than_one_body_is_unpacked_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(columnar, "decompress", lambda body, flag, most: calls.append(body) or bytes(100))
    data = b"".join(record.encode(Record("t", bytes([n]), sys_flag=1)) for n in range(10))
    pieces = Records.walk(data).bodies_uncompressed(250)
    for taken in (3, 5, 7):
        next(pieces)
        assert len(calls) == taken


@pytest.mark.parametrize("kind", PACKED)
def test_a_large_body_is_unpacked_whole(kind: int) -> None:
    large = b"".join(b"%d," % n for n in range(300_000))
    pack = {LZ4: lz4.frame.compress, ZSTD: zstandard.ZstdCompressor().compress, ZLIB: zlib.compress}[kind]
    assert decompress(pack(large), 1 | kind) == large
    assert decompress(pack(large), 1 | kind, len(large)) == large
    with pytest.raises(CompressionError, match="more than"):
        decompress(pack(large), 1 | kind, len(large) - 1)


def test_a_batch_is_unpacked_row_by_row_and_the_bad_record_is_named() -> None:
    plain = record.encode(Record("t", b"plain"))
    packed = [record.encode(Record("t", body, sys_flag=1 | kind)) for kind, body in PACKED.items()]
    records = Records.walk(plain + b"".join(packed) + plain)
    assert unpacked(records) == [b"plain", BODY, BODY, BODY, b"plain"]
    bad = record.encode(Record("t", b"no", sys_flag=1))
    with pytest.raises(RecordError) as error:
        unpacked(Records.walk(plain + bad + plain))
    assert error.value.at == len(plain)


def test_bodies_that_rocketmq_compressed_are_read() -> None:
    messages, data = golden_records()
    rows = [row for row, line in enumerate(messages) if line["topic"] == "golden_compressed"]
    bodies = unpacked(Records.walk(data)[np.array(rows)])
    assert [len(body) for body in bodies] == [4095, 4096, 50000] * 3
    assert {body.split()[0] for body in bodies} == {b"LZ4", b"ZSTD", b"ZLIB"}
    assert all(body.count(b"lorem ipsum") > 300 for body in bodies)
