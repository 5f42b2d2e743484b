"""Tests `LogPlace`, which keeps track of the reader's place in the binary log.

The header of an event has only the low 32 bits of the offset at which the event ends. `LogPlace` computes the other
bits.
"""

import pytest

from changelog.connectors.sources.mysql.decode.events.header import Header
from changelog.connectors.sources.mysql.decode.log_place import LogPlace
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate
from changelog.envelope.errors import ChangelogError, Kind

FOUR_GIB = 1 << 32


def header(end: int, size: int = 50, flags: int = 0) -> Header:
    return Header(timestamp_s=0, type=2, server_id=1, size=size, end_log_pos=end, flags=flags)


def test_the_place_of_an_event_follows_from_its_end() -> None:
    assert not LogPlace().known
    place = LogPlace()
    place.enter("binlog.000012", 4)
    place.pass_event(header(150))
    assert place.known
    assert place.end == coordinate(12, 150)
    assert place.begin_of(header(150)) == coordinate(12, 100)


def test_artificial_events_and_events_without_an_offset_do_not_change_the_place() -> None:
    place = LogPlace()
    place.enter("binlog.000012", 120)
    place.pass_event(header(0))
    place.pass_event(header(99_999, flags=0x20))
    assert place.end == coordinate(12, 120)


def test_offsets_beyond_4_gib_are_computed() -> None:
    place = LogPlace()
    place.enter("binlog.000001", 4)
    ends = [FOUR_GIB - 20, FOUR_GIB + 30, FOUR_GIB + FOUR_GIB - 1, 2 * FOUR_GIB + 40]
    for end in ends:
        place.pass_event(header(end % FOUR_GIB))
        assert place.end == coordinate(1, end)
    assert place.begin_of(header(ends[-1] % FOUR_GIB)) == coordinate(1, ends[-1] - 50)


def test_the_place_starts_anew_in_a_new_file() -> None:
    place = LogPlace()
    place.enter("binlog.000001", 4)
    place.pass_event(header(5000))
    place.enter("binlog.000002", 4)
    place.pass_event(header(124))
    assert place.end == coordinate(2, 124)


def test_the_place_is_not_known_before_the_name_of_the_first_file() -> None:
    with pytest.raises(ChangelogError) as caught:
        _ = LogPlace().end
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize("offset", [4, FOUR_GIB + 500, FOUR_GIB * 16 - 1000])
def test_the_ends_of_consecutive_events_in_a_file_can_be_computed_together(offset: int) -> None:
    one, together = LogPlace(), LogPlace()
    for place in (one, together):
        place.enter("binlog.000003", offset)
    first, last = (offset + 100) % FOUR_GIB, (offset + 300) % FOUR_GIB
    base = together.base(first, last)
    assert base is not None
    for end in (first, last):
        one.pass_event(header(end))
        assert one.end == base + end
    together.pass_to(last)
    assert together.end == one.end


def test_the_ends_of_events_in_another_file_or_beyond_4_gib_are_not_computed_together() -> None:
    place = LogPlace()
    assert place.base(100, 200) is None
    place.enter("binlog.000003", FOUR_GIB - 100)
    assert place.base(FOUR_GIB - 101, FOUR_GIB - 1) is None
    assert place.base(FOUR_GIB - 50, 100) is None
    place.enter("binlog.000003", 16 * FOUR_GIB - 100)
    assert place.base(FOUR_GIB - 50, FOUR_GIB - 1) is not None
