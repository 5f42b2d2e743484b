"""Reads a whole batch of states (rows as JSON text) into Arrow columns. `changelog.envelope.states.fold` reads states
row by row, with the same result, but much more slowly.

Values are read here only if they have the usual form of their type. Rows with any other value are *unusual*: the result
says which they are, and `fold` reads them one by one. A property test checks that both modules give the same result.
Every number is read exactly: msgspec reads integers and doubles; Arrow reads decimals, dates and times, after their
form was checked.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from changelog.envelope.states.json_values import NULL, Read, reader, text
from changelog.schemas.avro import Column
from changelog.schemas.spark import DIGITS_MAX
from changelog.schemas.types import ColumnType, Decimal, Primitive

Texts = Sequence[str | None]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

Finish = Callable[[Sequence[Any], Texts], tuple[pa.Array, Mask | None]]
"""Takes the decoded values of a column, and the texts of their rows. Returns the column's array, and a mask of the
unusual rows, or None if no row is unusual."""

_UNSUPPORTED_IN_NAMES = re.compile(r'["\\\x00-\x1f]')  # msgspec does not support names with these characters
_MINUS_NOUGHT = re.compile(r":\s*-0\s*[,}]")

_DAY: Final = r"([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_MOMENT: Final = rf"{_DAY}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{{6}}"
_FORMS: Final = {
    Primitive.DATE: rf"^{_DAY}$",
    Primitive.TIMESTAMP: rf"^{_MOMENT}$",
    Primitive.TIMESTAMP_TZ: rf"^{_MOMENT}Z$",
}

_PARSED: Final[dict[ColumnType, Any]] = {
    Primitive.BOOLEAN: bool,
    Primitive.INT: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    Primitive.LONG: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    Primitive.STRING: str,
    Primitive.UUID: str,
    Primitive.TIME: str,
}
"""The types whose values go into the column just as msgspec decodes them. Each has the type to which msgspec decodes
its values.
"""


@dataclass(frozen=True, slots=True)
class BatchReader:
    """Reads states with these columns; `types` are their Arrow types. With `raw`, all values are read as text."""

    columns: Sequence[Column]
    types: Sequence[pa.DataType]
    raw: bool

    def reader(self) -> Callable[[Texts], tuple[list[pa.Array], Mask]]:
        """Returns a function that reads states. The function returns one array for each column, and a mask of the
        unusual rows.
        """
        if any(_UNSUPPORTED_IN_NAMES.search(column.name) for column in self.columns):
            return lambda texts: ([pa.nulls(len(texts), type_) for type_ in self.types], np.ones(len(texts), np.bool_))
        parts = [_part(column.type, type_, self.raw) for column, type_ in zip(self.columns, self.types, strict=True)]
        fields = [
            (f"c{index}", *_optional(parsed, column.name))
            for index, (column, (parsed, _)) in enumerate(zip(self.columns, parts, strict=True))
        ]
        state = msgspec.defstruct("State", fields, gc=False)
        members = [attrgetter(name) for name, *_ in fields]
        finish = [finish for _, finish in parts]
        decode, empty = msgspec.json.Decoder(state).decode, state()

        def read(texts: Texts) -> tuple[list[pa.Array], Mask]:
            unusual_mask = np.zeros(len(texts), np.bool_)
            states = []
            for index, state_text in enumerate(texts):
                try:
                    states.append(decode(state_text))  # type: ignore[arg-type]  # None raises TypeError
                except (ValueError, TypeError, RecursionError):
                    states.append(empty)
                    unusual_mask[index] = True
            arrays = []
            for member_of, finished in zip(members, finish, strict=True):
                array, unusual = finished(list(map(member_of, states)), texts)
                arrays.append(array)
                if unusual is not None:
                    unusual_mask |= unusual
            return arrays, unusual_mask

        return read


def _optional(parsed: Any, name: str) -> tuple[Any, Any]:
    """Returns the type and the field by which msgspec reads a member that may be null or missing."""
    if parsed is Raw:  # msgspec mistakes Raw for a custom type if Raw is in a union with None
        return Raw, msgspec.field(name=name, default=Raw(NULL))
    return parsed | None, msgspec.field(name=name, default=None)


def _part(type_: ColumnType, to: pa.DataType, raw: bool) -> tuple[Any, Finish]:
    """Returns the type to which msgspec decodes a column's values, and the function that turns the decoded values into
    an array.
    """
    if raw:
        return Raw, _one_by_one(text, to)
    match type_:
        case Decimal(precision=precision, scale=scale):
            return str, _of_form(_decimal(precision, scale), to) if precision <= DIGITS_MAX else _as_they_are(to)
        case Primitive.FLOAT | Primitive.DOUBLE:
            return float, _floats(to)
        case _ if type_ in _PARSED:
            return _PARSED[type_], _as_they_are(to)
        case _ if type_ in _FORMS:
            return str, _of_form(_FORMS[type_], to)
    return Raw, _one_by_one(reader(type_), to)


def _decimal(precision: int, scale: int) -> str:
    """Returns a pattern for numbers that fit the type without rounding."""
    whole = rf"(0|[1-9][0-9]{{0,{precision - scale - 1}}})" if precision > scale else "0"
    return rf"^-?{whole}(\.[0-9]{{1,{scale}}})?$" if scale else rf"^-?{whole}$"


def _as_they_are(to: pa.DataType) -> Finish:
    return lambda values, _: (pa.array(values, to), None)


def _of_form(form: str, to: pa.DataType) -> Finish:
    """Lets Arrow parse the strings that match `form`, because Arrow and `fold` read these in the same way. All other
    strings are unusual.
    """

    def finish(values: Sequence[str | None], _: Texts) -> tuple[pa.Array, Mask | None]:
        texts = pa.array(values, pa.utf8())
        usual = pc.match_substring_regex(texts, form)
        if pc.all(usual).as_py() is not False:
            try:
                return texts.cast(to), None
            except pa.ArrowInvalid:  # a day that does not exist, such as the 30th of February
                return pa.nulls(len(texts), to), texts.is_valid().to_numpy(zero_copy_only=False)
        unusual = pc.invert(usual).fill_null(False).to_numpy(zero_copy_only=False)
        usual_values = [None if is_unusual else value for value, is_unusual in zip(values, unusual, strict=True)]
        array, unparsed = finish(usual_values, ())
        return array, unusual if unparsed is None else unusual | unparsed

    return finish


def _floats(to: pa.DataType) -> Finish:
    """Makes an array of the doubles that msgspec has read. If the array has single precision, Arrow rounds them again.

    msgspec reads -0 as 0. So if a value is zero and the row's text has a -0 anywhere, the row counts as unusual.
    """

    def finish(values: Sequence[float | None], texts: Texts) -> tuple[pa.Array, Mask | None]:
        array = pa.array(values, to)
        numbers = array.to_numpy(zero_copy_only=False)  # nulls become NaN; no JSON number is NaN
        unusual = np.isinf(numbers)
        for index in np.flatnonzero(numbers == 0).tolist():
            unusual[index] = _MINUS_NOUGHT.search(texts[index] or "") is not None
        return array, unusual

    return finish


def _one_by_one(read: Read, to: pa.DataType) -> Finish:
    def finish(values: Sequence[Raw], _: Texts) -> tuple[pa.Array, Mask | None]:
        unusual = np.zeros(len(values), np.bool_)
        parsed: list[object] = []
        for index, value in enumerate(values):
            token = bytes(value)
            try:
                parsed.append(None if token == NULL else read(token))
            except ValueError:
                parsed.append(None)
                unusual[index] = True
        return pa.array(parsed, to), unusual

    return finish
