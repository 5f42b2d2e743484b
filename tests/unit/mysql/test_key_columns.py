"""Tests the SQL that selects rows by ranges of keys or by single keys.

Also tests how literals in this SQL are made from canonical texts, the form that keys have in the changelog.
"""

import itertools
import sqlite3

import pytest

from changelog.connectors.sources.mysql.snapshot.key_columns import (
    KeyColumn,
    key_column,
    keys_condition,
    range_condition,
)


def column(name: str, data_type: str, charset: str = "", collation: str = "") -> KeyColumn:
    key = key_column(name, data_type, charset, collation)
    assert key is not None
    return key


def test_every_row_is_in_exactly_one_of_consecutive_ranges() -> None:
    key = [column("a", "int"), column("b", "int")]
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
    rows = list(itertools.product(range(4), range(4)))
    database.executemany("INSERT INTO t VALUES (?, ?)", rows)
    bounds = [None, ("0", "2"), ("2", "-1"), ("2", "0"), None]
    parts = [
        database.execute(f"SELECT a, b FROM t WHERE {range_condition(key, first, end)}").fetchall()
        for first, end in itertools.pairwise(bounds)
    ]
    assert sorted(row for part in parts for row in part) == rows
    assert parts[0] == [(0, 0), (0, 1), (0, 2)]
    assert parts[2] == [(2, 0)]


def test_a_condition_selects_the_rows_with_given_keys() -> None:
    key = [column("a", "int"), column("b`", "varchar", "latin1", "latin1_bin")]
    assert keys_condition(key, [("1", "'x'"), ("2", "'y'")]) == "(`a` = 1 AND `b``` = 'x') OR (`a` = 2 AND `b``` = 'y')"


def test_a_literal_has_the_character_set_and_the_collation_of_its_column() -> None:
    literal = column("name", "varchar", "latin1", "latin1_german2_ci").literal
    assert literal == "CONCAT('_latin1 x''', HEX(`name`), ''' COLLATE latin1_german2_ci')"


@pytest.mark.parametrize(
    ("data_type", "text", "literal"),
    [
        ("bigint", "-12", "-12"),
        ("decimal", "1.50", "1.50"),
        ("decimal", "1e5", None),
        ("double", "1e-07", "1e-07"),
        ("double", "1e999999", None),
        ("double", "nan", None),
        ("float", "0.1", "0.10000000149011612"),
        ("float", "1e39", None),
        ("int", "1 OR 1=1", None),
        ("int", "1e999999", None),
        ("int", "", None),
        ("varchar", "it's", "CONVERT(_utf8mb4 x'69742773' USING latin1) COLLATE latin1_bin"),
        ("varchar", "\ud800", None),
        ("enum", "a", "CONVERT(_utf8mb4 x'61' USING latin1) COLLATE latin1_bin"),
        ("varbinary", "AP8Q", "_binary x'00ff10'"),
        ("blob", "no base64!", None),
        ("blob", "é", None),
        ("bit", "0101", "b'0101'"),
        ("bit", "2", None),
        ("date", "2024-01-31", "CAST('2024-01-31' AS DATE)"),
        ("datetime", "2024-01-31T10:00:00.500000", "CAST('2024-01-31 10:00:00.500000' AS DATETIME(6))"),
        ("timestamp", "2024-01-31T10:00:00.500000Z", "CAST('2024-01-31 10:00:00.500000' AS DATETIME(6))"),
        ("datetime", "5", None),
        ("time", "-838:59:59", "CAST('-838:59:59' AS TIME(6))"),
        ("time", "-", None),
        ("date", "2024' OR '1", None),
        ("uuid", "a0ee", "_utf8mb4 x'61306565'"),
    ],
)
def test_a_canonical_text_becomes_a_literal(data_type: str, text: str, literal: str | None) -> None:
    assert column("k", data_type, "latin1", "latin1_bin").from_canonical(text) == literal


def test_enums_are_read_in_the_order_of_their_numbers_and_found_by_their_texts() -> None:
    kind = column("k", "enum")
    assert (kind.compared, kind.lookup) == ("(`k` + 0)", "`k`")
    assert keys_condition([kind], [("'a'",)]) == "(`k` = 'a')"


def test_a_type_that_no_key_can_have_gives_no_column() -> None:
    assert key_column("k", "geometry", "", "") is None
