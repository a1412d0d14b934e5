"""A frame that is encoded by hand is the same message to protobuf, and the other way round."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.metadata_pb2 import Metadata

from broker_service.replication.master_frame import MasterFrame, from_bytes, to_bytes

logs = st.builds(
    pb.LogData,
    epoch=st.integers(0, 2**40),
    commit_log_offset=st.integers(0, 2**62),
    crc32=st.integers(0, 2**32 - 1),
    master_end_offset=st.integers(0, 2**62),
)
others = st.sampled_from(
    [
        pb.MasterMessage(handshake=pb.HandshakeReply(end_offset=7)),
        pb.MasterMessage(metadata=Metadata(complete=True)),
        pb.MasterMessage(),
    ]
)


@given(logs, st.binary(max_size=300))
def test_protobuf_reads_a_frame_of_log_bytes(log: pb.LogData, data: bytes) -> None:
    sent = to_bytes(MasterFrame(pb.MasterMessage(log=log), memoryview(data)))
    whole = pb.MasterMessage(log=log)
    whole.log.data = data
    assert pb.MasterMessage.FromString(sent) == whole
    assert from_bytes(sent) == (pb.MasterMessage(log=log), data)


@given(logs, st.binary(max_size=300))
def test_what_protobuf_wrote_is_read_though_the_bytes_lie_elsewhere(log: pb.LogData, data: bytes) -> None:
    message = pb.MasterMessage(log=log)
    message.log.data = data
    found, log_bytes = from_bytes(message.SerializeToString())
    assert log_bytes == data
    assert found.log.commit_log_offset == log.commit_log_offset and found.log.crc32 == log.crc32


@given(others)
def test_other_messages_travel_as_they_are(message: pb.MasterMessage) -> None:
    sent = to_bytes(MasterFrame(message))
    assert sent == message.SerializeToString()
    assert from_bytes(sent) == (message, b"")


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_frame_cut_short_is_refused(cut: int) -> None:
    sent = to_bytes(MasterFrame(pb.MasterMessage(log=pb.LogData(epoch=7)), bytes(100)))
    with pytest.raises(DecodeError):
        from_bytes(sent[:-cut])
