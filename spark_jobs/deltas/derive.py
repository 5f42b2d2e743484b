"""Derives deltas from changes, with functions for Arrow batches and for Spark's DataFrames.

A delta is a JSON Patch that says how a change altered its row. `derive` makes a delta from each change. `messages`
makes messages from deltas, for Spark's Kafka sink. The message of a delta has the same key and partition as the message
of the change. The delta of a delete is followed by a tombstone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.codec import json_codec
from changelog.envelope.delta import delta_codec, patch_columns
from changelog.envelope.delta.patch_text import patch_text
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op
from changelog.envelope.position import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESET: Final = "reset"
"""The kind of a delta that has the whole state of its row, and does not say how the state changed. Such a delta is made
from a `read`, and from an update for which the original is unknown.
"""

KINDS: Final = (Op.CREATE.value, Op.UPDATE.value, Op.DELETE.value, RESET, Op.TRUNCATE.value)
"""The values that `kind` can have."""

TOMBSTONE: Final = "tombstone"

SCHEMA: Final = pa.schema(
    [
        pa.field("entity", pa.utf8()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.utf8()),
        pa.field("op", pa.utf8()),
        pa.field("kind", pa.utf8()),
        pa.field("position", pa.utf8()),
        pa.field("transaction", pa.utf8()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("service_name", pa.utf8()),
        pa.field("moved", pa.utf8()),
        pa.field("delta", pa.utf8()),
    ]
)
"""The columns of deltas. A delta's id is its `position`. `delta` is `{"provenance": …, "patch": […]}`. The other
columns, except `kind`, are those of the change."""

_NEEDED: Final = (
    *(name for name in SCHEMA.names if name not in ("kind", "delta")),
    "provenance",
    "current",
    "original",
)
"""Those columns of a change that are needed to derive its delta."""

MESSAGES: Final = pa.schema(
    [
        pa.field("topic", pa.utf8()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())]))),
    ]
)
"""The columns that Spark's Kafka sink needs. A tombstone has no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The topics to which deltas are written. `present` has the present topic of each entity.

    If an entity was repartitioned, `earlier` has its earlier topics, oldest first. Each of them is a pair: a position,
    and the topic for deltas up to this position.
    """

    present: Mapping[str, str]
    earlier: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)

    def at(self, entity: str, position: str) -> str:
        """Returns the topic for a delta of this entity at this position."""
        for last, topic in self.earlier.get(entity, ()):
            if position <= last:
                return topic
        return self.present[entity]


Values = Callable[[pa.RecordBatch], pa.Array]
"""A codec: a function that takes a batch of deltas (`SCHEMA`), and returns the encoded values of their messages."""

Lacking = dict[int, tuple[frozenset[str], bool]]
"""Says which rows of a batch lack values, because the database's log did not send them. Maps the index of such a row to
two values: the names of the columns that are unavailable in its `current` or its `original`, and whether its `original`
lacks any column.
"""

_UNAVAILABLE: Final = '"unavailable'
_NO_COLUMNS: Final[frozenset[str]] = frozenset()
_places: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_HEADERS: Final = {"op": "op", "position": "position", "transaction": "transaction", "serviceName": "service_name"}


def derive(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Derives deltas (`SCHEMA`) from changes (`changelog.envelope.columnar.batch.SCHEMA`): one from each row, in the
    same order.

    May raise ChangelogError (MALFORMED) if a state of a change is missing or is not JSON; the error names the entity
    and the position.
    """
    delta = _joined('{"provenance":', rows.column("provenance"), ',"patch":', _patches(rows), "}")
    computed = {"kind": _kinds(rows), "delta": delta}
    columns = [computed[name] if name in computed else rows.column(name) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def messages(deltas: pa.RecordBatch, topics: Topics, values: Values) -> pa.RecordBatch:
    """Returns the messages (`MESSAGES`) for a batch of deltas (`SCHEMA`), in the same order."""
    is_delete = pc.equal(deltas.column("op"), Op.DELETE.value).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(deltas.num_rows), 1 + is_delete)
    is_tombstone = np.append(False, rows[1:] == rows[:-1]) if len(rows) else np.zeros(0, dtype=bool)
    places = zip(deltas.column("entity").to_pylist(), deltas.column("position").to_pylist(), strict=True)
    names = pa.array([topics.at(entity, position) for entity, position in places], pa.utf8())
    columns = [
        names,
        deltas.column("partition"),
        deltas.column("key").cast(pa.binary()),
        values(deltas),
        _headers(deltas),
    ]
    topic, partition, key, value, headers = (column.take(pa.array(rows)) for column in columns)
    value = pc.if_else(pa.array(is_tombstone), pa.scalar(None, pa.binary()), value)
    return pa.RecordBatch.from_arrays([topic, partition, key, value, headers], schema=MESSAGES)


