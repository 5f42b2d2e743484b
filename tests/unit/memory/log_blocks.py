"""Reads the log of a `World` (a database in memory) from the last confirmed position.

From the log's events, the code that all sources share makes rows of the changelog.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random

import numpy as np

from changelog.connectors.capture.assembly.assembled import Assembled, ColumnChanges, EncodedRows
from changelog.connectors.capture.assembly.assembly import Assembly, AssemblyRun
from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.row_change import Delete, Insert, Update
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction
from changelog.connectors.capture.rows.spans import Meta, Spans
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.versions import TableColumns
from tests.unit.memory.tables import bind, values
from tests.unit.memory.world import Logged, LogMessage, RowEdit, World

EPOCH = 1

Event = Logged | RowEdit | LogMessage | int
"""One of: the beginning of a transaction, a changed row, a message, or the position where the transaction ends.

The position 0 means that the log has no more events at the moment.
"""


class LogBlocks:
    """Makes rows of the changelog from blocks of the log. The blocks have random sizes.

    - `due` takes the position where a transaction ends. It returns the nonces (ids) of the table reads whose rows must
      be published before the next transaction.
    - `end` is the position that the checkpoint has reached. `ordinal` is the first free ordinal there.
    - If `whole` is false, a delete in the log has only the key of the old row, and an update has nothing of it.
    """

    def __init__(
        self,
        world: World,
        entities: Mapping[str, Entity],
        assembly: Assembly,
        origin: Origin,
        random: Random,
        *,
        due: Callable[[int], Iterable[bytes]],
        end: int,
        ordinal: int,
        whole: bool = True,
    ) -> None:
        self._whole = whole
        self._world, self._entities, self._assembly = world, entities, assembly
        self._origin, self._random = origin, random
        self._events = self._follow()
        self._bound: dict[str, Binding] = {}
        self._rows: list[RowEdit] = []
        self._due, self._end, self._ordinal = due, end, ordinal

    def next(self) -> Assembled:
        """Assembles the next few events. A block may end within a transaction."""
        run = AssemblyRun(self._assembly, self._encode)
        self._rows = []
        try:
            if self._assembly.open is None:
                self._between(run, self._end)
            for _ in range(self._random.choice([1, 3, 8, 40])):
                event = next(self._events)
                if event == 0:
                    break
                self._feed(run, event)
            run.flush()
        except ChangelogError as error:
            run.fail(error)
        return run.result()

    def _feed(self, run: AssemblyRun, event: Event) -> None:
        match event:
            case Logged():
                run.begin(_transaction_of(event))
            case RowEdit():
                self._describe(run, event)
                self._rows.append(event)
                run.take(1)
            case LogMessage():
                run.message(event.prefix, event.content)
            case int():
                run.commit(event)
                self._between(run, event)

    def _between(self, run: AssemblyRun, end: int) -> None:
        """Publishes the rows of the table reads that are due at `end`, a position between two transactions."""
        if end > self._end:  # After a crash, transactions that end before `_end` may be read again.
            self._end, self._ordinal = end, 0
        transaction = Transaction(xid=end, name=str(end), epoch=EPOCH, commit=end, committed_at=0)
        for nonce in self._due(end):
            change = Change(transaction=transaction, ordinal=self._ordinal, stamp=None)
            self._ordinal = run.between(nonce, change, end).ordinal

    def _describe(self, run: AssemblyRun, edit: RowEdit) -> None:
        """Tells the run the columns of the next row's table, unless the run knows them already."""
        known = self._bound.get(edit.table)
        if known is not None and known.width == len(edit.columns):
            return
        run.flush()
        entity = self._entities[edit.table]
        if known is not None:
            added = edit.columns[known.width :]
            changes = ColumnChanges(table=edit.table, position=run.here(), added=added, dropped=(), retyped=())
            run.alter(entity.table, changes)
        binding = bind(entity, edit.columns)
        self._bound[edit.table] = binding
        run.describe(entity, TableColumns(columns=binding.shape, relation=binding.relid))

    def _encode(self, first: int, end: int, spans: Spans) -> EncodedRows:
        meta, records, places = Meta(spans), [], []
        for place, edit in enumerate(self._rows[first:end]):
            change = meta.change(place)
            if 2 * change.ordinal > meta.published[place]:
                edit_records = row_records.records(
                    self._origin, self._bound[edit.table], _row(edit, whole=self._whole), change
                )
                records += edit_records
                places += [place] * len(edit_records)
        shapes = {name: binding.shape for name, binding in self._bound.items()}
        at = np.array(places, np.int64)
        return EncodedRows(
            rows=batch.with_shapes(batch.from_records(records), shapes),
            commits=meta.commits[at],
            xids=meta.xids(at),
            unstamped=Counter(),
        )

    def _follow(self) -> Iterator[Event]:
        """Yields all events after the last confirmed position, and 0 while there are no more events. Never ends."""
        number = sum(logged.end <= self._world.confirmed for logged in self._world.log)
        while True:
            while number == len(self._world.log):
                yield 0
            logged, number = self._world.log[number], number + 1
            yield logged
            yield from logged.events
            yield logged.end


def _transaction_of(logged: Logged) -> Transaction:
    """Returns the transaction as `row_records` needs it."""
    committed_at = 1_795_000_000_000_000 + logged.commit
    return Transaction(
        xid=logged.commit, name=str(logged.commit), epoch=EPOCH, commit=logged.commit, committed_at=committed_at
    )


def _row(edit: RowEdit, *, whole: bool) -> Insert | Update | Delete:
    old = None if edit.old is None else values(edit.old, edit.columns)
    new = None if edit.new is None else values(edit.new, edit.columns)
    if old is None:
        assert new is not None
        return Insert(relid=0, new=new)
    if not whole:
        key = (old[0], *[None] * (len(old) - 1))
        return (
            Delete(relid=0, old_kind="K", old=key) if new is None else Update(relid=0, old_kind=None, old=None, new=new)
        )
    return Delete(relid=0, old_kind="O", old=old) if new is None else Update(relid=0, old_kind="O", old=old, new=new)
