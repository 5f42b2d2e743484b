"""Compiles the reader of one table's rows in JSON.

A row is decoded to the raw tokens of its columns, in compiled code. A generated function then looks at each token: most
are published as they are, and the function says so in one expression for each column, without a call. All other tokens
go through the column's converter, which defines the result (`values.tokens`). `Rows.from_members` does the same with
the converters alone, and tests compare the two.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.sources.debezium.decode.events import Row
from changelog.connectors.sources.debezium.values.tokens import Convert
from changelog.schemas.types import Primitive

Reader = Callable[[Any], Row]
"""Reads a row from JSON. Raises msgspec.ValidationError if it has not exactly the columns of the table."""

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


def compiled(
    names: Sequence[str],
    passing: Sequence[Primitive | None],
    converters: Sequence[Convert],
    unavailable: Collection[bytes],
) -> Reader:
    """Returns the reader of rows with these columns.

    `passing` has the type of each column whose tokens may be published as they are, None for other columns.
    `unavailable` are the strings that stand for a value which was not sent.
    """
    fields = [(f"c{number}", Raw) for number in range(len(names))]
    struct = msgspec.defstruct(
        "Row", fields, rename={f"c{number}": name for number, name in enumerate(names)}, forbid_unknown_fields=True
    )
    decode, as_tuple = msgspec.json.Decoder(struct).decode, msgspec.structs.astuple
    fast = _function(passing, converters, unavailable)
    careful = _function(passing, converters, unavailable, escapes=True)

    def read(row: Raw | bytes) -> Row:
        text = bytes(row)
        tokens = map(bytes, as_tuple(decode(text)))
        return careful(*tokens) if b"\\" in text else fast(*tokens)

    return read


def _function(
    passing: Sequence[Primitive | None],
    converters: Sequence[Convert],
    unavailable: Collection[bytes],
    *,
    escapes: bool = False,
) -> Callable[..., Row]:
    """Generates a function that takes the tokens of a row, and returns the row.

    With `escapes`, strings may have escapes.
    """
    passes = {**_PASSES, Primitive.STRING: _PASSES[Primitive.STRING].replace(" if ", _NO_ESCAPE, 1)}
    expressions = passes if escapes else _PASSES
    tokens = [f"t{number}" for number in range(len(converters))]
    parts = [
        f"{token}c({token})" if type_ is None else expressions[type_].format(t=token, c=f"{token}c")
        for token, type_ in zip(tokens, passing, strict=True)
    ]
    source = f"def read({', '.join(tokens)}):\n    return ({''.join(f'{part}, ' for part in parts)})\n"
    scope: dict[str, Any] = {f"{token}c": convert for token, convert in zip(tokens, converters, strict=True)}
    scope["special"] = frozenset(unavailable)
    exec(compile(source, "<row reader>", "exec"), scope)
    return scope["read"]  # type: ignore[no-any-return]
