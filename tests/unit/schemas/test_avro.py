"""Tests the mapping between column types and Avro types, and the schemas of entities, envelopes and deltas."""

import importlib.resources
import io
import json
import re
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.schemas import avro
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from changelog.schemas.validity import faults
from tests.unit.schemas.strategies import names, shapes, types

P = Primitive

ORDER = Struct(
    fields=(
        ("id", P.LONG),
        ("größe in %", P.INT),
        ("amount", Decimal(precision=10, scale=2)),
        ("lines", Array(element=Struct(fields=(("n", P.INT), ("at", Struct(fields=(("day", P.DATE),))))))),
        ("labels", Map(value=P.STRING)),
        ("doc", P.JSON),
    )
)


def packaged(name: str) -> str:
    return importlib.resources.files("changelog.schemas").joinpath(name).read_text("utf-8")


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        (P.BOOLEAN, ["null", "boolean"]),
        (P.INT, ["null", "int"]),
        (P.LONG, ["null", "long"]),
        (P.FLOAT, ["null", "float"]),
        (P.DOUBLE, ["null", "double"]),
        (P.STRING, ["null", "string"]),
        (P.BYTES, ["null", "bytes"]),
        (P.UUID, ["null", {"type": "string", "logicalType": "uuid"}]),
        (P.DATE, ["null", {"type": "int", "logicalType": "date"}, "string"]),
        (P.TIME, ["null", {"type": "long", "logicalType": "time-micros"}, "string"]),
        (P.TIMESTAMP, ["null", {"type": "long", "logicalType": "local-timestamp-micros"}, "string"]),
        (P.TIMESTAMP_TZ, ["null", {"type": "long", "logicalType": "timestamp-micros"}, "string"]),
        (P.JSON, ["null", {"type": "string", "format": "json"}]),
        (
            Decimal(precision=10, scale=2),
            ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "string"],
        ),
        (Array(element=P.INT), ["null", {"type": "array", "items": ["null", "int"]}, "string"]),
        (Map(value=P.STRING), ["null", {"type": "map", "values": ["null", "string"]}]),
        (
            Struct(fields=(("a", P.INT),)),
            [
                "null",
                {
                    "type": "record",
                    "name": "x",
                    "fields": [{"name": "a", "type": ["null", "int"], "default": None}],
                },
                "string",
            ],
        ),
    ],
)
def test_each_type_maps_to_an_avro_type_and_back(type_: ColumnType, schema: object) -> None:
    assert avro.to_avro(type_, nullable=True, path=["x"]) == schema
    assert avro.of_avro(schema) == (type_, True)


@given(types, st.booleans())
def test_a_type_survives_the_round_trip(type_: ColumnType, nullable: bool) -> None:
    assert avro.of_avro(avro.to_avro(type_, nullable=nullable, path=["x"])) == (type_, nullable)


@given(shapes)
def test_a_shape_survives_the_round_trip_through_a_valid_schema(shape: Struct) -> None:
    key = [shape.fields[0][0]]
    schema = avro.value_schema("order", shape, key, "booking")
    fastavro.parse_schema(json.loads(json.dumps(schema)))
    assert schema == avro.value_schema("order", shape, key, "booking")
    columns = avro.columns(schema)
    assert tuple((column.name, column.type) for column in columns) == shape.fields
    assert [column.name for column in columns if not column.nullable] == key


@given(shapes, names)
@settings(deadline=None)
def test_the_record_of_an_entity_is_valid_alone_and_in_the_envelope(shape: Struct, entity: str) -> None:
    key = [shape.fields[0][0]]
    state = avro.state_schema(entity, shape, key, "my.booking")
    fastavro.parse_schema(json.loads(json.dumps(state)))
    assert faults(state) == []
    assert avro.state_shape(state) == shape
    assert avro.entity_of(state) == ("my.booking", entity)
    value = json.dumps(avro.value_schema(entity, shape, key, "my.booking"))
    assert json.dumps(avro.in_envelope(state)) == value
    state["fields"][0]["doc"] = "by hand"
    state["compatibility"] = "BACKWARD"
    assert json.dumps(avro.registered(state)) == value


