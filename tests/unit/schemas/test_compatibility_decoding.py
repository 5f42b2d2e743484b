"""Verdicts against what fastavro makes of data that was really written, over random changes of random schemas.

Where fastavro itself differs from Avro's rules, the random schemas keep off, and the tests below show how it differs.
"""

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest
from fastavro.types import Schema as Parsed
from hypothesis import HealthCheck, given, settings

from changelog.schemas.avro import Schema
from changelog.schemas.document import Document
from changelog.schemas.resolution import unreadable
from changelog.schemas.rules import Rule
from tests.unit.schemas.evolutions import ROUNDS, evolutions, plain, values

DEPENDS = {Rule.AMBIGUOUS, Rule.PROMOTION_LOSSY}
"""Strict rules on data that a library may or may not decode: one name of several fits; bytes may or may not be text."""


@settings(max_examples=ROUNDS or 250, deadline=None, suppress_health_check=list(HealthCheck))
@given(evolutions())
def test_a_verdict_is_what_decoding_shows(evolution: tuple[Schema, Schema]) -> None:
    old, new = evolution
    for reader, writer in ((old, new), (new, old)):
        found = unreadable(reader, writer)
        error = decoding_error(plain(reader), plain(writer))
        if any(not finding.strict for finding in found):
            assert error is not None, found
        elif not any(finding.rule in DEPENDS for finding in found) and not takes_bytes_for_text(reader):
            assert error is None, error


def takes_bytes_for_text(reader: Schema) -> bool:
    """fastavro takes a union's first branch that fits, even by promotion, and so a string that stands before bytes.

    Java and others look for the same type first; Avro's specification can be read either way.
    """
    unions = (type_ for _, type_, _ in Document(reader).walk() if type_.kind == "union")
    kinds = ([branch.kind for branch in union.of_union()] for union in unions)
    return any("bytes" in each and "string" in each[: each.index("bytes")] for each in kinds)


def decoding_error(reader: Schema, writer: Schema) -> Exception | None:
    """Why a value of the writer's could not be read; None when all could."""
    for value in values(writer):
        data = _written(value, writer)
        try:
            _read(data, writer, reader)
        except Exception as error:  # noqa: BLE001, as it raises whatever it stumbles over
            return error
    return None


MEANINGS: list[tuple[Schema, list[Any]]] = [
    ("int", [(1 << 31) - 1]),
    ("long", [(1 << 63) - 1]),
    ("float", [0.5]),
    ("double", [0.1]),
    ("bytes", [b"\xff"]),
    ("string", ["text", "c303282d-f2e6-46ca-a04a-35d3d873712d"]),
    ({"type": "int", "logicalType": "date"}, [20_000]),
    ({"type": "int", "logicalType": "time-millis"}, [3_600_001]),
    ({"type": "long", "logicalType": "time-micros"}, [3_600_001]),
    ({"type": "long", "logicalType": "timestamp-millis"}, [3_600_001]),
    ({"type": "long", "logicalType": "timestamp-micros"}, [3_600_001]),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, [3_600_001]),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, [3_600_001]),
    ({"type": "string", "logicalType": "uuid"}, ["c303282d-f2e6-46ca-a04a-35d3d873712d"]),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, [(9999).to_bytes(2)]),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, [(9999).to_bytes(2)]),
    ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, [(999_999).to_bytes(3)]),
]


@pytest.mark.parametrize("writer", MEANINGS, ids=lambda case: json.dumps(case[0]))
@pytest.mark.parametrize("reader", [case[0] for case in MEANINGS], ids=json.dumps)
def test_a_strict_rule_is_where_a_value_would_mean_something_else(
    reader: Schema, writer: tuple[Schema, list[Any]]
) -> None:
    schema, raws = writer
    found = unreadable(reader, schema)
    if all(finding.strict for finding in found):
        kept = [means_the_same(reader, schema, raw) for raw in raws]
        assert all(kept) is (not found), found


def means_the_same(reader: Schema, writer: Schema, raw: object) -> bool:
    """Whether what fastavro makes of a number or bytes is the same for both: it goes by the writer's logical type."""
    meant = _read(_written(raw, plain(writer)), writer)
    try:
        got = _read(_written(_read(_written(raw, plain(writer)), plain(writer), plain(reader)), plain(reader)), reader)
    except (ValueError, OverflowError):  # it is no such text, day or time
        return False
    if isinstance(meant, str) and isinstance(got, bytes):  # text may be read as bytes, which are its UTF-8
        got = got.decode()
    return bool(meant == got) and (type(meant) is type(got) or isinstance(got, float))


def _written(value: object, schema: Schema) -> BytesIO:
    data = BytesIO()
    fastavro.schemaless_writer(data, _parsed(schema), value)
    data.seek(0)
    return data


def _read(data: BytesIO, writer: Schema, reader: Schema | None = None) -> object:
    return fastavro.schemaless_reader(data, _parsed(writer), None if reader is None else _parsed(reader))


def _parsed(schema: Schema) -> Parsed:
    return fastavro.parse_schema(schema)


def test_the_bytes_of_a_union_with_a_string_before_them() -> None:
    writer = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["string", "bytes"]}]}
    reader = {**writer, "fields": [*writer["fields"], {"name": "y", "type": "int", "default": 0}]}
    assert unreadable(reader, writer) == []
    assert isinstance(decoding_error(reader, writer), UnicodeDecodeError)


def test_fastavro_does_not_look_at_the_kind_of_a_named_type() -> None:
    fixed = {"type": "fixed", "name": "X", "size": 1}
    record = {"type": "record", "name": "X", "fields": []}
    assert [each.rule for each in unreadable(record, fixed)] == [Rule.TYPE_CHANGED]
    assert decoding_error(record, fixed) is None


def test_fastavro_takes_an_alias_for_one_of_every_namespace() -> None:
    writer = {"type": "fixed", "name": "other.Old", "size": 1}
    reader = {"type": "fixed", "name": "ours.New", "aliases": ["Old"], "size": 1}
    assert [each.rule for each in unreadable(reader, writer)] == [Rule.NAME_MISMATCH]
    assert decoding_error(reader, writer) is None


def test_fastavro_takes_an_empty_union_for_no_schema() -> None:
    assert [each.rule for each in unreadable([], "int")] == [Rule.BRANCH_MISSING]
    assert decoding_error([], "int") is None


def test_one_field_for_two_of_the_reader() -> None:
    writer = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}
    reader = {
        **writer,
        "fields": [{"name": "a", "type": "int", "aliases": ["b"]}, {"name": "b", "type": "int"}],
    }
    (found,) = unreadable(reader, writer)
    assert (found.rule, found.strict, found.path) == (Rule.AMBIGUOUS, True, "/fields/a")
    assert decoding_error(reader, writer) is not None  # Java's own verdict is that it can be read
