"""Tests, with random changelogs, that Spark's executors compute the same blame of rows as plain Python.

The *blame* of a row names, for each of its attributes, the change that set it. The executors' function reads all
changes of a row together, also those under its earlier keys. Plain Python reads the changes key by key.
"""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from changelog.envelope.columnar.batch import SCHEMA, from_records
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Record, position_of
from changelog.spark_jobs.blaming.attribute_rows import ORIGIN, ROWS_MAX, attribute_rows
from changelog.spark_jobs.blaming.origins import Move, spans_of
from changelog.spark_jobs.blaming.stamp_kinds import DefaultStamps
from tests.spark.blame_oracle import DEFAULT, attributes_of
from tests.spark.test_blame_origins import origin_at
from tests.spark.test_views import transactions
from tests.unit.records import record

DEFAULTS = DefaultStamps(general=DEFAULT, by_entity={})


def arranged(records: Sequence[Record], rows_max: int) -> list[pa.RecordBatch]:
    """Returns the changes in batches, sorted as the job sorts them. Each change gets the columns `ORIGIN`, which
    identify its row. A change before the last truncate of its entity has no provenance.
    """
    moves = [
        Move(position=str(position_of(change)), entity=change.entity, old=change.moved_from.key, new=change.place.key)
        for change in records
        if change.moved_from is not None and change.moved_from.key != change.place.key
    ]
    spans = spans_of(moves)
    truncates = {
        change.entity: str(position_of(change))
        for change in sorted(records, key=position_of)
        if change.envelope.provenance.source.op is Op.TRUNCATE
    }
    rows = []
    for row in from_records(records).to_pylist():
        is_gone = row["position"] <= truncates.get(row["entity"], "")
        origin = origin_at(spans, row["key"], row["position"], row["entity"])
        rows.append({**row, **dict(zip(ORIGIN, origin, strict=True)), **({"provenance": None} if is_gone else {})})
    rows = [row for row in rows if row["key"] != TRUNCATE_KEY]
    rows.sort(key=lambda row: [row[name] for name in ("entity", *ORIGIN, "position")])
    nullable = [field.with_nullable(True) for field in SCHEMA]
    schema = pa.schema([*nullable, *(pa.field(name, pa.utf8()) for name in ORIGIN)])
    return list(pa.Table.from_pylist(rows, schema=schema).to_batches(max_chunksize=rows_max))


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in attribute_rows(batches, defaults=DEFAULTS) for row in batch.to_pylist()]


def test_rows_have_the_attributes_of_their_keys(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        records = [change for changes in transactions(chance.randrange(1 << 32), 60) for change in changes]
        rows = rows_of(arranged(records, chance.randrange(1, 50)))
        by_path = {(row.pop("entity"), row.pop("key"), row.pop("path")): row for row in rows}
        assert by_path == attributes_of(records, max(map(position_of, records)))


def test_a_batch_is_yielded_when_it_is_full() -> None:
    records = [record(Op.CREATE, '{"a":1,"b":2}', commit=n, key=str(n)) for n in range(1, ROWS_MAX)]
    batches = attribute_rows(arranged(records, 100), defaults=DEFAULTS)
    assert [batch.num_rows for batch in batches] == [ROWS_MAX, ROWS_MAX - 2]


def test_an_error_in_a_state_names_entity_and_position() -> None:
    records = [record(Op.CREATE, '{"a":1}', commit=1), record(Op.UPDATE, "[1]", commit=2)]
    with pytest.raises(ChangelogError) as raised:
        rows_of(arranged(records, 10))
    assert str(raised.value) == (
        f"entity order, position {position_of(records[1])}: the state of a change (update) is not a JSON object"
    )
