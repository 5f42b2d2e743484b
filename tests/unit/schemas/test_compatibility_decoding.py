"""Tests `unreadable`, which says why data of a writer's schema cannot be read with a reader's schema.

fastavro must agree with `unreadable`. One schema is random, and the other results from random changes of it. Each of
them is once the writer's and once the reader's. Cases in which fastavro differs from Avro's rules are avoided. The last
tests show these cases.
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
"""Strict rules. If a change of a schema breaks one of them, only some Avro libraries can decode the data.

Some libraries refuse a name that fits several types or fields. Some refuse to read bytes that are not UTF-8 as text.
"""


@settings(max_examples=ROUNDS or 125, deadline=None, suppress_health_check=list(HealthCheck))
@given(evolutions())
def test_verdicts_agree_with_decoding(evolution: tuple[Schema, Schema]) -> None:
    old, new = evolution
    for reader, writer in ((old, new), (new, old)):
        findings = unreadable(reader, writer)
        error = decoding_error(plain(reader), plain(writer))
        if any(not finding.strict for finding in findings):
            assert error is not None, findings
        elif not any(finding.rule in DEPENDS for finding in findings) and not takes_bytes_for_text(reader):
            assert error is None, error


def takes_bytes_for_text(reader: Schema) -> bool:
    """Returns whether fastavro may decode bytes as text. It does if a union of the reader has a string before bytes.

    fastavro takes the first branch to which the value can be promoted. Libraries for Java and others first look for a
    branch of the value's type. Avro's specification can be read either way.
    """
    unions = (type_ for _, type_, _ in Document(reader).walk() if type_.kind == "union")
    kinds = ([branch.kind for branch in union.of_union()] for union in unions)
    return any("bytes" in branches and "string" in branches[: branches.index("bytes")] for branches in kinds)


def decoding_error(reader: Schema, writer: Schema) -> Exception | None:
    """Reads the writer's values with the reader's schema. Returns the error of fastavro, or None."""
    for value in values(writer):
        data = _written(value, writer)
        try:
            _read(data, writer, reader)
        except Exception as error:  # noqa: BLE001 - because fastavro raises errors of many types
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
def test_strict_rules_apply_if_a_value_would_change_its_meaning(
    reader: Schema, writer: tuple[Schema, list[Any]]
) -> None:
    schema, raws = writer
    findings = unreadable(reader, schema)
    if all(finding.strict for finding in findings):
        same_meaning = [means_the_same(reader, schema, raw) for raw in raws]
        assert all(same_meaning) is (not findings), findings


def means_the_same(reader: Schema, writer: Schema, raw: object) -> bool:
    """Returns whether a stored value, such as a number of days, means the same to the writer and to the reader.

    This is so if fastavro makes equal values of it with the writer's logical type and with the reader's.
    """
    expected = _read(_written(raw, plain(writer)), writer)
    try:
        actual = _read(
            _written(_read(_written(raw, plain(writer)), plain(writer), plain(reader)), plain(reader)), reader
        )
    except (ValueError, OverflowError):  # not a valid text, day or time
        return False
    if isinstance(expected, str) and isinstance(actual, bytes):  # a text that is read as bytes gives its UTF-8 bytes
        actual = actual.decode()
    return bool(expected == actual) and (type(expected) is type(actual) or isinstance(actual, float))


def _written(value: object, schema: Schema) -> BytesIO:
    data = BytesIO()
    fastavro.schemaless_writer(data, _parsed(schema), value)
    data.seek(0)
    return data


def _read(data: BytesIO, writer: Schema, reader: Schema | None = None) -> object:
    return fastavro.schemaless_reader(data, _parsed(writer), None if reader is None else _parsed(reader))


def _parsed(schema: Schema) -> Parsed:
    return fastavro.parse_schema(schema)


def test_fastavro_decodes_bytes_as_text_if_a_union_has_a_string_first() -> None:
    writer = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["string", "bytes"]}]}
    reader = {**writer, "fields": [*writer["fields"], {"name": "y", "type": "int", "default": 0}]}
    assert unreadable(reader, writer) == []
    assert isinstance(decoding_error(reader, writer), UnicodeDecodeError)


def test_fastavro_does_not_look_at_the_kind_of_a_named_type() -> None:
    fixed = {"type": "fixed", "name": "X", "size": 1}
    record = {"type": "record", "name": "X", "fields": []}
    assert [finding.rule for finding in unreadable(record, fixed)] == [Rule.TYPE_CHANGED]
    assert decoding_error(record, fixed) is None


def test_fastavro_applies_an_alias_in_every_namespace() -> None:
    writer = {"type": "fixed", "name": "other.Old", "size": 1}
    reader = {"type": "fixed", "name": "ours.New", "aliases": ["Old"], "size": 1}
    assert [finding.rule for finding in unreadable(reader, writer)] == [Rule.NAME_MISMATCH]
    assert decoding_error(reader, writer) is None


def test_fastavro_treats_an_empty_union_as_no_schema() -> None:
    assert [finding.rule for finding in unreadable([], "int")] == [Rule.BRANCH_MISSING]
    assert decoding_error([], "int") is None


def test_one_field_that_fits_two_fields_of_the_reader_is_ambiguous() -> None:
    writer = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}
    reader = {
        **writer,
        "fields": [{"name": "a", "type": "int", "aliases": ["b"]}, {"name": "b", "type": "int"}],
    }
    (finding,) = unreadable(reader, writer)
    assert (finding.rule, finding.strict, finding.path) == (Rule.AMBIGUOUS, True, "/fields/a")
    assert decoding_error(reader, writer) is not None  # Avro's own library for Java says that the data can be read
