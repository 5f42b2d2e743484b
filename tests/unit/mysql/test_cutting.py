"""A read of the stream is decoded in portions that are bounded in number and size."""

from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.cutting import BLOCK_BYTES_MAX, portion

LARGE = bytes(BLOCK_BYTES_MAX // 3)


@given(sizes=st.lists(st.sampled_from([b"x" * 20, LARGE]), max_size=12))
def test_a_portion_exceeds_the_limit_by_less_than_its_last_event(sizes: list[bytes]) -> None:
    count = portion(sizes)
    assert (count == 0) == (not sizes)
    assert sum(map(large, sizes[: max(count - 1, 0)])) < BLOCK_BYTES_MAX
    assert count == len(sizes) or sum(map(large, sizes[:count])) >= BLOCK_BYTES_MAX


def large(event: bytes) -> int:
    """Returns how many bytes count for the limit. 96 bytes of each event do not, because they can hardly be rows."""
    return len(event) - 96 if event is LARGE else 0


def test_many_small_events_are_divided() -> None:
    events = [b"x"] * 100_000
    assert 0 < portion(events) < len(events)
