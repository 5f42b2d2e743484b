"""Generates functions that read the rows of one table, from JSON or from the values that an Avro decoder returns.

A row in JSON is decoded to the raw tokens of its columns, in compiled code of msgspec. For columns of the usual types,
a generated function then tests each token with one expression. Most tokens pass the test, and are published as they
are. All other tokens go through the column's converter (`values.tokens`), whose result is correct by definition.
`RowsReader.from_members` has the same result, and uses only the converters. Tests compare the two.

For rows from an Avro decoder, a generated function prints most strings, integers and booleans itself. The other values
go through the converters. `RowsReader.from_values` has the same result, and uses only the converters.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.capture.rows.row_change import Value
from changelog.connectors.sources.debezium.decode.events import Row
from changelog.connectors.sources.debezium.values.tokens import Convert, ConvertValue
from changelog.schemas.types import Primitive

_QUOTE: Final = ord('"')

_PASSES: Final = {
    Primitive.STRING: f"{{t}} if {{t}}[0] == {_QUOTE} and {{t}} not in special else {{c}}({{t}})",
    Primitive.INT: "{t} if {t}.isdigit() and len({t}) < 10 else {c}({t})",
    Primitive.LONG: "{t} if {t}.isdigit() and len({t}) < 19 else {c}({t})",
    Primitive.BOOLEAN: "{t} if {t} == b'true' or {t} == b'false' else {c}({t})",
}
"""For each type whose tokens are mostly published as they are: the expression that converts a token `t`.

`c` is the column's converter. The expression of STRING is right only for a token without a backslash. For a row with a
backslash, the functions from `compiled` use another expression, which also tests the token for backslashes."""

_PRINTS: Final = {
    Primitive.STRING: "encode({t}) if type({t}) is str and {t} not in special else {c}({t})",
    Primitive.INT: "b'%d' % {t} if type({t}) is int and -{limit} <= {t} < {limit} else {c}({t})",
    Primitive.LONG: "b'%d' % {t} if type({t}) is int and -{limit} <= {t} < {limit} else {c}({t})",
    Primitive.BOOLEAN: "b'true' if {t} is True else b'false' if {t} is False else {c}({t})",
}
"""For the same types: the expression that prints a value `t`, which comes from an Avro decoder and is not null."""

_LIMITS: Final = {"int8": 1 << 7, "int16": 1 << 15, "int32": 1 << 31, "int64": 1 << 63}

_NO_ESCAPE: Final = r" if b'\\' not in {t} and "


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueReaders:
    """Functions that read a table's rows from the values of an Avro decoder. Each value is an argument.

    `row` takes the values of one row; `change` takes those of the old row, and then those of the new row. Both
    functions raise the errors of converters.
    """

    row: Callable[..., Row]
    change: Callable[..., tuple[Row, Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Functions that read a table's rows from JSON.

    `row` reads one row. `change` reads the rows before and after a change; most of their values are the same. Both
    functions raise msgspec.ValidationError if a row does not have exactly the columns of the table, and the errors of
    converters.
    """

    row: Callable[[Raw | bytes], Row]
    change: Callable[[Raw | bytes, Raw | bytes], tuple[Row, Row]]


