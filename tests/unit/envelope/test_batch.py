"""Tests the Arrow batches that hold records: their columns, the shapes in their metadata, and damaged batches.

A shape gives the names and types of an entity's columns. A relation is a table of the database.
"""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.envelope.codec import json_codec
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Place, Record
from changelog.schemas import types
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from tests.unit.envelope import strategies
from tests.unit.envelope.test_json_codec import UPDATE


def record(**more: Place) -> Record:
    return Record(entity="order", place=Place(key="42", partition=3), envelope=json_codec.decode(UPDATE), **more)


@given(st.lists(strategies.records(), max_size=2))
def test_round_trip(records: list[Record]) -> None:
    rows = batch.from_records(records)
    rows.validate(full=True)
    assert rows.schema.equals(batch.SCHEMA)
    assert list(batch.records(rows)) == records


def test_a_row_is_readable_without_decoding() -> None:
    row = batch.from_records([record(moved_to=Place(key='["4","2"]', partition=0))]).to_pylist()[0]
    time = row.pop("committed_at")
    assert json_codec.time_text(time) == "2026-11-21T03:10:02.886044Z"
    assert row == {
        "entity": "order",
        "partition": 3,
        "key": "42",
        "op": "update",
        "position": "00000001/0000000001781838/00000006",
        "transaction": "765",
        "api_version": "v2",
        "service_name": "order-api",
        "identifier": "req-8f1c",
        "provenance": UPDATE.decode().split('"provenance":')[1].split(',"current"')[0],
        "current": '{"id":42,"status":"PAID","amount":"13.50"}',
        "original": '{"id":42,"status":"NEW","amount":"12.50"}',
        "moved": '{"movedTo":{"key":"[\\"4\\",\\"2\\"]","partition":0}}',
        "context": None,
    }


def test_the_json_of_a_move_names_the_other_place() -> None:
    assert batch.moved_json() is None
    assert batch.moved_json(from_=Place(key="é", partition=1)) == '{"movedFrom":{"key":"é","partition":1}}'


@pytest.mark.parametrize("column", ["provenance", "moved"])
def test_columns_that_cannot_be_read_are_malformed(column: str) -> None:
    rows = batch.from_records([record()])
    damaged = rows.set_column(rows.schema.get_field_index(column), column, pa.array(['{"moved":1}']))
    with pytest.raises(ChangelogError) as caught:
        list(batch.records(damaged))
    assert caught.value.kind is Kind.MALFORMED


def _nested(inner: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[ColumnType]:
    return (
        inner.map(lambda element: Array(element=element)) | inner.map(lambda value: Map(value=value)) | _structs(inner)
    )


def _structs(member: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[Struct]:
    return st.lists(st.tuples(st.text(max_size=3), member), max_size=3).map(lambda fields: Struct(fields=tuple(fields)))


column_types: st.SearchStrategy[ColumnType] = st.recursive(
    st.sampled_from(Primitive) | st.builds(Decimal, precision=st.integers(1, 1000), scale=st.integers(0, 1000)),
    _nested,
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=3), _structs(column_types), max_size=3))
def test_a_batch_has_the_shapes_that_it_was_given(shapes: dict[str, Struct]) -> None:
    rows = batch.with_shapes(batch.from_records([record(), record()]), shapes)
    assert batch.shapes(rows) == batch.shapes(rows.slice(1)) == shapes
    assert rows.schema.equals(batch.SCHEMA)
    assert list(batch.records(rows)) == [record(), record()]


@given(st.none() | st.integers(1, 2**32 - 1))
def test_a_batch_carries_the_number_of_its_relation(number: int | None) -> None:
    shapes = {"order": Struct(fields=(("id", Primitive.INT),))}
    rows = batch.with_shapes(batch.from_records([record(), record()]), shapes, relation=number)
    assert batch.relation(rows) == batch.relation(rows.slice(1)) == number
    assert batch.shapes(rows) == shapes


def test_a_batch_without_a_relation_has_no_number() -> None:
    rows = batch.from_records([record()])
    assert batch.relation(rows) is None
    assert batch.relation(batch.with_encoded_shapes(rows, batch.encode_shapes({}))) is None


def test_a_batch_without_shapes_gives_an_empty_mapping() -> None:
    assert batch.shapes(batch.from_records([record()])) == {}
    foreign = batch.from_records([record()]).replace_schema_metadata({b"pandas": b"{}"})
    assert batch.shapes(foreign) == {}


def test_shapes_are_small_readable_json() -> None:
    fields: tuple[tuple[str, ColumnType], ...] = (
        ("id", Primitive.LONG),
        ("amount", Decimal(precision=12, scale=2)),
        ("tags", Array(element=Primitive.STRING)),
        ("point", Struct(fields=(("x", Primitive.INT),))),
        ("attributes", Map(value=Primitive.STRING)),
    )
    assert batch.encode_shapes({"order": Struct(fields=fields)}) == (
        b'{"order":[["id","long"],["amount",{"decimal":[12,2]}],["tags",{"array":"string"}],'
        b'["point",{"struct":[["x","int"]]}],["attributes",{"map":"string"}]]}'
    )


@pytest.mark.parametrize("value", ["money", 1, None, {"decimal": [1]}, {"list": "int"}, {"struct": [["a"]]}])
def test_an_invalid_type_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a column type|not a field|not a valid Primitive"):
        types.from_json(value)
