"""A send frame is accepted or refused as a whole, with the reason."""

import zlib
from typing import Any

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.records.record import (
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_STORE_HOST_V6,
    offset_message_id,
    parse_offset_message_id,
)

from broker_service.broker.frame import Frame, FrameLimits, check_frame
from broker_service.errors import MessageIllegal
from tests.support.brokers import message

pytestmark = pytest.mark.usefixtures("record_kernels")

LIMITS = FrameLimits(max_message_size=1000, log_file_size=4096, store_host_size=8)
V6 = bytes(20)


def check(*records: bytes, count: int | None = None, crc32: int | None = None, limits: FrameLimits = LIMITS) -> Frame:
    data = b"".join(records)
    return check_frame(
        "t",
        memoryview(data),
        len(records) if count is None else count,
        zlib.crc32(data) if crc32 is None else crc32,
        limits,
    )


def test_a_good_frame_is_records_over_a_writable_copy() -> None:
    sent = message("t", b"one", 1) + message("t", b"two", 2, TAGS="a")
    frame = check(sent, count=2)
    assert frame.batch.queue_ids == [1, 2]
    frame.batch.stamp(100, {1: 7, 2: 8}, 5, bytes(8))
    assert (frame.delay_level, frame.waits) == (0, True)


def broken(at: int, value: int) -> bytes:
    data = bytearray(message("t", b"body"))
    data[at] ^= value
    return bytes(data)


DISASTERS = [
    pytest.param([], {}, "has no message", id="empty"),
    pytest.param([message("t", b"x")], {"count": 0}, "has no message", id="count 0"),
    pytest.param([message("t", b"x")], {"count": 2}, "2 announced", id="count too high"),
    pytest.param([message("t", b"x"), message("t", b"y")], {"count": 1}, "1 announced", id="count too low"),
    pytest.param([message("t", b"x")], {"crc32": 1}, "CRC-32", id="frame checksum"),
    pytest.param([broken(8, 1)], {}, "body CRC", id="body checksum"),
    pytest.param([broken(4, 1)], {}, "magic", id="magic"),
    pytest.param([broken(3, 4)], {}, "refused", id="size"),
    pytest.param([broken(87, 1)], {}, "refused", id="body length"),
    pytest.param([message("t", b"x")[:-1]], {}, "refused", id="cut short"),
    pytest.param([message("t", b"x"), b"\0" * 40], {"count": 1}, "refused", id="rubbish behind"),
    pytest.param([record.BLANK.pack(100, record.BLANK_MAGIC) + bytes(92)], {}, "refused", id="blank record"),
    pytest.param([b"not a record" * 20], {}, "refused", id="garbage"),
    pytest.param([message("t", b"x"), message("other", b"y")], {}, "'other'", id="another topic"),
    pytest.param([message("t", b"x", sys_flag=4)], {}, "system flag 0x4", id="prepared transaction"),
    pytest.param([message("t", b"x", sys_flag=1 << 20)], {}, "system flag", id="unknown flag"),
    pytest.param([message("t", b"x", store_host=V6)], {}, "store host", id="store host too wide"),
    pytest.param(
        [message("t", b"x" * 1001)], {}, "1001 bytes; this broker's maxMessageSize is 1000", id="body too long"
    ),
    pytest.param([message("t", b"x", A="b")[:-1] + b"\0"], {}, "NUL", id="properties that end in NUL"),
    pytest.param([message("t", b"x", A="\0" * 600)], {}, "NUL", id="a sector of NUL in the properties"),
    pytest.param([message("t", b"x", DELAY="soon")], {}, "delay level", id="delay level no number"),
    pytest.param([message("t", b"x", DELAY="\uff11")], {}, "delay level", id="delay level in other digits"),
    pytest.param([message("t", b"x", DELAY="1"), message("t", b"y")], {}, "batch", id="delayed in a batch"),
    pytest.param([message("t", b"x", TIMER_DELAY_SEC="5")], {}, "not supported", id="timer message by its delay"),
    pytest.param([message("t", b"x", TIMER_DELIVER_MS="soon")], {}, "milliseconds", id="delivery time no number"),
    pytest.param([message("t", b"x", TIMER_DELIVER_MS="5"), message("t", b"y")], {}, "batch", id="timers in a batch"),
    pytest.param([message("t", b"x", __TIMER_SOURCE="5 6")], {}, "belongs to the broker", id="forged copy"),
    pytest.param([message("t", b"x", TRAN_MSG="true")], {}, "not supported", id="half message"),
    pytest.param([message("t", b"x", __DELAY_OFFSET="5")], {}, "belongs to the broker", id="forged delivery"),
]