def compiled(
    names: Sequence[str],
    passing: Sequence[Primitive | None],
    converters: Sequence[Convert],
    unavailable: Collection[bytes],
) -> Readers:
    """Returns the readers of rows with these columns.

    `passing` has the type of each column whose tokens may be published as they are, None for other columns.
    `unavailable` are the strings that stand for a value which was not sent.
    """
    fields = [(f"c{number}", Raw) for number in range(len(names))]
    struct = msgspec.defstruct(
        "Row", fields, rename={f"c{number}": name for number, name in enumerate(names)}, forbid_unknown_fields=True
    )
    decode, as_tuple = msgspec.json.Decoder(struct).decode, msgspec.structs.astuple
    scope = {"special": frozenset(unavailable)}
    same = ["=="] * len(names)

    def functions(passes: Mapping[Primitive, str]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        expressions = ["{c}({t})" if type_ is None else passes[type_] for type_ in passing]
        return _functions(expressions, converters, same, scope)

    row, change = functions(_PASSES)
    careful = {**_PASSES, Primitive.STRING: _PASSES[Primitive.STRING].replace(" if ", _NO_ESCAPE, 1)}
    careful_row, careful_change = functions(careful)

    def read_row(content: Raw | bytes) -> Row:
        text = bytes(content)
        tokens = map(bytes, as_tuple(decode(text)))
        return careful_row(*tokens) if b"\\" in text else row(*tokens)  # type: ignore[no-any-return]

    def read_change(before: Raw | bytes, after: Raw | bytes) -> tuple[Row, Row]:
        old, new = bytes(before), bytes(after)
        tokens = map(bytes, as_tuple(decode(old)) + as_tuple(decode(new)))
        usual = b"\\" not in old and b"\\" not in new
        return change(*tokens) if usual else careful_change(*tokens)  # type: ignore[no-any-return]

    return Readers(row=read_row, change=read_change)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueColumn:
    """A column whose values come from an Avro decoder.

    The converter `convert` defines the result for each value. `type` is the base type in Kafka Connect. `passing` is
    the type of the column if one of `_PRINTS` prints its usual values, otherwise None. `in_cell` says that the values
    are cells of Cassandra. There, None does not stand for NULL, but for a column that the statement did not write.
    """

    convert: ConvertValue
    type: str
    passing: Primitive | None
    in_cell: bool


def compiled_for_values(columns: Sequence[ValueColumn], unavailable: Collection[str]) -> ValueReaders:
    """Returns the readers of rows with these columns. `unavailable` are the strings for a value that was not sent."""
    scope = {"special": frozenset(unavailable), "encode": msgspec.json.Encoder().encode}
    # A new value is not converted if it is the same as the old one. But equal floats may be printed differently (0 and
    # -0). So in columns whose `passing` is None, two values are the same only if they are one object.
    same = ["is" if column.passing is None else "==" for column in columns]
    row, change = _functions(
        [_expression(column) for column in columns], [column.convert for column in columns], same, scope
    )
    return ValueReaders(row=row, change=change)


def _expression(column: ValueColumn) -> str:
    if column.in_cell:
        return "{c}({t})"
    printed = "{c}({t})" if column.passing is None else _PRINTS[column.passing]
    limit = min(_LIMITS.get(column.type, 1 << 31), 1 << (63 if column.passing is Primitive.LONG else 31))
    return f"None if {{t}} is None else {printed.replace('{limit}', str(limit))}"


def _functions(
    expressions: Sequence[str],
    converters: Sequence[Callable[[Any], Value]],
    same: Sequence[str],
    scope: Mapping[str, Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Generates two functions: one converts the tokens of a row, the other those of the rows before and after a change.

    `expressions` has the expression of each column, in which `{t}` is a token and `{c}` its converter. `same` has, for
    each column, the operator by which two tokens count as the same.
    """

    def value(token: str, number: int) -> str:
        return expressions[number].format(t=token, c=f"c{number}")

    numbers = range(len(converters))
    old, new = ([f"{side}{number}" for number in numbers] for side in ("old", "new"))
    source = [f"def row({', '.join(old)}):", f"    return ({''.join(f'{value(old[n], n)}, ' for n in numbers)})"]
    source.append(f"def change({', '.join(old + new)}):")
    for number in numbers:
        token, before, after = f"old{number}", f"before{number}", f"after{number}"
        source.append(f"    {before} = {value(token, number)}")
        source.append(
            f"    {after} = {before} if new{number} {same[number]} {token} else {value(f'new{number}', number)}"
        )
    rows = ("".join(f"{side}{number}, " for number in numbers) for side in ("before", "after"))
    source.append(f"    return {', '.join(f'({row})' for row in rows)}")
    names = {**scope, **{f"c{number}": convert for number, convert in enumerate(converters)}}
    exec(compile("\n".join(source), "<row reader>", "exec"), names)
    return names["row"], names["change"]