def test_the_record_of_an_entity_names_its_keys() -> None:
    state = avro.state_schema("order", ORDER, ["id"], "booking", partition_by=["labels", "id"])
    assert (state["key"], state["partitionBy"]) == (["id"], ["labels", "id"])
    assert avro.state_schema("order", ORDER, ["id"], "booking")["partitionBy"] == ["id"]
    assert list(avro.value_schema("order", ORDER, ["id"], "booking")) == ["namespace", "type", "name", "doc", "fields"]
    schemas: list[Any] = ["string", [], {"type": "record", "name": "Order", "namespace": "a.b", "fields": []}]
    for schema in schemas:
        assert avro.entity_of(schema) is None


def test_an_envelope_without_columns_is_a_schema() -> None:
    template = json.loads(packaged("envelope.avsc"))
    assert faults(template) != []
    assert faults(avro.closed(template)) == []
    value = avro.value_schema("order", ORDER, ["id"], "booking")
    assert avro.closed(value) == value


def test_a_delta_has_the_same_provenance_as_an_envelope() -> None:
    delta, envelope = (json.loads(packaged(name)) for name in ("delta.avsc", "envelope.avsc"))
    provenances = [schema["fields"][0] for schema in (delta, envelope)]
    assert provenances[1]["type"].pop("namespace") == delta["namespace"] == "changelog"
    assert provenances[0] == provenances[1]


def test_the_schema_of_deltas_holds_the_operations_of_a_patch() -> None:
    schema = fastavro.parse_schema(json.loads(packaged("delta.avsc")))
    source = dict.fromkeys(("connector", "name", "database", "table", "op", "position", "transaction"), "x")
    provenance = {"apiVersion": "1", "serviceName": "s", "identifier": "", "source": {**source, "committedAt": 0}}
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/note", "value": "null"},
        {"op": "replace", "path": "/note", "value": '"x"'},
        {"op": "remove", "path": "/room"},
        {"op": "add", "path": "", "value": "{}", "reset": True},
    ]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {"provenance": provenance, "patch": patch})
    stream.seek(0)
    datum: Any = fastavro.schemaless_reader(stream, schema, None)
    assert datum["patch"] == [{"value": None, "reset": False, **operation} for operation in patch]


def test_a_registered_schema_has_safe_names_and_the_true_names() -> None:
    schema = avro.value_schema("order-item", ORDER, ["id"], "my.booking")
    assert (schema["namespace"], schema["name"]) == ("my.booking.order_x002D_item", "Envelope")
    current, original = schema["fields"][1:]
    state = current["type"][1]
    assert (state["name"], original["type"]) == ("State", ["null", "State"])
    fields = state["fields"]
    assert fields[0] == {"name": "id", "type": "long"}
    assert fields[1] == {
        "name": "gr_x00F6__x00DF_e_x0020_in_x0020__x0025_",
        "type": ["null", "int"],
        "default": None,
        "column": "größe in %",
    }
    line = fields[3]["type"][1]["items"][1]
    assert line["name"] == "State_x002F_lines"
    assert line["fields"][1]["type"][1]["name"] == "State_x002F_lines_x002F_at"


@given(names)
def test_a_name_is_made_safe_and_restored(name: str) -> None:
    assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", avro.safe(name))
    assert avro.true_name(avro.safe(name)) == name


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("status", "status"),
        ("order id", "order_x0020_id"),
        ("1st", "_x0031_st"),
        ("_x0020_", "_x005F_x0020_"),
        ("a_x", "a_x005F_x"),
        ("😀", "_x01F600_"),
    ],
)
def test_safe_names_are_the_expected_ones(name: str, safe: str) -> None:
    assert (avro.safe(name), avro.true_name(safe)) == (safe, name)


def test_foreign_schemas_are_refused() -> None:
    others: list[Any] = ["string", {"fields": []}, {"fields": [{"name": "current", "type": "State"}]}]
    for schema in others:
        with pytest.raises(ValueError, match="not that of an envelope"):
            avro.columns(schema)
    with pytest.raises(ValueError, match="not that of an entity's columns"):
        avro.columns({"fields": [{"name": "current", "type": ["null", "State"]}]})
    with pytest.raises(ValueError, match="a union is not one that this project writes"):
        avro.of_avro(["null", "int", "string"])
    with pytest.raises(ValueError, match="a type is not one that this project writes"):
        avro.of_avro({"type": "fixed", "name": "f", "size": 4})