@pytest.mark.parametrize(("records", "given", "reason"), DISASTERS)
def test_a_bad_frame_is_refused_with_the_reason(records: list[bytes], given: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageIllegal, match=reason):
        check(*records, **given)


def test_properties_and_whole_records_have_limits_too() -> None:
    wide = FrameLimits(max_message_size=1 << 20, log_file_size=1 << 20, store_host_size=8)
    check(message("t", b"", KEYS="k" * 32000), limits=wide)
    too_long = bytearray(message("t", b"", KEYS="k" * 32000))
    too_long[-1:] = b"k" * 800 + b"\x02"
    at = len(too_long) - 32000 - 800 - 6
    too_long[at - 2 : at] = (len(too_long) - at).to_bytes(2, "big")
    too_long[:4] = len(too_long).to_bytes(4, "big")
    with pytest.raises(MessageIllegal, match="properties"):
        check(bytes(too_long), limits=wide)
    body = message("t", b"x" * 900)
    with pytest.raises(MessageIllegal, match="a record"):
        check(body, limits=FrameLimits(max_message_size=1000, log_file_size=len(body) + 7, store_host_size=8))
    check(body, limits=FrameLimits(max_message_size=1000, log_file_size=len(body) + 8, store_host_size=8))


def test_a_broker_with_an_ipv6_address_needs_room_for_it() -> None:
    limits = FrameLimits(max_message_size=1000, log_file_size=4096, store_host_size=20)
    check(message("t", b"x", store_host=V6), limits=limits)
    with pytest.raises(MessageIllegal, match="20 bytes"):
        check(message("t", b"x"), limits=limits)


def test_flags_that_are_a_clients_are_taken() -> None:
    check(message("t", b"x", sys_flag=SYS_FLAG_COMPRESSED | 0x100, born_host=V6))
    assert SYS_FLAG_STORE_HOST_V6 == 0x20


@pytest.mark.parametrize(("value", "level"), [("0", 0), ("-1", 0), ("3", 3), ("99", 99)])
def test_a_single_message_may_be_delayed(value: str, level: int) -> None:
    assert check(message("t", b"x", DELAY=value)).delay_level == level


def test_a_single_message_may_have_a_delivery_time() -> None:
    assert check(message("t", b"x", TIMER_DELIVER_MS="1795200000123")).deliver_ms == 1_795_200_000_123


@pytest.mark.parametrize(("value", "waits"), [("false", False), ("true", True), ("False", False), ("", True)])
def test_a_single_message_may_say_that_it_does_not_wait(value: str, waits: bool) -> None:
    assert check(message("t", b"x", WAIT=value) if value else message("t", b"x")).waits is waits


def test_zeros_in_a_body_are_no_zeros_in_the_properties() -> None:
    check(message("t", bytes(900), A="b"))


def test_a_property_name_in_a_body_is_no_property() -> None:
    frame = check(message("t", b"DELAY\x015\x02WAIT\x01false\x02TRAN_MSG\x01true\x02"))
    assert (frame.delay_level, frame.waits) == (0, True)


def test_offset_message_ids_name_host_and_offset() -> None:
    host = record.encode_host("10.0.0.1", 10911)
    assert parse_offset_message_id(offset_message_id(host, 4711)) == ("10.0.0.1", 10911, 4711)
