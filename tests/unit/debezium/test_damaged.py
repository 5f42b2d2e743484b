"""Tests damaged messages. Each message must be read, or refused with an error that names the topic of the message.

Also tests that the generated reader of rows reads the same values as the converters of single values.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.tables import UNFIT, ReadColumn, RowsReader
from changelog.connectors.sources.debezium.decode.translate import Translator
from changelog.connectors.sources.debezium.decode.unwrapped import members_of
from changelog.connectors.sources.debezium.values.declared_types import declared_type
from changelog.connectors.sources.debezium.values.placeholders import Placeholders
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.debezium import captured
from tests.unit.debezium.messages import event, plain, scalar, text, typed

COLUMNS = {
    "id": "long",
    "n": "int",
    "ok": "boolean",
    "name": "string",
    "weight": "double",
    "price": "Decimal(8,2)",
    "day": "Date",
    "at": "MicroTimestamp",
    "zoned": "ZonedTimestamp",
    "doc": "Json",
    "raw": "bytes",
    "tags": "array(string)",
}
TYPES = {("public", "orders"): COLUMNS}
ROW = {
    "id": 12345678901,
    "n": -7,
    "ok": True,
    "name": 'a "quoted" ü',
    "weight": 1.5,
    "price": "BUY=",
    "day": 20778,
    "at": 1795230602500000,
    "zoned": "2026-11-21T03:10:02.886044Z",
    "doc": '{"a": 1}',
    "raw": "AP8Q",
    "tags": ["x", None],
}
TYPED = {
    "id": scalar("int64"),
    "name": scalar("string"),
    "at": scalar("int64", "io.debezium.time.MicroTimestamp"),
}
MESSAGES = {
    "plain": plain(event("u", ROW, {**ROW, "n": 8}), {"id": 12345678901}),
    "schema": typed(TYPED, event("u", None, {"id": 1, "name": "x", "at": 5}), ({"id": scalar("int64")}, {"id": 1})),
    "flat": plain({**ROW, "__op": "u", "__table": "orders", "__schema": "public"}, {"id": 12345678901}),
    "cloud": plain(
        {
            "specversion": "1.0",
            "source": "/debezium",
            "iodebeziumop": "c",
            "iodebeziumconnector": "postgresql",
            "iodebeziumschema": "public",
            "iodebeziumtable": "orders",
            "iodebeziumtsms": "5",
            "data": {"before": None, "after": ROW},
        }
    ),
}

damage = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(["replace", "remove", "insert"]), st.integers(0, 255)),
    min_size=1,
    max_size=3,
)


def damaged(content: bytes, steps: list[tuple[float, str, int]]) -> bytes:
    changed = bytearray(content)
    for where, how, byte in steps:
        at = int(where * len(changed))
        if how == "insert":
            changed.insert(at, byte)
        elif how == "remove":
            del changed[at : at + 1]
        elif changed:
            changed[at] = byte
    return bytes(changed)


Damage = list[tuple[float, str, int]]


def translate_damaged(translator: Translator, message: SourceRecord, value: Damage, key: Damage | None) -> None:
    """Translates a damaged copy of a message. If the translator refuses the copy, the error must name its topic."""
    assert message.value is not None
    wrong = SourceRecord(
        topic=message.topic,
        key=message.key if key is None or message.key is None else damaged(message.key, key),
        value=damaged(message.value, value),
    )
    try:
        translator.translate([wrong])
    except ChangelogError as error:
        # If the damage changes the name of a column or a table, the type of the column is not declared. Then the error
        # is a PRECONDITION, and names the table instead of the topic.
        assert error.kind in (Kind.MALFORMED, Kind.PRECONDITION)  # noqa: PT017
        assert error.kind is Kind.PRECONDITION or message.topic in error.message  # noqa: PT017


@pytest.mark.parametrize("form", MESSAGES)
@settings(max_examples=150, deadline=None)
@given(value=damage, key=st.none() | damage)
def test_a_damaged_message_is_read_or_refused(
    form: str, value: list[tuple[float, str, int]], key: list[tuple[float, str, int]] | None
) -> None:
    message = MESSAGES[form]
    assert message.value is not None
    translator = Translator(TranslationSettings(types=TYPES, unwrapped=form == "flat"))
    translator.translate([message])  # so that the schema is known
    translate_damaged(translator, message, value, key)


AVRO = [of for of in captured.messages("postgres.avro") if of.value is not None]
AVRO_SCHEMAS = captured.avro_schemas("postgres.avro")


def avro_schema(number: int) -> Any:
    """Returns a schema. If there is none with this number, raises the error that a registry would cause."""
    if number not in AVRO_SCHEMAS:
        raise ChangelogError(Kind.PRECONDITION, "the registry has no such schema")
    return AVRO_SCHEMAS[number]


@settings(max_examples=150, deadline=None)
@given(which=st.integers(0, len(AVRO) - 1), value=damage, key=st.none() | damage)
def test_a_damaged_message_in_avro_is_read_or_refused(
    which: int, value: list[tuple[float, str, int]], key: list[tuple[float, str, int]] | None
) -> None:
    message = AVRO[which]
    assert message.value is not None
    translator = Translator(TranslationSettings(schema_of=avro_schema, types=TYPES))
    translate_damaged(translator, message, value, key)


TOKENS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 65), 1 << 65),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["NaN", "Infinity", "BUY=", "AP8Q", "null", "{}", '{"a":"\\n"}', "__debezium_unavailable_value"]),
    st.sampled_from(["2026-11-21T03:10:02.886044Z", "2026-02-30T03:10:02.886044Z", "2026-11-21T24:10:02.886044Z"]),
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
    st.text(max_size=8),
    st.lists(st.none() | st.text(max_size=3), max_size=3),
)


def reader() -> RowsReader:
    columns = []
    for name, declared in COLUMNS.items():
        type_ = declared_type(declared, "postgresql")
        columns.append(ReadColumn(name=name, schema=type_.schema, semantics=type_.semantics))
    return RowsReader(columns, Placeholders("__debezium_unavailable_value"))


ROWS = reader()


@settings(max_examples=200, deadline=None)
@given(row=st.fixed_dictionaries({name: TOKENS | st.just(ROW[name]) for name in COLUMNS}), ascii_=st.booleans())
def test_the_generated_reader_reads_the_values_that_the_converters_read(row: dict[str, Any], *, ascii_: bool) -> None:
    content = json.dumps(row, ensure_ascii=ascii_, separators=(",", ":"))
    if any("\ud800" <= character <= "\udfff" for character in content):
        return
    members = members_of(content.encode())
    assert members is not None
    try:
        expected: Any = ROWS.from_members(members)
    except ChangelogError:
        expected = None
    try:
        read: Any = ROWS.exact.row(content.encode())
    except UNFIT:
        read = None
    assert read == expected


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_two_rows_of_an_update_are_read_like_single_rows(data: st.DataObject) -> None:
    """If both rows have the same value in a column, the reader converts this value only once."""

    def row() -> bytes:
        return text({name: data.draw(st.just(ROW[name]) | OTHERS[name]) for name in COLUMNS})

    before, after = row(), row()
    try:
        expected: Any = ROWS.exact.row(before), ROWS.exact.row(after)
    except UNFIT:
        expected = None
    try:
        read: Any = ROWS.exact.change(before, after)
    except UNFIT:
        read = None
    assert read == expected


OTHERS = {
    **dict.fromkeys(COLUMNS, st.none()),
    "n": st.integers(-(1 << 31), 1 << 31),
    "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "at": st.integers(-(1 << 62), 1 << 62),
    "ok": st.booleans() | st.just("x"),
}


def test_a_usual_row_is_read() -> None:
    assert ROWS.exact.row(text(ROW)) == (
        b"12345678901",
        b"-7",
        b"true",
        b'"a \\"quoted\\" \xc3\xbc"',
        b"1.5",
        b'"13.50"',
        b'"2026-11-21"',
        b'"2026-11-21T03:10:02.500000"',
        b'"2026-11-21T03:10:02.886044Z"',
        b'{"a": 1}',
        b'"AP8Q"',
        b'["x",null]',
    )


@pytest.mark.parametrize("row", [{**ROW, "other": 1}, {name: value for name, value in ROW.items() if name != "n"}])
def test_a_row_with_other_columns_is_not_read(row: dict[str, Any]) -> None:
    with pytest.raises(UNFIT):
        ROWS.exact.row(text(row))
