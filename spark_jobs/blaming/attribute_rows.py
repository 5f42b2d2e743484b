"""Finds the change that set each attribute of each row. Spark's executors run this on batches of changes.

The changes of a row must be adjacent, and in the order of their positions. They are read one by one, and are not kept
in memory, so a row may have any number of changes. `changelog.envelope.blame` says which change counts as setting an
attribute.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from msgspec import Raw

from changelog.envelope.blame import Attribute, BlameFold, Writer
from changelog.envelope.columnar.batch import SCHEMA, records
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Missing, Record, Stamp, position_of
from changelog.envelope.stamp import kind_of
from changelog.spark_jobs.blaming.stamp_kinds import UNKNOWN, DefaultStamps

ATTRIBUTES: Final = pa.schema(
    [
        pa.field("entity", pa.utf8()),
        pa.field("key", pa.utf8()),
        pa.field("path", pa.utf8()),
        pa.field("value", pa.utf8()),
        pa.field("before", pa.utf8()),
        pa.field("existed_before", pa.bool_()),
        pa.field("stamp", pa.utf8()),
        pa.field("service_name", pa.utf8()),
        pa.field("api_version", pa.utf8()),
        pa.field("identifier", pa.utf8()),
        pa.field("context", pa.utf8()),
        pa.field("op", pa.utf8()),
        pa.field("position", pa.utf8()),
        pa.field("transaction", pa.utf8()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""One row for each attribute of each row that exists.

`key` is the row's key after its last change. `path` is a JSON pointer (RFC 6901) into the row's state. `value` is the
attribute's value, and `before` is the value that the attribute had before, both as JSON text. `value` is null if the
database's log did not send it. `before` is null if the attribute did not exist before (then `existed_before` is false),
or if its value before is unknown (then `existed_before` is null). `stamp` is a `StampKind`, or `UNKNOWN`. If it is
`UNKNOWN`, the columns from `service_name` to `context` are null. The columns from `op` on are those of the change that
set the value (`changelog.envelope.columnar.batch.SCHEMA`).
"""

ORIGIN: Final = ("first_key", "first_position")
"""The columns of a row's origin (`changelog.spark_jobs.blaming.origins`)."""

ROWS_MAX: Final = 4096
"""A batch is yielded when it has at least this many attributes. All attributes of one row are in the same batch."""

Row = tuple[str, str, str]
"""Identifies a row: its entity, and the two parts of its origin."""

Values = tuple[Any, ...]


def attribute_rows(batches: Iterable[pa.RecordBatch], *, defaults: DefaultStamps) -> Iterator[pa.RecordBatch]:
    """Turns changes into batches of `ATTRIBUTES`.

    The changes have the columns of `changelog.envelope.columnar.batch.SCHEMA`, and then the columns `ORIGIN`. They are
    sorted by entity, origin and position; repeated changes are ignored. If a truncate of the entity followed a change,
    the change has no provenance: it only says that a row was there, and is gone.

    Raises ChangelogError (MALFORMED) if a change cannot be read; the error names the entity and the position.
    """
    rows: list[Values] = []
    for (entity, _, since), changes in groupby(_changes(batches), key=itemgetter(0)):
        # If the origin has a position, another row had the key before, and moved away from it.
        rows += _of_row((record for _, record in changes), defaults.of(entity), begins_empty=bool(since))
        if len(rows) >= ROWS_MAX:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _changes(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Row, Record | None]]:
    """Yields each change with the row to which it belongs. If a truncate followed the change, yields None in place of
    the change.
    """
    for batch in batches:
        has_provenance = batch.column("provenance").is_valid()
        changes = records(batch.filter(has_provenance).select(SCHEMA.names))
        owners = zip(*(batch.column(name).to_pylist() for name in ("entity", *ORIGIN)), strict=True)
        for owner, position, is_read in zip(owners, batch.column("position"), has_provenance.to_pylist(), strict=True):
            try:
                yield owner, next(changes) if is_read else None
            except ChangelogError as error:
                raise _located(error, owner[0], position.as_py()) from error


def _of_row(changes: Iterable[Record | None], default: Stamp, *, begins_empty: bool) -> Iterator[Values]:
    """Yields the attributes of one row, as values of `ATTRIBUTES`. Yields none if its last change removed the row."""
    fold: BlameFold | None = None
    last: Record | None = None
    for record in changes:
        if record is None:
            begins_empty = True
            continue
        if last is not None and position_of(record) == position_of(last):
            continue
        fold = fold or BlameFold(begins_empty=begins_empty)
        try:
            fold.add(record)
        except ChangelogError as error:
            raise _located(error, record.entity, str(position_of(record))) from error
        last = record
    if fold is not None and last is not None:
        yield from _attributes(last, fold.result().attributes, default)


def _attributes(last: Record, attributes: Iterable[Attribute], default: Stamp) -> Iterator[Values]:
    """Yields the values of `ATTRIBUTES` for each attribute of a row. `last` is the row's last change."""
    values_of_writers: dict[int, Values] = {}  # by the writer's id, because many attributes share a writer
    for attribute in attributes:
        writer = attribute.writer
        of_writer = values_of_writers.get(id(writer))
        if of_writer is None:
            of_writer = values_of_writers[id(writer)] = _values(writer, default)
        yield (
            last.entity,
            last.place.key,
            attribute.pointer,
            _text(attribute.value),
            _text(attribute.before),
            attribute.existed,
            *of_writer,
        )


def _values(writer: Writer, default: Stamp) -> Values:
    """Returns the values of the last columns of `ATTRIBUTES`, from `stamp` on."""
    stamp = writer.stamp
    return (
        UNKNOWN if stamp is None else kind_of(stamp, default).value,
        *((None,) * 4 if stamp is None else (stamp.service_name, stamp.api_version, stamp.identifier, stamp.context)),
        writer.op.value,
        str(writer.position),
        writer.transaction,
        writer.committed_at,
    )


def _text(value: Raw | Missing | None) -> str | None:
    return None if isinstance(value, Missing | None) else bytes(value).decode()


def _located(error: ChangelogError, entity: str, position: str) -> ChangelogError:
    return ChangelogError(error.kind, f"entity {entity}, position {position}: {error.message}", hint=error.hint)


def _batch(rows: Sequence[Values]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, ATTRIBUTES, strict=True)], schema=ATTRIBUTES
    )
