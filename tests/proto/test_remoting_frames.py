"""Frames of RocketMQ's remoting protocol: both forms of a header, and bytes that are no frame."""

import base64
import hashlib
import hmac
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.remoting import acl, frame, message_batch, send_fields
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Form, FrameError, Header

int32 = st.integers(-(2**31), 2**31 - 1)
words = st.text(st.characters(codec="utf-8"), max_size=20)
headers = st.builds(
    Header,
    code=st.integers(0, 0x7FFF),
    opaque=int32,
    flag=st.integers(0, 3),
    remark=words,
    fields=st.dictionaries(words.filter(bool), words.filter(bool), max_size=5),
    language=st.sampled_from(["JAVA", "PYTHON", "GO"]),
    version=st.integers(0, 0x7FFF),
)


@given(headers, st.binary(max_size=50), st.sampled_from(Form))
def test_a_frame_is_read_as_it_was_written(header, body, form):
    assert frame.decode(frame.encode(header, body, form)) == (header, body)


def test_a_header_of_the_java_client_is_read():
    """In headers recorded from RocketMQ 5.5.0's name server the order of names varies, and a null counts as absent."""
    header = (
        b'{"code":0,"extFields":{"queueId":"3","n":7,"yes":true,"none":null},"flag":1,"language":"JAVA","opaque":42,'
        b'"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":513}'
    )
    fields = {"queueId": "3", "n": "7", "yes": "true"}
    assert frame.decode_header(Form.JSON, header) == Header(0, 42, 1, "FOUND", fields, "JAVA", 513)


def test_a_binary_header_is_laid_out_as_rocketmq_lays_it_out():
    header = Header(105, 7, 0, "", {"topic": "t1", "empty": ""}, "JAVA", 409)
    expected = (
        struct.pack(">hBhiii", 105, 0, 409, 7, 0, 0)
        + struct.pack(">i", 2 + 5 + 4 + 2)
        + (struct.pack(">h", 5) + b"topic" + struct.pack(">i", 2) + b"t1")
    )
    encoded = frame.encode(header, b"body", Form.BINARY)
    assert encoded == struct.pack(">II", 4 + len(expected) + 4, 1 << 24 | len(expected)) + expected + b"body"
    assert frame.decode(encoded)[0].fields == {"topic": "t1"}  # an empty value counts as absent


def test_an_answer_is_told_from_a_request_by_its_flag():
    assert Header(0, flag=frame.IS_ANSWER).is_answer and not Header(0).is_answer
    assert Header(40, flag=frame.IS_ONE_WAY).is_one_way and not Header(40, flag=frame.IS_ONE_WAY).is_answer


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",  # TLS
        b"\x00\x00\x12\x04\x00\x00\x00\x00",  # gRPC's SETTINGS
        struct.pack(">II", 100, 0),  # no header
        struct.pack(">II", 100, 97),  # a header that is longer than its frame
        struct.pack(">II", 2, 1),
        struct.pack(">II", 100, 2 << 24 | 10),  # an unknown form
        struct.pack(">II", frame.MAX_FRAME_BYTES + 1, 10),
        struct.pack(">II", frame.MAX_FRAME_BYTES, frame.MAX_HEADER_BYTES + 1),
    ],
)
def test_what_begins_no_frame_is_refused_by_its_first_eight_bytes(head):
    with pytest.raises(FrameError):
        frame.lengths(head)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"nonsense",
        b"[]",
        b"\xff\xfe",
        b"{}",
        b'{"code":"0"}',
        b'{"code":true}',
        b'{"code":99999999999}',
        b'{"code":0,"opaque":1.5}',
        b'{"code":0,"extFields":[]}',
        b'{"code":0,"extFields":{"a":{}}}',
        b'{"code":0,"remark":7}',
        b'{"code":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
    ],
)
def test_a_header_that_is_no_json_header_is_refused(header):
    with pytest.raises(FrameError):
        frame.decode_header(Form.JSON, header)


