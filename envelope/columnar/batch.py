"""Converts messages to batches of columns, and back. Sources make such batches, sinks store them, and any Parquet
reader can query them.

A *state* is the JSON of a row, in `current` or `original`. The *shape* of an entity is the list of its columns and
their types. A *relation* is a table; its database identifies it by a number.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from changelog.envelope.codec import json_codec
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Envelope, Missing, Place, Provenance, Record
from changelog.schemas import types
from changelog.schemas.types import Struct

SCHEMA = pa.schema(
    [
        pa.field("entity", pa.utf8(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("key", pa.utf8(), nullable=False),
        pa.field("op", pa.utf8(), nullable=False),
        pa.field("position", pa.utf8(), nullable=False),
        pa.field("transaction", pa.utf8(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("api_version", pa.utf8(), nullable=False),
        pa.field("service_name", pa.utf8(), nullable=False),
        pa.field("identifier", pa.utf8(), nullable=False),
        pa.field("provenance", pa.utf8(), nullable=False),
        pa.field("current", pa.utf8()),
        pa.field("original", pa.utf8()),
        pa.field("moved", pa.utf8()),
        pa.field("context", pa.utf8()),
    ]
)
"""One row for each record. `provenance`, `current`, `original`, `moved` and `context` are JSON text.

`current` is null for a delete and a truncate. `original` is null if the envelope's `original` is MISSING, or if it is
None, as in a truncate. `moved` is `{"movedTo": {"key", "partition"}}`, or the same with `movedFrom`, or null if the
row did not move. `context` is the stamp's context, which is also a part of `provenance`.
"""

_WITHOUT_CONTEXT = SCHEMA.remove(SCHEMA.get_field_index("context"))

_STATES = frozenset({"current", "original"})
_SHAPES = b"columns"
_RELATION = b"relation"


class _Place(msgspec.Struct):
    key: str
    partition: int


class _Moved(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    moved_to: _Place | None = None
    moved_from: _Place | None = None


_moved_decoder = msgspec.json.Decoder(_Moved)


def from_records(records: Sequence[Record]) -> pa.RecordBatch:
    """Converts records to one batch of `SCHEMA`, in the same order."""
    rows = [_row(record) for record in records]
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [
            _states(column) if field.name in _STATES else pa.array(column, field.type)
            for column, field in zip(columns, SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yields the records of a batch of `SCHEMA`, in the same order: the inverse of `from_records`.

    Raises ChangelogError of kind *malformed* if a provenance or a move cannot be read.
    """
    names = ("entity", "key", "partition", "op", "provenance", "current", "original", "moved")
    columns = (batch.column(name).to_pylist() for name in names)
    for entity, key, partition, op, provenance, current, original, moved in zip(*columns, strict=True):
        moves = _moves(moved)
        yield Record(
            entity=entity,
            place=Place(key=key, partition=partition),
            envelope=Envelope(
                provenance=json_codec.decode_provenance(provenance),
                current=None if current is None else Raw(current),
                original=json_codec.original_of(op, original),
            ),
            moved_to=_place(moves.moved_to),
            moved_from=_place(moves.moved_from),
        )


def is_stored(schema: pa.Schema) -> bool:
    """Returns whether a stored batch can have this schema: `SCHEMA`, or `SCHEMA` without `context`. Older versions of
    the program stored batches without `context`.
    """
    return bool(schema.equals(SCHEMA) or schema.equals(_WITHOUT_CONTEXT))