def json_values(deltas: pa.RecordBatch) -> pa.Array:
    """Encodes deltas with the codec `json`: the value of a message is the JSON in the column `delta`."""
    return deltas.column("delta").cast(pa.binary())


def avro_values(ids: Mapping[str, int]) -> Values:
    """Returns the codec `avro`, in Confluent's wire format.

    `ids` has, for each entity, the registry's id of `schemas/delta.avsc`.
    """
    headers = {entity: b"\0" + id_.to_bytes(4, "big") for entity, id_ in ids.items()}

    def encode(deltas: pa.RecordBatch) -> pa.Array:
        pairs = zip(deltas.column("entity").to_pylist(), deltas.column("delta").to_pylist(), strict=True)
        return pa.array([headers[entity] + _avro(text.encode()) for entity, text in pairs], pa.binary())

    return encode


def deltas_of(changes: "DataFrame") -> "DataFrame":
    """Returns the deltas of a DataFrame of changes, as `derive` makes them."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - executors do not need it

    return changes.select(*_NEEDED).mapInArrow(_derived, from_arrow_schema(SCHEMA))


def messages_of(
    changes: "DataFrame", topics: Topics, values: Values, count: Callable[[Mapping[str, int]], None]
) -> "DataFrame":
    """Returns the messages for the deltas of a DataFrame of changes. Within a partition, rows keep their order.

    For each batch, `count` is called with the number of messages of each kind; tombstones are a kind of their own.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - executors do not need it

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for deltas in _derived(batches):
            batch = messages(deltas, topics, values)
            count(_counts(deltas) | {TOMBSTONE: batch.num_rows - deltas.num_rows})
            yield batch

    return changes.select(*_NEEDED).mapInArrow(encode, from_arrow_schema(MESSAGES))


def _derived(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (derive(batch) for batch in batches if batch.num_rows)


def _counts(deltas: pa.RecordBatch) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in deltas.column("kind").value_counts().to_pylist()}


def _patches(rows: pa.RecordBatch) -> pa.StringArray:
    """Returns the patches of the rows.

    The patches of most updates are made all at once: for this, both states of an update must be complete, have the same
    columns, and have no nested values. All other patches are made one by one.
    """
    unavailable_columns = _lacking(rows)
    updates = pc.and_(pc.equal(rows.column("op"), Op.UPDATE.value), pc.is_valid(rows.column("original")))
    candidates = pc.and_(updates, pc.is_valid(rows.column("current"))).to_numpy(zero_copy_only=False)
    candidates[list(unavailable_columns)] = False
    original, current = (rows.column(name).filter(pa.array(candidates)) for name in ("original", "current"))
    batch_patches, indexes = patch_columns.changes(original, current)
    batch_rows = np.flatnonzero(candidates)[indexes]
    if len(batch_rows) == rows.num_rows:
        return batch_patches
    other_rows = np.delete(np.arange(rows.num_rows), batch_rows)
    other_patches = pa.array(
        _one_by_one(rows.take(pa.array(other_rows)), other_rows, unavailable_columns), pa.binary()
    ).cast(pa.utf8())
    return pa.concat_arrays([batch_patches, other_patches]).take(
        pa.array(np.argsort(np.concatenate([batch_rows, other_rows])))
    )


