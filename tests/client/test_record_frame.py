"""Both ways of encoding a frame make the bytes of the plain encoder."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from rocketsim_client.addresses import LOOPBACK, local_ipv4
from rocketsim_client.transport import record_frame
from rocketsim_client.transport.sends import Outgoing

pytestmark = pytest.mark.usefixtures("record_kernels")

rows = st.lists(
    st.tuples(
        st.binary(max_size=40),
        st.integers(0, 9),
        st.integers(-5, 5),
        st.sampled_from([0, 0x301]),
        st.text("ab", max_size=5),
    ),
    min_size=1,
    max_size=20,
)


@given(rows, st.booleans())
def test_a_frame_is_what_the_plain_encoder_makes_of_its_messages(given_rows, as_columns):
    bodies = [row[0] for row in given_rows]
    properties = [record.encode_properties({"UNIQ_KEY": row[4]}) for row in given_rows]
    outgoing = Outgoing(
        "Topic",
        [row[1] for row in given_rows],
        pa.array(bodies, pa.binary()) if as_columns else bodies,
        pa.array(properties, pa.binary()) if as_columns else properties,
        born_timestamp=123,
        flags=[row[2] for row in given_rows],
        sys_flags=[row[3] for row in given_rows],
    )
    expected = [
        record.encode(
            Record(
                "Topic",
                body,
                queue_id=queue_id,
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp=123,
                born_host=b"\x0a\0\0\1\0\0\0\0",
                store_host=bytes(8),
                properties={"UNIQ_KEY": key},
            )
        )
        for body, queue_id, flag, sys_flag, key in given_rows
    ]
    frame, sizes = record_frame.encode(outgoing, b"\x0a\0\0\1")
    assert bytes(frame) == b"".join(expected)
    assert list(sizes) == [len(one) for one in expected]


def test_the_address_of_a_loopback_peer_is_loopback_and_so_is_what_cannot_be_told():
    assert local_ipv4("127.0.0.1:9") == LOOPBACK
    assert local_ipv4("[::1]:9") == LOOPBACK
