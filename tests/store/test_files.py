from hypothesis import given
from hypothesis import strategies as st

from broker_service.store.files import used_size


@given(st.binary(max_size=20), st.sampled_from((0, 1, 4095, 4096, 4097, 8192, 20_000)))
def test_the_used_size_is_that_without_zeros_at_the_end(data: bytes, zeros: int) -> None:
    assert used_size(data + bytes(zeros)) == len(data.rstrip(b"\0"))
