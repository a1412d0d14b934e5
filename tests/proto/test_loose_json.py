"""Bodies that RocketMQ calls JSON are parsed, although they are not JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.remoting import loose_json
from rocketsim_proto.remoting.loose_json import LooseJsonError, ObjectKey

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_json_is_read_as_json_reads_it(value):
    assert loose_json.loads(json.dumps(value)) == value


@given(values)
def test_the_reader_for_what_is_no_json_reads_json_alike(value):
    """Because the key has no quotes, the slow reader reads the whole value."""
    assert loose_json.loads("{0 : " + json.dumps(value) + " }") == {"0": value}


def test_numbers_as_keys_are_texts():
    """The body has the form of a GET_BROKER_CLUSTER_INFO answer of RocketMQ 4.9.8 and 5.5.0."""
    body = (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"enableActingMaster":false}}}'
    )
    read = loose_json.loads(body)
    assert read["brokerAddrTable"]["a"]["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}


def test_objects_as_keys_are_keys():
    """The body has the form of a GET_TOPIC_STATS_INFO answer of RocketMQ 4.9.8 and 5.5.0."""
    body = '{"offsetTable":{{"brokerName":"a","queueId":1,"topic":"t"}:{"maxOffset":5,"minOffset":0},{"queueId":2}:{}}}'
    table = loose_json.loads(body)["offsetTable"]
    assert table[ObjectKey([("brokerName", "a"), ("queueId", 1), ("topic", "t")])] == {"maxOffset": 5, "minOffset": 0}
    assert [dict(key)["queueId"] for key in table] == [1, 2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"{",
        b"{0:}",
        b"{0:1,}",
        b"{0:1}}",
        b"{0 1}",
        b"{[0]:1}",
        b"{{{0:1}:2}:3}",
        b'{0:"',
        b"{0:nul}",
        b"{1.5:1}",
        b"{0:" + b"9" * 100_000 + b"}",
        b"{0:" + b"[" * 100_000,
        b"{0:" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_what_is_neither_is_refused(body):
    with pytest.raises(LooseJsonError):
        loose_json.loads(body)


@given(st.text(alphabet='{}[]:,"0 1a\\tru', max_size=30))
def test_anything_is_read_or_refused(text):
    try:
        loose_json.loads(text)
    except LooseJsonError:
        pass