@given(headers, st.data())
def test_a_binary_header_that_lies_is_refused_or_read(header, data):
    encoded = bytearray(frame.encode(header, b"", Form.BINARY)[8:])
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        frame.decode_header(Form.BINARY, encoded[: data.draw(st.integers(0, len(encoded)))])
    except FrameError:
        pass


def test_a_frame_that_is_too_long_is_never_made():
    with pytest.raises(FrameError, match="at most 16777216"):
        frame.encode_without_body(Header(310), frame.MAX_FRAME_BYTES)
    with pytest.raises(FrameError):
        frame.encode(Header(310, fields={"a": "x" * frame.MAX_HEADER_BYTES}))


def test_a_code_that_a_binary_header_cannot_hold_is_refused():
    with pytest.raises(FrameError, match="200050"):
        frame.encode(Header(200050), form=Form.BINARY)


def test_a_signature_covers_the_values_by_name_and_the_body():
    fields = {"topic": "ü", "AccessKey": "ak", "a": "1", "Signature": "not this"}
    expected = hmac.new(b"secret", ("ak" + "1" + "ü").encode() + b"body", hashlib.sha1).digest()
    assert acl.signature("secret", fields, b"body") == base64.b64encode(expected).decode()


def test_a_signed_request_has_no_empty_fields():
    signed = acl.signed({"b": "t", "i": ""}, b"x", "ak", "sk", "token")
    assert set(signed) == {"b", "AccessKey", "SecurityToken", "Signature"}
    assert signed["Signature"] == acl.signature("sk", signed, b"x")


def test_the_letters_of_a_send_have_names():
    assert send_fields.long_names({"b": "t", "e": "3", "bname": "x"}) == {"topic": "t", "queueId": "3", "bname": "x"}


def test_a_send_has_one_topic_whatever_else_it_names():
    for fields in ({"b": "t", "topic": "u"}, {"topic": "u", "b": "t"}):
        assert send_fields.long_names(fields) == {"topic": "t"}
        assert send_fields.topic_of(RequestCode.SEND_MESSAGE_V2, fields) == "t"
        assert send_fields.topic_of(RequestCode.SEND_BATCH_MESSAGE, fields) == "t"
        assert send_fields.topic_of(RequestCode.SEND_MESSAGE, fields) == "u"
    assert send_fields.topic_of(RequestCode.SEND_MESSAGE_V2, {"topic": "u"}) == ""


def test_a_batch_of_very_many_messages_is_refused(monkeypatch):
    monkeypatch.setattr(message_batch, "MAX_DECODED", 2)
    batch = [message_batch.BatchMessage(0, b"", b"")] * 3
    assert len(message_batch.decode(message_batch.encode(batch[:2]))) == 2
    with pytest.raises(message_batch.BatchError, match="more than 2 messages"):
        message_batch.decode(message_batch.encode(batch))


messages = st.lists(
    st.builds(message_batch.BatchMessage, int32, st.binary(max_size=30), st.binary(max_size=30)), max_size=5
)


@given(messages)
def test_a_batch_is_read_as_it_was_written(batch):
    assert message_batch.decode(message_batch.encode(batch)) == batch


@given(messages.filter(bool), st.data())
def test_a_batch_whose_lengths_lie_is_refused_or_read_in_its_bounds(batch, data):
    encoded = bytearray(message_batch.encode(batch))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        read = message_batch.decode(encoded[: data.draw(st.integers(0, len(encoded)))])
    except message_batch.BatchError:
        return
    assert sum(message_batch.OVERHEAD_BYTES + len(one.body) + len(one.properties) for one in read) <= len(encoded)


def test_codes_are_numbers_in_a_header():
    encoded = frame.encode(Header(RequestCode.PULL_MESSAGE, fields={"x": frame.text(True)}))
    assert json.loads(encoded[8:])["code"] == 11 and json.loads(encoded[8:])["extFields"] == {"x": "true"}
    assert ResponseCode(frame.decode(frame.encode(Header(ResponseCode.TOPIC_NOT_EXIST)))[0].code).name == (
        "TOPIC_NOT_EXIST"
    )
