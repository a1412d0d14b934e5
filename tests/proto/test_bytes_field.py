"""A large field that is encoded by hand is the same message to protobuf."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import bytes_field

NUMBER = pb.PullFrame.RECORDS_FIELD_NUMBER
pieces = st.lists(st.binary(max_size=200), max_size=4)
others = st.builds(pb.PullFrame, sizes=st.binary(max_size=20), broker_id=st.integers(0, 2**40))


@given(pieces, others)
def test_protobuf_reads_what_was_joined(pieces: list[bytes], others: pb.PullFrame) -> None:
    joined = bytes_field.join(NUMBER, map(memoryview, pieces), others.SerializeToString())
    others.records = b"".join(pieces)
    assert pb.PullFrame.FromString(joined) == others


@given(pieces, others)
def test_what_was_joined_is_split_again(pieces: list[bytes], others: pb.PullFrame) -> None:
    rest = others.SerializeToString()
    field, found = bytes_field.split(NUMBER, bytes_field.join(NUMBER, pieces, rest))
    assert (field, found) == (b"".join(pieces), rest)


@given(st.binary(max_size=400), others)
def test_what_protobuf_wrote_is_read_wherever_the_field_is(records: bytes, others: pb.PullFrame) -> None:
    rest = others.SerializeToString()
    others.records = records
    field, found = bytes_field.split(NUMBER, others.SerializeToString())
    assert (field, found) == (records, rest)
    behind = rest + pb.PullFrame(records=records).SerializeToString()
    field, found = bytes_field.split(NUMBER, behind)
    assert pb.PullFrame.FromString(found).records or field == records


@pytest.mark.parametrize("size", [0, 127, 128, 16383, 16384, 2097151, 2097152])
def test_lengths_of_every_width(size: int) -> None:
    data = pb.PullFrame(records=bytes(size), epoch=7).SerializeToString()
    assert bytes_field.join(NUMBER, [bytes(size)], pb.PullFrame(epoch=7).SerializeToString()) == (
        data if size else b"\x0a\x00" + data
    )
    field, found = bytes_field.split(NUMBER, data)
    assert (len(field), found) == (size, pb.PullFrame(epoch=7).SerializeToString())


@pytest.mark.parametrize("data", [b"\x0a\x05abcd", b"\x0a", b"\x0a" + b"\xff" * 11])
def test_a_field_that_is_cut_off_is_left_for_protobuf_to_refuse(data: bytes) -> None:
    field, found = bytes_field.split(NUMBER, data)
    assert (field, found) == (b"", data)
    with pytest.raises(DecodeError):
        pb.PullFrame.FromString(found)