def of_stored(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Converts stored rows, whose schema `is_stored` accepts, to a batch of `SCHEMA`.

    If an older version stored the rows, their `context` is null.
    """
    if "context" in rows.schema.names:
        return rows
    return rows.append_column(SCHEMA.field("context"), pa.nulls(len(rows), pa.utf8()))


def moved_json(*, to: Place | None = None, from_: Place | None = None) -> str | None:
    """Returns the value of the column `moved` for a record that moved to or from a place; None for any other record."""
    if to is None and from_ is None:
        return None
    return msgspec.json.encode(_Moved(moved_to=_wire_place(to), moved_from=_wire_place(from_))).decode()


def moved_from(text: str | None) -> Place | None:
    """Returns the place from which a row moved to this record's key; None if it did not come from elsewhere.

    `text` is the record's value in the column `moved`. Raises ChangelogError of kind *malformed* if the text cannot be
    read.
    """
    return _place(_moves(text).moved_from)


def with_shapes(batch: pa.RecordBatch, shapes: Mapping[str, Struct], *, relation: int | None = None) -> pa.RecordBatch:
    """Adds the shapes of entities to a batch. A shape lists the columns that `current` and `original` hold, in order.

    Shapes become metadata of the batch's Arrow schema: they go wherever the batch goes, but are not stored in files.
    If all rows come from the same relation, its number can be added as `relation`; it becomes metadata, too.
    """
    shaped = with_encoded_shapes(batch, encode_shapes(shapes))
    if relation is None:
        return shaped
    return shaped.replace_schema_metadata({**shaped.schema.metadata, _RELATION: b"%d" % relation})


def relation(batch: pa.RecordBatch) -> int | None:
    """Returns the number of the relation from which all rows come; None if the batch does not have this number."""
    metadata = batch.schema.metadata
    return int(metadata[_RELATION]) if metadata and _RELATION in metadata else None


def with_encoded_shapes(batch: pa.RecordBatch, encoded: bytes) -> pa.RecordBatch:
    """Adds shapes to a batch. `encoded` is a result of `encode_shapes`; many batches can share it."""
    return batch.replace_schema_metadata({_SHAPES: encoded})


def encode_shapes(shapes: Mapping[str, Struct]) -> bytes:
    """Encodes shapes as JSON: for each entity a list of `[name, type]`, with types as in
    `changelog.schemas.types.to_json`.
    """
    return join_shapes(encode_shape(entity, shape) for entity, shape in shapes.items())


def encode_shape(entity: str, shape: Struct) -> bytes:
    """Encodes one entity's shape. `join_shapes` joins such shapes."""
    columns = [[name, types.to_json(type_)] for name, type_ in shape.fields]
    return msgspec.json.encode(entity) + b":" + msgspec.json.encode(columns)


def join_shapes(encoded: Iterable[bytes]) -> bytes:
    """Joins results of `encode_shape`, one for each entity. Returns what `encode_shapes` returns for these entities."""
    return b"{" + b",".join(encoded) + b"}"


def shapes(batch: pa.RecordBatch) -> Mapping[str, Struct]:
    """Returns the shapes that were added to the batch. These can include shapes of entities that have no rows in it.

    The result is empty for a batch that was read from storage. Records that were set aside
    (`changelog.envelope.entity.DEAD`) have no shape.
    """
    metadata = batch.schema.metadata
    return _decode_shapes(metadata[_SHAPES]) if metadata and _SHAPES in metadata else _NO_SHAPES


_NO_SHAPES: Mapping[str, Struct] = MappingProxyType({})


_shapes_decoder = msgspec.json.Decoder(dict[str, Raw])


@lru_cache(maxsize=64)
def _decode_shapes(encoded: bytes) -> Mapping[str, Struct]:
    decoded = _shapes_decoder.decode(encoded)
    return MappingProxyType({entity: _decode_shape(bytes(columns)) for entity, columns in decoded.items()})


@lru_cache(maxsize=2048)
def _decode_shape(encoded: bytes) -> Struct:
    """Decodes one entity's shape. The cache holds single shapes, because batches combine the same few shapes in many
    different ways.
    """
    shape = types.from_json({"struct": msgspec.json.decode(encoded)})
    assert isinstance(shape, Struct)
    return shape


def _row(record: Record) -> tuple[object, ...]:
    envelope = record.envelope
    return (
        record.entity,
        record.place.partition,
        record.place.key,
        *provenance_values(envelope.provenance),
        _text(envelope.current),
        _text(envelope.original),
        moved_json(to=record.moved_to, from_=record.moved_from),
        envelope.provenance.stamp.context,
    )


def provenance_values(provenance: Provenance) -> tuple[object, ...]:
    """Returns the values of the columns from `op` to `provenance`."""
    stamp, source = provenance.stamp, provenance.source
    return (
        source.op.value,
        str(source.position),
        source.transaction,
        source.committed_at,
        stamp.api_version,
        stamp.service_name,
        stamp.identifier,
        json_codec.provenance_json(provenance).decode(),
    )


def _text(state: Raw | Missing | None) -> memoryview | None:
    return None if isinstance(state, Missing | None) else memoryview(state)


def _states(column: Sequence[memoryview | None]) -> pa.StringArray:
    """Makes an Arrow array of strings from states, and copies each state at most once.

    `pa.array` would copy a state more often, and would never release the memoryviews.
    """
    lengths = [0 if text is None else len(text) for text in column]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    present = pa.array([text is not None for text in column], pa.bool_())
    texts = [text for text in column if text is not None]
    data = texts[0] if len(texts) == 1 else b"".join(texts)  # A single text is not copied, because it may be large.
    buffers = [present.buffers()[1], pa.py_buffer(offsets), pa.py_buffer(data)]
    states = pa.Array.from_buffers(pa.utf8(), len(column), buffers)
    states.validate(full=True)
    return states


def _moves(text: str | None) -> _Moved:
    if text is None:
        return _Moved()
    try:
        return _moved_decoder.decode(text)
    except msgspec.DecodeError as error:
        raise ChangelogError(Kind.MALFORMED, "the column `moved` is not a valid move") from error


def _place(wire: _Place | None) -> Place | None:
    return None if wire is None else Place(key=wire.key, partition=wire.partition)


def _wire_place(place: Place | None) -> _Place | None:
    return None if place is None else _Place(key=place.key, partition=place.partition)
