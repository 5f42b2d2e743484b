"""Fills in the values that a row lacks. They come from the row that the store has for the same key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from changelog.connectors.state.stored_row import StoredRow
from changelog.envelope.codec import json_codec
from changelog.envelope.model import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a row before a change.

    `values` has the JSON of each usable value, by column. `json_null` has the columns whose value is a JSON null.
    """

    values: Mapping[str, bytes]
    json_null: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The op of a record, and the parts into which values are filled: provenance (JSON), `current` and `original`."""

    op: str
    provenance: str
    current: bytes | None
    original: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A filled row. `json_null` and `complete` describe its `current`, as in `StoredRow`."""

    row: Row
    json_null: tuple[str, ...]
    complete: bool


def known(row: StoredRow, usable: frozenset[str]) -> Known:
    """Returns the values of a stored row whose columns are in `usable`."""
    members = json_codec.members(row.state)
    return Known(
        values={name: value for name, value in members.items() if name in usable},
        json_null=usable.intersection(row.json_null),
    )


def fill(row: Row, before: Known | None, columns: Sequence[str]) -> Filled:
    """Returns the row with the values that it lacks, as far as `before`, the row before the change, has them.

    `columns` are the entity's columns, in order. Values that the log sent are not replaced. An update or a delete
    without an original gets one if at least one of its values is known.
    """
    provenance = json_codec.decode_provenance(row.provenance)
    source = provenance.source
    current, original = row.current, row.original
    if before is not None:
        if current is not None and source.unavailable:
            current, unavailable, nulls = _merged(current, source.unavailable, source.json_null, before, columns)
            source = replace(source, unavailable=unavailable, json_null=nulls)
        lacking = source.unavailable_original
        if original is None and row.op in (Op.UPDATE, Op.DELETE):
            original, lacking = b"{}", tuple(columns)
        if original is not None and lacking:
            merged, unavailable, nulls = _merged(original, lacking, source.json_null_original, before, columns)
            if row.original is not None or len(unavailable) < len(columns):
                original = merged
                source = replace(source, unavailable_original=unavailable, json_null_original=nulls)
            else:
                original = None
    if source is not provenance.source:
        text = json_codec.provenance_json(replace(provenance, source=source)).decode()
        row = Row(op=row.op, provenance=text, current=current, original=original)
    elif original is not row.original:
        row = replace(row, original=original)
    return Filled(row=row, json_null=source.json_null, complete=not source.unavailable)


def _merged(
    state: bytes, lacking: Sequence[str], json_null: Sequence[str], before: Known, columns: Sequence[str]
) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
    """Fills in the columns that a state lacks, as far as `before` has them. Returns the new state.

    Also returns the columns that the new state still lacks, and the columns whose value in it is a JSON null.
    """
    filled_values = {name: before.values[name] for name in lacking if name in before.values}
    if not filled_values:
        return state, tuple(lacking), tuple(json_null)
    values = {**json_codec.members(state), **filled_values}
    order = [*(name for name in columns if name in values), *(name for name in values if name not in columns)]
    text = b",".join(msgspec.json.encode(name) + b":" + values[name] for name in order)
    nulls = {*json_null, *(name for name in filled_values if name in before.json_null)}
    return (
        b"{" + text + b"}",
        tuple(name for name in lacking if name not in filled_values),
        tuple(name for name in order if name in nulls),
    )
