"""Makes the records of one decoded row. A record is an envelope with its key and partition: one message.

This is the plain path, which defines what a record is. A faster path (`json_columns`, `render_rows`) encodes many rows
at once; tests compare its records with those of the plain path. The faster path leaves unusual rows to the plain path,
for example rows whose key or partition changes, rows with values that the database's log did not send, and rows at
which a policy (a setting of the entity) may stop the service.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from msgspec import Raw

from changelog.connectors.capture.rows.binding import Binding, Field
from changelog.connectors.capture.rows.codec import Codec, Shape, canonical, string
from changelog.connectors.capture.rows.row_change import UNCHANGED, Delete, Insert, Update, Value
from changelog.envelope.checkpoint import NO_DECISIONS, Decisions
from changelog.envelope.entity import DEAD, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import key_text, partition
from changelog.envelope.model import MISSING, Envelope, Missing, Op, Place, Provenance, Record, Source, Stamp
from changelog.envelope.position import Position

JSON_BYTES_MAX = 7 << 28
"""The longest `current` or `original`, in bytes.

An Arrow column and a Parquet page hold less than 2 GiB; this limit leaves room for further rows in the same column.
"""

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


class Transaction(NamedTuple):
    """A committed transaction. It is a named tuple, which is cheap to make: a log of small transactions needs one for
    each row.

    `xid` is a 64-bit id of the transaction; the source's snapshots use the same id. `name` is the transaction's id in
    messages, as the database prints it. `epoch` and `commit` are the first two parts of the positions of its changes.
    `committed_at` is in microseconds since 1970, UTC.
    """

    xid: int
    name: str
    epoch: int
    commit: int
    committed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The place of a row, or of an application's message, in the database's log, and the stamp in force there.

    `ordinal` is the number of rows and messages before this one in the transaction. `stamp` says who made the change;
    it is None if the application did not say.
    """

    transaction: Transaction
    ordinal: int
    stamp: Stamp | None

    def position(self, half: int = 0) -> Position:
        """Returns the position of the row's record; with `half` 1, that of the second record of a row that moved."""
        return Position(self.transaction.epoch, self.transaction.commit, 2 * self.ordinal + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What every message says about its source, and an operator's decisions on rows that stopped the service."""

    connector: str
    name: str
    database: str
    decisions: Decisions = NO_DECISIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One side of a change, that is, the row before it or the row after it: its JSON object, the columns that the log
    left out, and those with the value JSON null.
    """

    json: Raw
    unavailable: tuple[str, ...]
    json_null: tuple[str, ...]


Tuple = Sequence[Value]


def records(origin: Origin, binding: Binding, row: Insert | Update | Delete, change: Change) -> list[Record]:
    """Returns the records of one row: usually a single record.

    There are two records if the row moved to another key or partition, and none if a policy or an operator's decision
    leaves the row out. Raises ChangelogError: STOP if a policy refuses the row and there is no decision on it,
    MALFORMED if the row does not fit the columns of its table, LIMIT if the row is too large.
    """
    _check_width(binding, row)
    try:
        published = _published(origin, binding, row, change)
    except _NoPlaceError as missing:
        unplaced_records = [_unplaced(origin, binding, row, change)]
        return _decided(origin, change.position(), unplaced_records, missing.message, str(missing.hint))
    if binding.entity.immutable and not isinstance(row, Insert):
        return _immutable(origin, binding, published, change)
    if change.stamp is None and binding.entity.missing_stamp == "stop":
        return _unstamped(origin, binding, published, change)
    return published


def read(origin: Origin, binding: Binding, values: Tuple, change: Change) -> Record:
    """Returns the record of a row that was read from the table, not from the log."""
    return Record(
        entity=binding.entity.name,
        place=place(binding, values),
        envelope=_envelope(origin, binding, Op.READ, change, change.position(), _side(binding, values, None), MISSING),
    )


def joined(origin: Origin, binding: Binding, deleted: Delete, inserted: Insert, change: Change) -> list[Record]:
    """Returns the records of a row that moved to another partition of its table and kept its key.

    The log has a delete and an insert for such a row; the records are those of one update. `change` is the place of the
    insert. No position uses the ordinal of the delete.
    """
    row = Update(relid=inserted.relid, old_kind=deleted.old_kind, old=deleted.old, new=inserted.new)
    return records(origin, binding, row, change)


def same_key(binding: Binding, deleted: Delete, inserted: Insert) -> bool:
    """Returns whether the two rows have the same entity key and the same partition key."""
    _check_width(binding, deleted)
    _check_width(binding, inserted)
    return all(deleted.old[f.index] == inserted.new[f.index] for f in (*binding.key, *binding.partition))


def truncates(origin: Origin, binding: Binding, change: Change) -> list[Record]:
    """Returns the records of a truncate: one for each partition of the entity.

    If the entity's policy is to stop, an operator decides: to publish the truncate, to skip it, or to set only one of
    its records aside. Raises ChangelogError (STOP) if there is no decision yet.
    """
    position = change.position()
    envelope = Envelope(
        provenance=provenance(origin, binding, Op.TRUNCATE, change, position), current=None, original=None
    )
    messages = [
        Record(entity=binding.entity.name, place=Place(key=TRUNCATE_KEY, partition=number), envelope=envelope)
        for number in range(binding.entity.partitions)
    ]
    if binding.entity.on_truncate == "publish" or origin.decisions.at(position) == "default":
        return messages
    what = f"the table {binding.table} was truncated"
    choices = "default|skip|dead-letter"
    return _decided(origin, position, messages[:1], what, 'or set on_truncate = "publish"', choices=choices)


def _check_width(binding: Binding, row: Insert | Update | Delete) -> None:
    sides = (None if isinstance(row, Insert) else row.old, None if isinstance(row, Delete) else row.new)
    for side in sides:
        if side is not None and len(side) != binding.width:
            what = f"a row of the table {binding.table} has {len(side)} columns, but its relation has {binding.width}"
            raise ChangelogError(Kind.MALFORMED, what)


class _NoPlaceError(ChangelogError):
    """The key or the partition of a row is unknown.

    The hint begins with "and" or "or", because `_decided` puts it after a command.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(Kind.PRECONDITION, message, hint=hint)


def _unknown(binding: Binding, column: str) -> _NoPlaceError:
    """Returns the error for a key or partition column whose value is not in the log.

    Either the value is null, or the table's replica identity leaves the column out of old rows.
    """
    what = f"the log holds no value for the key or partition column {column} of the table {binding.table}"
    if column in binding.unlogged:
        rebuild = f"once the service runs, `changelog rebuild {binding.entity.name}`"
        return _NoPlaceError(what, f"and {binding.whole_rows}; {rebuild}")
    return _NoPlaceError(what, "and make it NOT NULL")


def _published(origin: Origin, binding: Binding, row: Insert | Update | Delete, change: Change) -> list[Record]:
    match row:
        case Insert():
            return [_create(origin, binding, row.new, change)]
        case Update():
            return _update(origin, binding, row, change)
        case Delete():
            return [_delete(origin, binding, row, change)]


def _create(origin: Origin, binding: Binding, new: Tuple, change: Change) -> Record:
    side = _side(binding, new, None)
    return Record(
        entity=binding.entity.name,
        place=place(binding, new),
        envelope=_envelope(origin, binding, Op.CREATE, change, change.position(), side, MISSING),
    )


def _update(origin: Origin, binding: Binding, row: Update, change: Change) -> list[Record]:
    entity = binding.entity.name
    if row.old is None and binding.unlogged:
        raise _unknown(binding, binding.unlogged[0])  # the row may have had another key before the update
    new_place = place(binding, row.new, row.old)
    old_place = new_place if row.old is None else place(binding, row.old, row.new)
    whole = row.old is not None and is_whole(binding, row.old_kind, row.old)
    current = _side(binding, row.new, row.old if whole else None)
    original = None if row.old is None else _old_side(binding, row.old, whole=whole)
    if old_place == new_place:
        whole_original: _Side | Missing = original if original is not None and whole else MISSING
        envelope = _envelope(origin, binding, Op.UPDATE, change, change.position(), current, whole_original)
        return [Record(entity=entity, place=new_place, envelope=envelope)]
    delete = _envelope(origin, binding, Op.DELETE, change, change.position(), None, original or MISSING)
    create = _envelope(origin, binding, Op.CREATE, change, change.position(1), current, MISSING)
    return [
        Record(entity=entity, place=old_place, envelope=delete, moved_to=new_place),
        Record(entity=entity, place=new_place, envelope=create, moved_from=old_place),
    ]


def is_whole(binding: Binding, kind: str | None, old: Tuple) -> bool:
    """Returns whether an old tuple is *whole*, that is, has the values of all columns of the row.

    `kind` is O if the replica identity of the table is the whole row. In this case, a tuple without nulls is whole.

    A row of a partitioned table is logged with the replica identity of the partition that holds it, and with null in
    all columns outside this identity. The tuple does not name its partition. So a tuple with nulls is whole only if the
    row cannot be in any partition that logs less than the whole row. The row cannot be in such a partition if its tuple
    has a value in a column that the partition does not log.
    """
    if kind != "O" or None not in old:
        return kind == "O"
    return all(
        any(value is not None for place, value in enumerate(old) if place not in logged) for logged in binding.leaves
    )


def _delete(origin: Origin, binding: Binding, row: Delete, change: Change) -> Record:
    original = _old_side(binding, row.old, whole=is_whole(binding, row.old_kind, row.old))
    return Record(
        entity=binding.entity.name,
        place=place(binding, row.old),
        envelope=_envelope(origin, binding, Op.DELETE, change, change.position(), None, original),
    )


def _unplaced(origin: Origin, binding: Binding, row: Insert | Update | Delete, change: Change) -> Record:
    """Returns a record of a row whose key or partition is unknown. It has the values that the log has of the row.

    An operator may set this record aside (`dead-letter`). Its key is empty.
    """
    op = Op.CREATE if isinstance(row, Insert) else Op.UPDATE if isinstance(row, Update) else Op.DELETE
    current = None if isinstance(row, Delete) else _side(binding, row.new, None)
    original: _Side | Missing = MISSING
    if not isinstance(row, Insert) and row.old is not None:
        original = _old_side(binding, row.old, whole=is_whole(binding, row.old_kind, row.old))
    return Record(
        entity=binding.entity.name,
        place=Place(key="", partition=0),
        envelope=_envelope(origin, binding, op, change, change.position(), current, original),
    )


def place(binding: Binding, values: Tuple, other: Tuple | None = None) -> Place:
    """Returns the key and the partition of a row.

    `other` is the other side of an update; a value that did not change and was not sent is taken from there.
    """
    if binding.lost is not None:
        change = f"or name the new key in [entities.{binding.entity.name}] and run `changelog run --accept-config`"
        raise _NoPlaceError(binding.lost, change)
    key = key_text(_texts(binding, binding.key, values, other))
    partition_key = key if binding.placed_by_key else key_text(_texts(binding, binding.partition, values, other))
    return Place(key=key, partition=partition(partition_key.encode(), binding.entity.partitions))


def _texts(binding: Binding, fields: Sequence[Field], values: Tuple, other: Tuple | None) -> list[str]:
    texts = []
    for field in fields:
        value = values[field.index]
        if value is UNCHANGED and other is not None:
            value = other[field.index]
        if value is None or value is UNCHANGED:
            raise _unknown(binding, field.name)
        texts.append(canonical(bytes(value), field.codec))
    return texts


def _side(binding: Binding, values: Tuple, full_old: Tuple | None) -> _Side:
    parts: list[bytes] = []
    unavailable, json_null = [], []
    for field in binding.fields:
        value = values[field.index]
        if value is UNCHANGED and full_old is not None:
            value = full_old[field.index]
        if value is UNCHANGED:
            unavailable.append(field.name)
            continue
        if value is not None and field.json and bytes(value).strip() == b"null":
            json_null.append(field.name)
        parts += [b"," if parts else b"{", field.label, b"null" if value is None else _token(field.codec, value)]
    json = b"".join([*parts, b"}"]) if parts else b"{}"  # joined only once, because values may be large
    if len(json) > JSON_BYTES_MAX:
        raise ChangelogError(
            Kind.LIMIT,
            f"a row of the table {binding.table} makes {len(json)} bytes of JSON, but a message holds {JSON_BYTES_MAX}",
            hint="leave its largest column out with exclude_columns, or mask it, and start with --accept-config",
        )
    return _Side(json=Raw(json), unavailable=tuple(unavailable), json_null=tuple(json_null))


def _token(codec: Codec, value: bytes | memoryview) -> bytes:
    if isinstance(value, memoryview):
        return string(value) if codec.shape is Shape.TEXT else codec.to_json(bytes(value))
    return codec.to_json(value)


def _old_side(binding: Binding, old: Tuple, *, whole: bool) -> _Side:
    if whole:
        return _side(binding, old, None)
    # The row is not whole, so a null may mean that the log did not send the value. Columns of an identity are NOT NULL.
    values = [
        value if value is not None and (binding.full or place in binding.identity) else UNCHANGED
        for place, value in enumerate(old)
    ]
    return _side(binding, values, None)


def _envelope(
    origin: Origin,
    binding: Binding,
    op: Op,
    change: Change,
    position: Position,
    current: _Side | None,
    original: _Side | Missing,
) -> Envelope:
    made_by = provenance(origin, binding, op, change, position)
    source = made_by.source
    if current is not None:
        source = replace(source, unavailable=current.unavailable, json_null=current.json_null)
    if isinstance(original, _Side):
        source = replace(source, unavailable_original=original.unavailable, json_null_original=original.json_null)
    return Envelope(
        provenance=replace(made_by, source=source),
        current=None if current is None else current.json,
        original=original.json if isinstance(original, _Side) else MISSING,
    )


def provenance(origin: Origin, binding: Binding, op: Op, change: Change, position: Position) -> Provenance:
    """Returns the stamp of the change (the entity's default if there is none), and where the change was read."""
    return Provenance(
        stamp=change.stamp or binding.entity.default_stamp,
        source=Source(
            connector=origin.connector,
            name=origin.name,
            database=origin.database,
            table=binding.table,
            op=op,
            position=position,
            transaction=change.transaction.name,
            committed_at=_UNIX + timedelta(microseconds=change.transaction.committed_at),
            mask=binding.mask,
        ),
    )


def _immutable(origin: Origin, binding: Binding, published: list[Record], change: Change) -> list[Record]:
    if binding.entity.on_change_of_immutable == "ignore":
        return []
    what = f"a row of the table {binding.table} was changed, and the entity {binding.entity.name} is immutable"
    return _decided(origin, change.position(), published, what, 'or set on_change_of_immutable = "ignore"')


def _unstamped(origin: Origin, binding: Binding, published: list[Record], change: Change) -> list[Record]:
    if origin.decisions.at(change.position()) == "default":
        return published
    what = f"a change of the table {binding.table} has no provenance stamp"
    return _decided(origin, change.position(), published, what, "", choices="default|skip|dead-letter")


def _decided(
    origin: Origin,
    position: Position,
    published: list[Record],
    what: str,
    alternative: str,
    *,
    choices: str = "skip|dead-letter",
) -> list[Record]:
    """Applies an operator's decision on a row that stopped the service.

    If the decision is to skip the row, returns no records. If it is to set the row aside, returns the records
    `published` under the entity `dead`. Without a decision that is one of `choices`, raises ChangelogError (STOP) with
    the message `what`. The error's hint names the command that lets the service continue, followed by `alternative`.
    """
    decision = origin.decisions.at(position)
    if decision is None or decision not in choices.split("|"):
        raise ChangelogError(
            Kind.STOP,
            what,
            hint=f"`changelog accept {position} --as {choices}` {alternative}".rstrip(),
            position=position,
            choices=choices.split("|"),
        )
    if decision == "skip":
        return []
    return [replace(record, entity=DEAD, place=Place(key=record.entity, partition=0)) for record in published]
