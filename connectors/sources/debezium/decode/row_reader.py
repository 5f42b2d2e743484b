"""Compiles the readers of one table's rows in JSON.

A row is decoded to the raw tokens of its columns, in compiled code. A generated function then looks at each token: most
are published as they are, and the function says so in one expression for each column, without a call. All other tokens
go through the column's converter, which defines the result (`values.tokens`). `Rows.from_members` does the same with
the converters alone, and tests compare the two.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.sources.debezium.decode.events import Row
from changelog.connectors.sources.debezium.values.tokens import Convert
from changelog.schemas.types import Primitive

_QUOTE: Final = ord('"')

_PASSES: Final = {
    Primitive.STRING: f"{{t}} if {{t}}[0] == {_QUOTE} and {{t}} not in special else {{c}}({{t}})",
    Primitive.INT: "{t} if {t}.isdigit() and len({t}) < 10 else {c}({t})",
    Primitive.LONG: "{t} if {t}.isdigit() and len({t}) < 19 else {c}({t})",
    Primitive.BOOLEAN: "{t} if {t} == b'true' or {t} == b'false' else {c}({t})",
}
"""For the types whose tokens are mostly published as they are: the expression of a token `t` with the converter `c`.

A string must have no escapes."""

_NO_ESCAPE: Final = r" if b'\\' not in {t} and "


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The readers of a table: of a row, and of the rows before and after a change, most of whose values are the same.

    Both raise msgspec.ValidationError if a row has not exactly the columns of the table, and the errors of converters.
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
    row, change = _functions(passing, converters, unavailable, _PASSES)
    passes = {**_PASSES, Primitive.STRING: _PASSES[Primitive.STRING].replace(" if ", _NO_ESCAPE, 1)}
    careful_row, careful_change = _functions(passing, converters, unavailable, passes)

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


def _functions(
    passing: Sequence[Primitive | None],
    converters: Sequence[Convert],
    unavailable: Collection[bytes],
    passes: Mapping[Primitive, str],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Generates two functions: from the tokens of a row to the row, and from those of two rows to the two rows."""

    def value(token: str, number: int) -> str:
        type_ = passing[number]
        converter = f"c{number}"
        return f"{converter}({token})" if type_ is None else passes[type_].format(t=token, c=converter)

    numbers = range(len(converters))
    old, new = ([f"{side}{number}" for number in numbers] for side in ("old", "new"))
    source = [f"def row({', '.join(old)}):", f"    return ({''.join(f'{value(old[n], n)}, ' for n in numbers)})"]
    source.append(f"def change({', '.join(old + new)}):")
    for number in numbers:
        token, before, after = f"old{number}", f"before{number}", f"after{number}"
        source.append(f"    {before} = {value(token, number)}")
        source.append(f"    {after} = {before} if new{number} == {token} else {value(f'new{number}', number)}")
    rows = ("".join(f"{side}{number}, " for number in numbers) for side in ("before", "after"))
    source.append(f"    return {', '.join(f'({row})' for row in rows)}")
    scope: dict[str, Any] = {f"c{number}": convert for number, convert in enumerate(converters)}
    scope["special"] = frozenset(unavailable)
    exec(compile("\n".join(source), "<row reader>", "exec"), scope)
    return scope["row"], scope["change"]
