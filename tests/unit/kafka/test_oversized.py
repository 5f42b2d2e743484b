"""Tests how a message that is too large is divided into parts, and how the parts are joined again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sinks.kafka.encoding import oversized

MESSAGES = st.builds(
    oversized.ProducerRecord,
    topic=st.just("booking.order"),
    partition=st.integers(0, 9),
    key=st.binary(max_size=3000),
    value=st.binary(min_size=1, max_size=9000),
    headers=st.just([("op", b"create"), ("position", b"00000001/0000000000000001/00000002")]),
    timestamp_ms=st.integers(0, 2**40),
)


@given(MESSAGES, st.integers(2000, 4000))
def test_parts_fit_and_can_be_joined(message: oversized.ProducerRecord, nbytes_max: int) -> None:
    parts = list(oversized.parts(message, topic="booking.dead", position="p", nbytes_max=nbytes_max))
    assert all(part.nbytes <= nbytes_max for part in parts)
    assert {(part.topic, part.partition, part.key) for part in parts} == {("booking.dead", 0, b"p")}
    assert oversized.whole(parts) == message


def test_a_missing_part_is_noticed() -> None:
    message = oversized.ProducerRecord(
        topic="booking.order", partition=0, key=b"1", value=bytes(9000), headers=[], timestamp_ms=0
    )
    parts = list(oversized.parts(message, topic="booking.dead", position="p", nbytes_max=4000))
    assert len(parts) > 2
    for incomplete in (parts[:-1], parts[1:], parts[::-1]):
        with pytest.raises(ValueError, match=f"{len(incomplete)} of {len(parts)} parts were given"):
            oversized.whole(incomplete)
