"""Turns Debezium's events into rows of the changelog, and divides the rows into transactions. The module is pure.

Debezium's events have no position that orders all of them. The positions of the database's log begin anew after a
failover, and they do not order events of snapshots or repeated events. So the source counts its way through the input
in steps. Most events take one step (see `Placed.steps`). A *place* is a point between two events. The first place is 1,
and each step adds 1. The `commit` in the positions of a transaction is the place before its first event, and its
`through` is the place after its last event:

    place      7     8     9    10    11    12
    event      │ t 5 │ t 5 │ t 5 │ other │ t 6 │
    commit     └──────── 7 ──────┘         └─ 11

A transaction ends when an event of another transaction follows, or when no further event has arrived. If more of its
events arrive later, they are published as another transaction with the same id, which keeps the last stamp.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from changelog.connectors.capture.assembly.assembled import Assembled, ColumnChanges, EncodedRows
from changelog.connectors.capture.assembly.assembly import Assembly, AssemblyRun
from changelog.connectors.capture.assembly.open_transaction import OpenTransaction
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.row_records import Origin, Transaction
from changelog.connectors.capture.rows.spans import Spans
from changelog.connectors.sources.debezium.assembling.binder import Binder
from changelog.connectors.sources.debezium.assembling.events import OldRows, fitted
from changelog.connectors.sources.debezium.assembling.merging import Item, Unreadable, is_move
from changelog.connectors.sources.debezium.decode.encode import PublishedRow, RowEncoder
from changelog.connectors.sources.debezium.decode.events import Changed, Emitted, EventFacts, EventTable, RowsTruncated
from changelog.envelope.checkpoint import Decisions
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Stamp
from changelog.envelope.position import Position
from changelog.envelope.stamp import PREFIX as STAMP_PREFIX
from changelog.envelope.stamp import SESSION_PREFIX
from changelog.envelope.versions import TableColumns, Versions

SNAPSHOT_ROWS = 100_000
"""The maximum number of a snapshot's rows in one transaction. A snapshot can be divided into transactions anywhere."""