def _one_by_one(rows: pa.RecordBatch, numbers: Iterable[int], unavailable_columns: Lacking) -> list[bytes]:
    """Returns the patches of some rows of a batch.

    `numbers` are the indexes of these rows in the whole batch. `unavailable_columns` uses the same indexes.
    """
    current, original = (rows.column(name).cast(pa.binary()).to_pylist() for name in ("current", "original"))
    ops = rows.column("op").to_pylist()
    patches: list[bytes] = []
    try:
        for row_number, op, current_state, original_state in zip(numbers, ops, current, original, strict=True):
            unavailable, lacks_original = unavailable_columns.get(row_number, (_NO_COLUMNS, False))
            patches.append(
                patch_text(
                    op, current_state, original_state, unavailable=unavailable, unavailable_original=lacks_original
                )
            )
    except ChangelogError as error:
        entity, position = (rows.column(name)[len(patches)].as_py() for name in ("entity", "position"))
        message = f"entity {entity}: {error.message}"
        raise ChangelogError(error.kind, message, hint=error.hint, position=Position.parse(position)) from error
    return patches


def _lacking(rows: pa.RecordBatch) -> Lacking:
    """Returns the rows that have unavailable columns."""
    provenance = rows.column("provenance")
    content = provenance.buffers()[2]
    # One search in all bytes is much faster than a search in each row.
    if content is None or _UNAVAILABLE.encode() not in content.to_pybytes():
        return {}
    unavailable_columns = {}
    for row_number in pc.indices_nonzero(pc.match_substring(provenance, _UNAVAILABLE)).to_pylist():
        source = json_codec.decode_provenance(provenance[row_number].as_py()).source
        names = frozenset((*source.unavailable, *source.unavailable_original))
        unavailable_columns[row_number] = names, bool(source.unavailable_original)
    return unavailable_columns


def _kinds(rows: pa.RecordBatch) -> pa.Array:
    op = rows.column("op")
    unknown = pc.and_(pc.equal(op, Op.UPDATE.value), pc.is_null(rows.column("original")))
    return pc.if_else(pc.or_(pc.equal(op, Op.READ.value), unknown), RESET, op)


def _headers(deltas: pa.RecordBatch) -> pa.Array:
    """Returns the headers of the messages. With them, as with the headers in the changelog, readers can route messages
    and detect repeats without decoding values.
    """
    rows, count = deltas.num_rows, len(_HEADERS)
    moves = _moves(deltas.column("moved"))
    moved_rows = np.array([row for row, _, _ in moves], dtype=np.int64)
    names = pa.array([*np.repeat([*_HEADERS], rows), *(name for _, name, _ in moves)], pa.utf8())
    values = pa.concat_arrays(
        [
            *(deltas.column(name).cast(pa.binary()) for name in _HEADERS.values()),
            pa.array([place for _, _, place in moves], pa.binary()),
        ]
    )
    order = np.arange(rows * count).reshape(count, rows).T.ravel()
    order = pa.array(np.insert(order, (moved_rows + 1) * count, rows * count + np.arange(len(moves))))
    ends = np.cumsum(count + np.bincount(moved_rows, minlength=rows))
    pairs = pa.StructArray.from_arrays(
        [names.take(order), values.take(order)], fields=list(MESSAGES.field("headers").type.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), pairs)


def _moves(moved: pa.Array) -> list[tuple[int, str, bytes]]:
    """Returns the places (key and partition) to which or from which rows moved. For each place, there are the number of
    the row, the name of the header, and the place as JSON.
    """
    return [
        (row, name, bytes(place))
        for row in pc.indices_nonzero(pc.is_valid(moved)).to_pylist()
        for name, place in _places.decode(moved[row].as_py()).items()
    ]


def _joined(*parts: str | pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _avro(delta: bytes) -> bytes:
    decoded = delta_codec.decode(delta)
    return delta_codec.avro(decoded.provenance, decoded.patch)
