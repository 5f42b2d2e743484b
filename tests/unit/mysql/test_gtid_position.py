"""Tests MariaDB's positions. A position has the last GTID of each replication domain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.values.positions.gtid_position import GtidPosition, parse_gtid
from changelog.connectors.sources.mysql.values.positions.gtids import parse_gtids
from changelog.envelope.errors import ChangelogError, Kind

GTIDS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 9)), max_size=20)
START = GtidPosition(domains={})

Gtids = list[tuple[int, int, int]]


def received(gtids: Gtids) -> set[tuple[int, int]]:
    """Returns the transactions that a position includes, as pairs of domain and sequence number.

    For each domain, the last GTID in the list counts, even if an earlier one has a higher number.
    """
    last = {domain: sequence for domain, _, sequence in gtids}
    return {(domain, number) for domain, sequence in last.items() for number in range(sequence + 1)}


def built(gtids: Gtids) -> GtidPosition:
    builder = START.builder()
    for domain, server, sequence in gtids:
        builder.add(f"{domain}-{server}-{sequence}")
    return builder.build()


@given(GTIDS, GTIDS)
def test_a_position_includes_all_earlier_transactions_of_its_domains(mine: Gtids, theirs: Gtids) -> None:
    one, other = GtidPosition.of(mine), GtidPosition.of(theirs)
    assert one.is_subset(other) == (received(mine) <= received(theirs))
    assert {domain for domain, _ in received(theirs) - received(mine)} == set(one.missing(other).domains)
    assert one.missing(other).domains.items() <= other.domains.items()
    assert all(
        one.contains(f"{domain}-9-{number}") == ((domain, number) in received(mine)) for domain, number in PLACES
    )


PLACES = [(domain, number) for domain in range(5) for number in range(11)]


@given(GTIDS, st.sampled_from(["0-1-", "2-3-"]), st.lists(st.integers(0, 9)))
def test_adding_many_gtids_of_a_domain_equals_adding_them_one_by_one(
    gtids: Gtids, head: str, numbers: list[int]
) -> None:
    before, many, single = built(gtids), built(gtids).builder(), built(gtids).builder()
    many.add_all(head, np.array(numbers, np.int64))
    for number in numbers:
        single.add(f"{head}{number}")
    assert many.build() == single.build()
    if numbers:
        assert before.contains_any(head, np.array(numbers)) == any(
            before.contains(f"{head}{number}") for number in numbers
        )


@given(GTIDS)
def test_a_position_is_read_back_from_its_text_and_equals_one_from_a_list(gtids: Gtids) -> None:
    position = GtidPosition.of(gtids)
    assert built(gtids) == position
    assert GtidPosition.parse(position.text) == parse_gtids(Flavour.MARIADB, position.text) == position
    assert GtidPosition.parse(" , ".join("-".join(map(str, gtid)) for gtid in gtids)) == position
    assert bool(position) == bool(gtids)


def test_a_builder_leaves_the_position_that_it_began_with_unchanged() -> None:
    start = GtidPosition.parse("1-2-5,0-1-100")
    builder = start.builder()
    builder.add("0-7-101")
    first = builder.build()
    builder.add("4294967295-1-18446744073709551615")
    assert start.text == "0-1-100,1-2-5"
    assert first.text == "0-7-101,1-2-5"
    assert builder.build().text == "0-7-101,1-2-5,4294967295-1-18446744073709551615"


@pytest.mark.parametrize(
    ("text", "offset"),
    [("x", 0), ("0-1", 0), ("0-1-2;", 0), ("0-1-2,,", 6), ("0-1-2,4294967296-1-1", 6), ("0-1-18446744073709551616", 0)],
)
def test_texts_that_are_no_positions_are_malformed(text: str, offset: int) -> None:
    with pytest.raises(ChangelogError, match=rf"at character {offset}$") as raised:
        GtidPosition.parse(text)
    assert raised.value.kind is Kind.MALFORMED


@pytest.mark.parametrize("text", ["", "0-1", "0-1-2,0-1-3", "0-4294967296-1", "-1-1-1"])
def test_texts_that_are_no_gtids_are_malformed(text: str) -> None:
    with pytest.raises(ChangelogError, match="is not a MariaDB GTID") as raised:
        parse_gtid(text)
    assert raised.value.kind is Kind.MALFORMED