NO_TRANSACTION = "0"
"""The transaction id in messages if the connector names no transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnd:
    """A transaction that may have further events, as a checkpoint stores it. Its next row has the ordinal `ordinal`."""

    transaction: Transaction
    ordinal: int
    stamp: Stamp | None

    def to_json(self) -> dict[str, object]:
        """Returns the form that a checkpoint stores."""
        _, name, _, commit, committed_at = self.transaction
        stamp = _stamp_to_json(self.stamp)
        return {"name": name, "commit": commit, "committed_at": committed_at, "ordinal": self.ordinal, "stamp": stamp}

    @classmethod
    def from_json(cls, value: Mapping[str, object], epoch: int) -> "OpenEnd":
        """Returns the transaction from the result of `to_json`."""
        name, commit, committed_at, ordinal = (value[key] for key in ("name", "commit", "committed_at", "ordinal"))
        assert isinstance(name, str)
        assert isinstance(commit, int)
        assert isinstance(committed_at, int)
        assert isinstance(ordinal, int)
        stamp = _stamp_from_json(value["stamp"])
        transaction = Transaction(xid=commit, name=name, epoch=epoch, commit=commit, committed_at=committed_at)
        return cls(transaction=transaction, ordinal=ordinal, stamp=stamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The transaction that ended last, and its last stamp. The stamp also applies to events of the transaction that
    arrive later.
    """

    name: str
    stamp: Stamp | None

    def to_json(self) -> dict[str, object] | None:
        """Returns the form that a checkpoint stores; None if there is no stamp to keep."""
        return None if self.stamp is None else {"name": self.name, "stamp": _stamp_to_json(self.stamp)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Ended":
        """Returns the transaction from the result of `to_json`."""
        name = value["name"]
        assert isinstance(name, str)
        return cls(name=name, stamp=_stamp_from_json(value["stamp"]))


_STAMP = ("api_version", "service_name", "identifier", "context")


def _stamp_to_json(stamp: Stamp | None) -> object:
    return None if stamp is None else [getattr(stamp, name) for name in _STAMP]


def _stamp_from_json(value: object) -> Stamp | None:
    return None if not isinstance(value, Sequence) else Stamp(**dict(zip(_STAMP, value, strict=True)))


@dataclass(slots=True, kw_only=True)
class Fed:
    """The result of `Assembler.feed`. The first `consumed` items have been processed. `other_tables` counts, by table,
    the events of tables that belong to no entity.
    """

    assembled: Assembled
    consumed: int
    other_tables: Counter[str] = field(default_factory=Counter)


class Assembler:
    """Turns events into rows (`feed`), and keeps the state between two calls.

    `name` is the name of the changelog. `place` is where the assembler continues: inside the transaction that
    `open_end` describes, or else after the transaction that `ended` describes. `published` is the position of the last
    published row; `partial` says that this row is in the transaction of `open_end`. `versions` knows which columns the
    changelog has; without it, no changes of columns are announced.
    """

    def __init__(
        self,
        *,
        name: str,
        epoch: int,
        entities: Sequence[Entity],
        binder: Binder,
        old_rows: OldRows,
        decisions: Decisions,
        place: int,
        open_end: OpenEnd | None,
        ended: Ended | None = None,
        published: Position | None,
        partial: bool,
        versions: Versions | None,
    ) -> None:
        self._name, self._epoch, self._binder, self._decisions = name, epoch, binder, decisions
        self._entities = {entity.table: entity for entity in entities}
        self.old_rows, self.place = old_rows, place
        self._assembly = Assembly(
            entities=self._entities, published=published, partial=partial, listener=None, versions=versions
        )
        self._encoder = RowEncoder()
        self._tables: dict[str, EventTable] = {}
        self._bindings: dict[str, Binding] = {}
        self._origins: dict[tuple[str, str], Origin] = {}
        self._run_of: tuple[str, int] | None = None
        """The id and the commit time by which further events of the open transaction are recognised."""
        self._stopped_in: OpenEnd | None = None
        """After an error: the transaction with the error, if it was open before the call of `feed` that failed."""
        self.ended = ended
        """The last transaction that has ended; None before the first."""
        if open_end is not None:
            self._assembly.open = OpenTransaction(
                open_end.transaction,
                stamp=open_end.stamp,
                ordinal=open_end.ordinal,
                published=self._assembly.published(open_end.transaction),
            )
            self._run_of = open_end.transaction.name, open_end.transaction.committed_at

    @property
    def stop(self) -> ChangelogError | None:
        """The error that the source raises after it has returned everything from `feed`; None if there is no error."""
        return self._assembly.stop

    @property
    def open_end(self) -> OpenEnd | None:
        """The transaction that may have further events; None if there is none."""
        open_transaction = self._assembly.open
        if open_transaction is None:
            return self._stopped_in
        return OpenEnd(
            transaction=open_transaction.transaction,
            ordinal=open_transaction.ordinal,
            stamp=open_transaction.next_stamp,
        )

    @property
    def current(self) -> str:
        """The id of the transaction that may have further events; empty if there is none."""
        return "" if self._run_of is None else self._run_of[0]

    def feed(self, items: Sequence[Item], *, more: bool) -> Fed:
        """Turns the items into rows. The last transaction ends with these items, unless `more` says that further items
        have already arrived.

        If there is an error, it is in `stop`, and `Fed.consumed` does not include the transaction with the error.
        """
        block, before = _Block(self._assembly, self._encoder, place=self.place), self.open_end
        run = block.run
        try:
            for index, item in enumerate(items):
                block.index = index
                self._feed(block, item)
                block.place += item.placed.steps
            self._emit_pending(block)
            if not more:
                self._close(block)
            run.flush()
        except ChangelogError as error:
            position = run.fail(error)
            consumed, self.place = block.start_of(position.commit)
            self._stopped_in = None if block.begins(position.commit) else before
            self.ended = block.ended_before.get(position.commit, self.ended)
            assert block.begins(position.commit) or (
                before is not None and before.transaction.commit == position.commit
            )
        else:
            consumed, self.place = len(items), block.place
        return Fed(assembled=run.result(), consumed=consumed, other_tables=block.other_tables)

    def _feed(self, block: "_Block", item: Item) -> None:
        event = item.event
        if block.pending is not None and isinstance(event, Changed) and is_move(block.pending, event):
            self._take_move(block, block.pending, event)
            return
        if isinstance(event, Changed | RowsTruncated | Emitted | Unreadable):
            self._emit_pending(block)
        match event:
            case Changed(moves="to") if event.table.name in self._entities:
                self._enter(block, event.facts)
                block.pending = event
            case Changed() if event.table.name in self._entities:
                self._enter(block, event.facts)
                self._take(block, event)
            case RowsTruncated() if event.name in self._entities:
                self._enter(block, event.facts)
                self._truncate(block, event)
            case Changed(table=EventTable(name=name)) | RowsTruncated(name=name):
                block.other_tables[".".join(name)] += 1
            case Emitted(prefix=prefix) if prefix in (STAMP_PREFIX, SESSION_PREFIX):
                self._enter(block, event.facts)
                block.run.message(prefix, event.content)
            case Unreadable():
                self._refuse(block, item, event)

    # Transactions

    def _enter(self, block: "_Block", facts: EventFacts) -> None:
        """Ends the open transaction and begins another, unless the event belongs to the open transaction."""
        open_transaction = self._assembly.open
        run_of = facts.transaction, facts.committed_at
        if open_transaction is not None and self._run_of is not None:
            same = self._run_of[0] == run_of[0] if run_of[0] else self._run_of == run_of
            if same and not (facts.snapshot and open_transaction.ordinal >= SNAPSHOT_ROWS):
                return
        self._close(block)
        self._run_of = run_of
        self._begin(block, facts.transaction, facts.committed_at)

    def _begin(self, block: "_Block", name: str, committed_at: int) -> None:
        """Begins a transaction, or a further part of the transaction that ended last."""
        transaction = self._transaction(block, name, committed_at)
        block.ended_before[transaction.commit] = self.ended
        block.begin(transaction)
        open_transaction = self._assembly.open
        if open_transaction is not None and name and self.ended is not None and self.ended.name == name:
            open_transaction.stamp = self.ended.stamp

    def _transaction(self, block: "_Block", name: str, committed_at: int) -> Transaction:
        return Transaction(
            xid=block.place,
            name=name or NO_TRANSACTION,
            epoch=self._epoch,
            commit=block.place,
            committed_at=committed_at,
        )

    def _close(self, block: "_Block") -> None:
        open_transaction = self._assembly.open
        if open_transaction is not None:
            self.ended = Ended(name=open_transaction.transaction.name, stamp=open_transaction.next_stamp)
            block.run.commit(block.place)
        self._run_of = None

    def _refuse(self, block: "_Block", item: Item, unreadable: Unreadable) -> None:
        """Stops at a message that cannot be translated, unless an operator has decided to leave the message out."""
        error = unreadable.error
        self._close(block)
        position = Position(self._epoch, block.place, 0)
        if error.kind is Kind.MALFORMED and self._decisions.at(position) == "skip":
            return
        self._begin(block, "", 0)
        message = f"{item.placed.where}: {error.message}"
        if error.kind is not Kind.MALFORMED:
            raise ChangelogError(error.kind, message, hint=error.hint, position=position)
        hint = f"{error.hint}, or " if error.hint else ""
        raise ChangelogError(
            Kind.STOP,
            message,
            hint=f"{hint}`changelog accept {position} --as skip` leaves the message out",
            position=position,
            choices=("skip",),
        )

    # Rows

    def _take(self, block: "_Block", event: Changed) -> None:
        origin, old_rows = self._origin(event.facts), self.old_rows
        if event.op == "d":
            event = self._fitted(event)
        binding = self._bound(block, event.table)
        match event.op:
            case "c":
                block.take(PublishedRow(origin, binding, Op.CREATE, old_rows.insert(event)))
            case "r":
                block.take(PublishedRow(origin, binding, Op.READ, old_rows.insert(event)))
            case "u":
                block.take(PublishedRow(origin, binding, Op.UPDATE, old_rows.update(event)))
            case "d":
                block.take(PublishedRow(origin, binding, Op.DELETE, old_rows.delete(event)))

    def _take_move(self, block: "_Block", deleted: Changed, created: Changed) -> None:
        block.pending = None
        if deleted.table.number != created.table.number:
            self._take(block, deleted)
            self._take(block, created)
            return
        row = self.old_rows.move(deleted, created)
        binding = self._bound(block, created.table)
        block.take(PublishedRow(self._origin(created.facts), binding, Op.UPDATE, row))

    def _emit_pending(self, block: "_Block") -> None:
        """Publishes the pending delete, if there is one. It could have been the first half of a move (a delete and a
        create that together change a row's key), but the create did not follow.
        """
        deleted, block.pending = block.pending, None
        if deleted is not None:
            self._take(block, deleted)

    def _truncate(self, block: "_Block", event: RowsTruncated) -> None:
        entity = self._entities[event.name]
        table = self._tables.get(entity.name) or EventTable(name=event.name, number=-1, columns=(), key=())
        binding = self._binder.bind(entity, table)
        block.take(PublishedRow(self._origin(event.facts), binding, Op.TRUNCATE, None))

    def _fitted(self, event: Changed) -> Changed:
        """Returns a delete with the columns that the table had last, if the event has only the columns of the key.

        A delete with a column outside the key has all present columns of the table, so it is returned unchanged: a
        column that it lacks was dropped.
        """
        bound_table = self._tables.get(self._entities[event.table.name].name)
        if bound_table is None or len(event.table.columns) >= len(bound_table.columns):
            return event
        names = {column.name for column in bound_table.columns}
        own = {column.name for column in event.table.columns}
        if not names.issuperset(own) or not own.issubset(event.table.key):
            return event
        before = event.before and fitted(event.before, event.table, bound_table)
        key = event.key if bound_table.key == event.table.key else None
        if key is None:
            return event
        return msgspec.structs.replace(event, table=bound_table, before=None if before is None else before)

    def _bound(self, block: "_Block", table: EventTable) -> Binding:
        """Returns the binding of a table. If the table's columns have changed, announces this before the next row."""
        entity = self._entities[table.name]
        binding = self._binder.bind(entity, table)
        self._tables[entity.name] = table
        last = self._bindings.get(entity.name)
        if last is binding or (last is not None and last.shape == binding.shape):
            self._bindings[entity.name] = binding
            return binding
        block.run.flush()
        if last is not None:
            old, new = dict(last.shape.fields), dict(binding.shape.fields)
            changes = ColumnChanges(
                table=binding.table,
                position=block.run.here(),
                added=tuple(name for name in new if name not in old),
                dropped=tuple(name for name in old if name not in new),
                retyped=tuple(name for name in new if name in old and old[name] != new[name]),
            )
            block.run.alter(entity.table, changes)
        self._bindings[entity.name] = binding
        block.run.describe(entity, TableColumns(columns=binding.shape))
        return binding

    def _origin(self, facts: EventFacts) -> Origin:
        origin = self._origins.get((facts.connector, facts.database))
        if origin is None:
            origin = self._origins[facts.connector, facts.database] = Origin(
                connector=facts.connector, name=self._name, database=facts.database, decisions=self._decisions
            )
        return origin


class _Block:
    """The state of one call of `feed`. `index` is the number of the current item, `place` the place before it."""

    def __init__(self, assembly: Assembly, encoder: RowEncoder, *, place: int) -> None:
        rows = _Rows(encoder)
        self._rows = rows.rows
        self.run = AssemblyRun(assembly, rows.encode)
        self.place, self.index = place, 0
        self.pending: Changed | None = None
        self.other_tables: Counter[str] = Counter()
        self._first_place = place
        self.ended_before: dict[int, Ended | None] = {}
        """For each transaction that began in the block, by its `commit`: the last transaction that ended before it."""
        self._first_indexes: dict[int, int] = {}

    def begin(self, transaction: Transaction) -> None:
        self._first_indexes[transaction.commit] = self.index
        self.run.begin(transaction)

    def take(self, row: PublishedRow) -> None:
        self._rows.append(row)
        self.run.take(1)

    def begins(self, commit: int) -> bool:
        """Returns whether this transaction begins in the block."""
        return commit in self._first_indexes

    def start_of(self, commit: int) -> tuple[int, int]:
        """Returns the number of the first item of a transaction, and the place before it.

        A transaction that did not begin in the block was already open before it; its first item here is item 0.
        """
        index = self._first_indexes.get(commit)
        return (0, self._first_place) if index is None else (index, commit)


class _Rows:
    """The rows of one block, and their encoder. It must not refer to an `AssemblyRun`, whose docstring says why."""

    def __init__(self, encoder: RowEncoder) -> None:
        self.rows: list[PublishedRow] = []
        self._encoder = encoder

    def encode(self, first: int, end: int, spans: Spans) -> EncodedRows:
        return self._encoder.encode(self.rows[first:end], spans)
