"""Tests that a row's changes are found under all keys that it had. Other rows may have had the same keys before it, or
may get them later.

The *origin* of a row identifies the row. It is the row's first key. If another row had this key before, the origin also
has the position at which the other row left the key. A *move* is a change of a row's key.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Place, Record
from changelog.spark_jobs.blaming.origins import KeySpan, Move, moves_of, spans_of
from tests.spark.test_views import frame
from tests.unit.records import record


def move(at: int, old: str, new: str, entity: str = "order") -> Move:
    return Move(position=f"{at:04}", entity=entity, old=old, new=new)


def origin_at(spans: Sequence[KeySpan], key: str, position: str, entity: str = "order") -> tuple[str, str]:
    """Returns the origin of the row that has this key at this position. If no span contains the position, the origin is
    the key itself.
    """
    origins = [
        span.origin
        for span in spans
        if (span.entity, span.key) == (entity, key)
        and span.since <= position
        and (span.until is None or position < span.until)
    ]
    assert len(origins) <= 1
    return origins[0] if origins else (key, "")


def origin(spans: Sequence[KeySpan], key: str, at: int, entity: str = "order") -> tuple[str, str]:
    return origin_at(spans, key, f"{at:04}", entity)


def test_a_row_is_followed_over_all_its_keys() -> None:
    spans = spans_of([move(30, "B", "C"), move(10, "A", "B"), move(10, "A", "B"), move(20, "X", "A")])
    assert [origin(spans, *at) for at in [("A", 5), ("B", 10), ("B", 29), ("C", 30), ("C", 99)]] == [("A", "")] * 5
    assert [origin(spans, "B", 9), origin(spans, "C", 29)] == [("B", ""), ("C", "")]
    assert [origin(spans, "A", 15), origin(spans, "A", 25), origin(spans, "B", 31)] == [
        ("A", "0010"),
        ("X", ""),
        ("B", "0030"),
    ]
    assert origin(spans, "B", 15, entity="guest") == ("B", "")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ABCD"), st.sampled_from("ABCD")).filter(lambda pair: pair[0] != pair[1])),
    st.sampled_from("ABCD"),
)
def test_origins_equal_those_of_rows_that_are_moved_one_by_one(pairs: list[tuple[str, str]], key: str) -> None:
    spans = spans_of([move(10 * number, *pair) for number, pair in enumerate(pairs, 1)])
    rows = {name: (name, "") for name in "ABCD"}
    assert origin(spans, key, 0) == rows[key]
    for number, (old, new) in enumerate(pairs, 1):
        rows |= {new: rows[old], old: (old, f"{10 * number:04}")}
        assert origin(spans, key, 10 * number) == origin(spans, key, 10 * number + 9) == rows[key]


def arrived(commit: int, old: Place, new: Place) -> Record:
    template = record(Op.CREATE, "{}", commit=commit, key=new.key)
    return Record(entity="order", place=new, envelope=template.envelope, moved_from=old)


def test_a_change_of_the_partition_alone_is_no_move(spark: SparkSession, tmp_path: Path) -> None:
    quote = '"é\\'
    records = [
        arrived(1, Place(key=quote, partition=0), Place(key=quote, partition=1)),
        arrived(2, Place(key=quote, partition=1), Place(key="2", partition=1)),
        arrived(3, Place(key="2", partition=1), Place(key=quote, partition=1)),
    ]
    changes = frame(spark, tmp_path, records)
    assert sorted((arrival.old, arrival.new) for arrival in moves_of(changes)) == [(quote, "2"), ("2", quote)]
    with pytest.raises(
        ChangelogError, match="more than 1 changes move a row to another key; name fewer entities"
    ) as raised:
        moves_of(changes, moves_max=1)
    assert raised.value.kind is Kind.LIMIT
