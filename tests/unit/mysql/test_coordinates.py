"""Tests coordinates: numbers that stand for places in the binary log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.values.positions.coordinates import (
    bytes_read,
    coordinate,
    coordinate_text,
    file_number,
    file_offset,
    parse_file_name,
)
from changelog.envelope.errors import ChangelogError, Kind

LAST_FILE, LAST_OFFSET = (1 << 27) - 1, (1 << 36) - 1
PLACES = st.tuples(st.integers(0, LAST_FILE), st.integers(0, LAST_OFFSET))


@given(PLACES, PLACES)
def test_coordinates_have_the_order_of_the_log(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (coordinate(*one) < coordinate(*other)) == (one < other)
    assert (file_number(coordinate(*one)), file_offset(coordinate(*one))) == one
    assert 0 <= coordinate(*one) < 1 << 63


def test_a_coordinate_is_shown_with_the_digits_of_the_file_name() -> None:
    assert coordinate_text(coordinate(12, 345)) == "000012:345"


@pytest.mark.parametrize("place", [(LAST_FILE + 1, 0), (0, LAST_OFFSET + 1), (-1, 0), (0, -1)])
def test_a_place_that_is_too_large_or_negative_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(ChangelogError, match="bits") as raised:
        coordinate(*place)
    assert raised.value.kind is Kind.LIMIT


@given(st.sampled_from(["binlog", "mysql-bin", "a.000001", "größe"]), st.integers(0, LAST_FILE))
def test_a_file_name_has_a_base_and_a_number(base: str, number: int) -> None:
    assert parse_file_name(f"{base}.{number:06}") == (base, number)


@pytest.mark.parametrize("name", ["", "binlog", "binlog.", ".000001", "binlog.00001x", "binlog.٣"])
def test_a_file_name_without_a_number_is_malformed(name: str) -> None:
    with pytest.raises(ChangelogError, match="is not the name") as raised:
        parse_file_name(name)
    assert raised.value.kind is Kind.MALFORMED


def test_the_bytes_between_two_coordinates_are_counted() -> None:
    assert bytes_read(coordinate(3, 100), coordinate(3, 250)) == 150
    assert bytes_read(coordinate(3, 100), coordinate(4, 250)) == 250
    assert bytes_read(coordinate(3, 100), coordinate(3, 50)) == 0
