"""Tests that reading the JSON of many rows at once gives the same values as reading it row by row."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.envelope.errors import ChangelogError
from changelog.envelope.states import fold, fold_batch
from changelog.schemas.avro import Column
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from changelog.spark_jobs.views.transforms import schema_of

P = Primitive

TYPES: Mapping[str, ColumnType] = {
    "flag": P.BOOLEAN,
    "small": P.INT,
    "large": P.LONG,
    "single": P.FLOAT,
    "double": P.DOUBLE,
    "amount": Decimal(precision=6, scale=2),
    "whole": Decimal(precision=3, scale=0),
    "ratio": Decimal(precision=2, scale=2),
    "huge": Decimal(precision=40, scale=0),
    "text": P.STRING,
    "blob": P.BYTES,
    "uuid": P.UUID,
    "day": P.DATE,
    "time": P.TIME,
    "at": P.TIMESTAMP,
    "at zone": P.TIMESTAMP_TZ,
    "doc": P.JSON,
    "list": Array(element=P.INT),
    "map": Map(value=P.STRING),
    "pair": Struct(fields=(("n", P.INT), ("at", P.DATE))),
}
COLUMNS = [Column(name=name, type=type_, nullable=True) for name, type_ in TYPES.items()]
SCHEMAS = {raw: schema_of(COLUMNS, raw=raw) for raw in (False, True)}

DAYS = ("2026-11-21", "0001-01-01", "9999-12-31", "2024-02-29", "2026-02-30", "0000-01-01", "infinity", "20261121")
CLOCKS = ("03:10:02.500000", "00:00:00.000000", "23:59:59.999999", "24:00:00.000000", "23:59:60.000000", "03:10:02.5")

days = st.sampled_from(DAYS) | st.dates().map(str)
moments = st.builds("{}T{}{}".format, days, st.sampled_from(CLOCKS), st.sampled_from(["", "Z", "+00"]))
digits = st.from_regex(r"-?[0-9]{0,6}(\.[0-9]{0,4})?(e[0-9])?", fullmatch=True)
strings = st.text(max_size=5) | st.sampled_from(["NaN", "Infinity", "-Infinity", "\x00", "AP8Q", "A", "null", '":-0,'])
tokens = st.one_of(
    st.sampled_from(
        ["null", "true", "false", "0", "-0", "-0.0", "0.0", "1e400", "1.0", "2.50", "3.4028236e+38", "1e+20"]
    ),
    st.sampled_from(['"\\ud800"', '"\\u00e9"', "[1, null]", "[[1]]", '{"n":1,"at":null}', '{"a":"1"}', "[]", "{ }"]),
    st.integers(-(2**65), 2**65).map(str) | st.integers(-2, 2).map(lambda n: str(2**31 + n)),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.one_of(strings, digits, days, moments, st.uuids().map(str)).map(json.dumps),
)
documents = st.lists(
    st.tuples(st.sampled_from([*(column.name for column in COLUMNS), "unknown"]), tokens), max_size=5
).map(lambda pairs: "{" + ",".join(f"{json.dumps(name)}: {token}" for name, token in pairs) + "}")


def folded(documents: list[str | None], *, whole: bool, raw: bool) -> list[dict[str, Any]]:
    """Returns the states that result from one change for each document, sorted by key. With `whole`, documents are read
    a batch at a time where this is possible; otherwise, row by row.
    """
    count = len(documents)
    constants = {"op": "update", "api_version": "1", "service_name": "a", "identifier": "é", "context": "{}"}
    columns = {name: pa.array([value] * count) for name, value in constants.items()}
    columns |= {
        "key": pa.array([str(number) for number in range(count)]),
        "position": pa.array([f"00000001/{number:016X}/00000000" for number in range(count)]),
        "committed_at": pa.array(range(count), pa.timestamp("us", tz="UTC")),
        "current": pa.array(documents, pa.utf8()),
        "gaps": pa.nulls(count, pa.utf8()),
        fold.WHOLE: pa.array(np.full(count, whole)),
    }
    changes = pa.table({name: columns[name] for name in fold.CHANGES}).to_batches()
    table = pa.Table.from_batches(fold.fold(changes, columns=COLUMNS, schema=SCHEMAS[raw], raw=raw))
    return sorted(table.to_pylist(), key=lambda row: int(row["_key"]))


@settings(max_examples=100, deadline=None)
@given(st.lists(documents, min_size=1, max_size=4), st.booleans())
def test_reading_a_batch_equals_reading_row_by_row(documents: list[str], raw: bool) -> None:
    quick, plain = (folded([*documents], whole=whole, raw=raw) for whole in (True, False))
    assert repr(quick) == repr(plain)  # `repr` distinguishes NaN from null, and -0.0 from 0.0


USUAL = (
    '{"flag":true,"small":-1,"large":9223372036854775807,"single":1.5,"double":1e+20,"amount":"-12.50","whole":"0",'
    '"ratio":"0.25","huge":"1","text":"é","blob":"AP8Q","uuid":"x","day":"2026-11-21","time":"24:00:00",'
    '"at":"2026-11-21T03:10:02.500000","at zone":"2026-11-21T03:10:02.500000Z","doc":{"n":1e+20},"list":[1,null],'
    '"map":{"a":null},"pair":{"n":1,"at":"2026-11-21"}}'
)


def test_usual_states_are_read_a_batch_at_a_time() -> None:
    """If usual states were read row by row, the test above would compare the row-by-row reader with itself."""
    types = SCHEMAS[False].types[: len(COLUMNS)]
    arrays, unread = fold_batch.BatchReader(COLUMNS, types, raw=False).reader()(
        [USUAL, "{}", '{"double":0,"at":"infinity"}', "[]"]
    )
    assert unread.tolist() == [False, False, True, True]
    assert all(array[0].is_valid and not array[1].is_valid for array in arrays)


def test_a_name_that_json_escapes_is_read_row_by_row() -> None:
    reader = fold_batch.BatchReader([Column(name='a"b', type=P.INT, nullable=True)], [pa.int32()], raw=False).reader()
    assert reader(['{"a\\"b":1}'])[1].tolist() == [True]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("state", [None, "[]", '{"a":', pytest.param("[" * 100_000, id="deep")])
def test_a_state_that_is_no_object_is_an_error(state: str | None, whole: bool) -> None:
    with pytest.raises(
        ChangelogError, match=r"the state of a change .* is not a JSON object at 00000001/0000000000000001/"
    ):
        folded([USUAL, state], whole=whole, raw=False)
