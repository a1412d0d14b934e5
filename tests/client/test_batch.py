"""A batch of messages is validated as each of its messages would be."""

from hypothesis import given
from hypothesis import strategies as st

from rocketsim_client.errors import MessageIllegal
from rocketsim_client.model import Message
from rocketsim_client.validation import check, size_if_usual

LIMIT = 100
texts = st.none() | st.sampled_from(["", "a", "tag", "kü", "a b", "\x01", "\n"])
usual = st.builds(Message, st.just("T"), st.binary(min_size=1, max_size=5), st.none() | st.just("a"), st.none())
messages = usual | st.builds(
    Message,
    st.just("T"),
    st.binary(max_size=LIMIT + 1) | st.just("no bytes"),
    texts | st.just(7),
    texts,
    st.none() | st.just({}) | st.just({"name": "value"}),
    delay_level=st.sampled_from([0, 0, 3]),
    wait_store_msg_ok=st.sampled_from([True, True, False]),
    deliver_at=st.sampled_from([None, None, 4e9]),
    message_group=st.sampled_from([None, None, "", "g"]),
)


@given(st.lists(usual, min_size=1, max_size=5) | st.lists(messages, min_size=1, max_size=5))
def test_a_usual_batch_is_one_in_which_each_message_is_good(batch):
    size = size_if_usual(batch, LIMIT)
    try:
        each = sum(check(message, LIMIT) for message in batch)
    except MessageIllegal:
        assert size is None
        return
    alike = len({message.wait_store_msg_ok for message in batch}) == 1 and not any(
        one.delay_level or one.deliver_at or one.message_group for one in batch
    )
    if size is not None:
        assert size == each and alike
    plain = all(not one.properties and f"{one.tags or ''}{one.keys or ''}".isascii() for one in batch)
    printable = all(f"{one.tags or ''}{one.keys or ''}".isprintable() for one in batch)
    assert (size is not None) == (alike and plain and printable)
