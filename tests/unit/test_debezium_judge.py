"""Tests the judge of the campaign `debezium_judge`, which compares what our own sources and Debezium publish.

The judge must find every difference. Some differences are listed as known. A difference counts as known only if it has
exactly the form that is listed.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.campaigns._debezium import listed
from tests.campaigns._debezium.compare import Comparison, Row
from tests.campaigns._debezium.listed import parsed
from tests.campaigns._debezium.tables import KeyColumn, Kind, Table

TABLE = Table(
    name="item",
    key=(KeyColumn(name="id", definition="int", literal=str),),
    columns={
        "bit": Kind(definition="bit(1)", draw=str, listed={"bit": listed.one_bit}),
        "weight": Kind(definition="float", draw=str, listed_reads={"weight": listed.six_digits}),
    },
)


def row(key: int, op: str = "create", commit: str = "1", **state: Any) -> Row:
    return Row(
        entity="item",
        key=str(key),
        op=op,
        commit=commit,
        transaction=f"t{commit}",
        committed_at="2026-11-21T03:10:02.000000Z",
        absent=(None,) * 4,
        current={"id": b"%d" % key, "bit": b"null", "weight": b"1.5", **state},
        original=None,
        moved=None,
    )


OURS = [row(1), row(2, op="update"), row(1, op="update", commit="2"), row(3, op="read")]


def verdict(theirs: list[Row], ours: list[Row] = OURS) -> tuple[dict[str, int], dict[str, int]]:
    of = Comparison([TABLE], {}, is_later=False).compare(ours, theirs)
    return dict(of.faults), dict(of.listed)


def test_equal_rows_have_no_differences() -> None:
    assert verdict([replace(of, commit=f"0{of.commit}") for of in OURS]) == ({}, {})


@pytest.mark.parametrize(
    ("theirs", "fault"),
    [
        ([OURS[1], OURS[0], *OURS[2:]], "the next change differs"),
        ([*OURS[:2], OURS[3]], "one service has more changes"),
        (OURS[:3], "only one service has a row with the op read"),
        ([*OURS, OURS[3]], "a row was read twice"),
        ([replace(OURS[0], transaction="t9"), *OURS[1:]], "the transactions differ"),
        ([*OURS[:2], replace(OURS[2], commit="1"), OURS[3]], "Debezium joined two transactions"),
        ([replace(OURS[0], committed_at="2026-11-21T03:10:01.000000Z"), *OURS[1:]], "the times differ"),
        ([replace(OURS[0], absent=(["weight"], None, None, None)), *OURS[1:]], "different absent values in create"),
        ([replace(OURS[0], original={}), *OURS[1:]], "only one service has the original of a row with the op create"),
        ([replace(OURS[0], current={"id": b"1"}), *OURS[1:]], "different columns in current of create"),
        ([row(1, weight=b"1.6"), *OURS[1:]], "a key in log"),
        ([row(1, bit=b"true"), *OURS[1:]], "a key in log"),
    ],
)
def test_each_difference_is_a_fault(theirs: list[Row], fault: str) -> None:
    assert fault in verdict(theirs)[0]


def test_further_parts_of_a_transaction_are_counted() -> None:
    assert verdict([replace(OURS[0], commit="0"), *OURS[1:]]) == ({}, {"a further part of a transaction": 1})


def test_a_listed_difference_is_counted_where_it_is_listed() -> None:
    ours = [row(1, bit=b'"1"'), row(2, op="read", weight=b"5.8330067e+32")]
    assert verdict([row(1, bit=b"true"), row(2, op="read", weight=b"5.83301e+32")], ours) == (
        {},
        {"bit": 1, "weight": 1},
    )
    assert verdict([row(1, bit=b"false"), row(2, op="read", weight=b"5.83302e+32")], ours)[1] == {}
    changed = [row(1, weight=b"5.8330067e+32")]
    assert verdict([row(1, weight=b"5.83301e+32")], changed)[1] == {}


@pytest.mark.parametrize(
    ("rule", "ours", "theirs", "other"),
    [
        (listed.money, '"-$1,234.50"', '"-1234.50"', '"1234.50"'),
        (listed.one_bit, '"0"', "false", "true"),
        (listed.leading_zeros, '"0010"', '"10"', '"0100"'),
        (listed.padded_to(6), '"0010"', '"000010"', '"0000010"'),
        (listed.without_scale, '"-1.50"', '"-1.5"', '"1.5"'),
        (listed.in_the_gap, '"1582-10-10"', '"1582-10-20"', '"1582-10-10"'),
        (listed.in_the_gap, '["1582-10-14T01:02:03",null]', '["1582-10-24T01:02:03",null]', '["1582-10-24T01:02:03"]'),
        (listed.same_members, '{"a":"1","b":null}', '{"b":null,"a":"1"}', '{"b":null,"a":"2"}'),
        (listed.in_utc, '"01:10:02.50+02"', '"23:10:02.5+00"', '"23:10:02+00"'),
        (listed.in_utc, '"03:10:02-03:30"', '"06:40:02+00"', '"06:10:02+00"'),
        (listed.range_text, '{"lower":1,"upper":null,"bounds":"[)"}', '"[1,)"', '"(1,)"'),
        (listed.range_text, '{"lower":null,"upper":null,"bounds":"empty"}', '"empty"', '"(,)"'),
        (
            listed.range_text,
            '{"lower":"2026-11-21T03:10:02.500000Z","upper":null,"bounds":"[)"}',
            '"[\\"2026-11-21 03:10:02.5+00\\",)"',
            '"[\\"2026-11-21 03:10:02+00\\",)"',
        ),
        (listed.fraction_digits, '"03:10:02.50"', '"03:10:02.5"', '"03:10:02"'),
        (listed.no_day, '"2024-00-07"', "null", '"1970-01-01"'),
        (listed.epoch, '"0000-00-00 00:00:00.00"', '"1970-01-01T00:00:00.000000Z"', "null"),
        (listed.year_0, '"0000-01-01 03:15:05.10"', '"0001-01-01 03:15:05.1 BC"', '"0001-01-01 03:15:05.1"'),
        (listed.year_1, '"0000-01-01 03:15:05.10"', '"0001-01-01T03:15:05.100000"', '"0001-01-02T03:15:05.100000"'),
        (listed.escaped, '",\\\\"', '"\\\\,\\\\\\\\"', '",\\\\\\\\"'),
        (listed.as_double, "0.1", "0.10000000149011612", "0.1"),
        (listed.shifted_uuid, '"a3680000-0000-0000-0000-000000000000"', '"00000000-0000-0000-0000-00000000a368"', '""'),
        (listed.six_digits, "5.8330067e+32", "5.83301e+32", "5.83302e+32"),
        (listed.as_text, "[1,null]", '"[1, null]"', '"[1, 0]"'),
        (listed.no_character, '"a?b"', '"a\ufffd"', '"\ufffdb"'),
        (listed.no_character, '"a??b"', '"a\U000d02d0b"', '"a?\U000d02d0b"'),
        (listed.no_character, '"a\x81b"', '"a\ufffdb"', '"a\ufffd"'),
        (listed.same_json, '[1, 1e2, {"a": 1, "b": 2}]', '[1,100,{"b":2,"a":1}]', '[1,101,{"b":2,"a":1}]'),
    ],
)
def test_a_rule_does_not_match_another_value(rule: listed.Rule, ours: str, theirs: str, other: str) -> None:
    assert rule(parsed(ours), parsed(theirs))
    assert not rule(parsed(ours), parsed(other))
