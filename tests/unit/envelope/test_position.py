"""Tests `Position.previous`, which returns the position just before another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.envelope.position import Position

positions = st.builds(
    Position,
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 64) - 1) | st.just(0),
    st.integers(0, (1 << 32) - 1) | st.just(0),
)


def _number(position: Position) -> int:
    return int(str(position).replace("/", ""), 16)


@given(positions.filter(lambda position: position != Position(0, 0, 0)))
def test_nothing_is_between_a_position_and_the_previous_one(position: Position) -> None:
    previous = position.previous()
    assert previous is not None
    assert _number(previous) == _number(position) - 1


@pytest.mark.parametrize(
    ("position", "previous"),
    [
        (Position(1, 2, 3), Position(1, 2, 2)),
        (Position(1, 2, 0), Position(1, 1, (1 << 32) - 1)),
        (Position(1, 0, 0), Position(0, (1 << 64) - 1, (1 << 32) - 1)),
        (Position(0, 0, 0), None),
    ],
)
def test_the_previous_position_is_returned(position: Position, previous: Position | None) -> None:
    assert position.previous() == previous
