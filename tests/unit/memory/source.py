"""A source over a `World`: `changelog.connectors.sources.Source`, made of the capture core alone."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

import numpy as np

from changelog.connectors.capture.assembly.assembled import Assembled, ColumnChanges, EncodedRows
from changelog.connectors.capture.assembly.assembly import Assembly, AssemblyRun
from changelog.connectors.capture.checkpointing import Checkpointing, resumed
from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.render_rows import Meta, Span
from changelog.connectors.capture.rows.row_change import Delete, Insert, Update
from changelog.connectors.capture.rows.row_records import Origin, Transaction
from changelog.connectors.capture.settings_guard import PLAIN_CODEC, check_settings, shapes_of
from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.key_lookup import Keys, Lookup
from changelog.connectors.capture.tables.repairs import LookedUp, Reached
from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.connectors.capture.tables.windows import Chunk, Windows
from changelog.connectors.failpoints import Reach
from changelog.connectors.sources import Activity, Changelog, Piece, Recover
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from changelog.envelope.signal import PREFIX as SIGNAL_PREFIX
from changelog.envelope.versions import Look, Versions
from tests.unit.memory.tables import RangeTask, ReadRows, bind, values
from tests.unit.memory.world import Logged, LogMessage, RowEdit, World

EPOCH = 1

Event = Logged | RowEdit | LogMessage | int
"""A transaction begins; a row; a message; the transaction ends, at this place."""


def transaction_of(logged: Logged) -> Transaction:
    """The transaction as rows name it."""
    committed_at = 1_795_000_000_000_000 + logged.commit
    return Transaction(xid=logged.xid, epoch=EPOCH, commit=logged.commit, committed_at=committed_at)


class MemorySource:
    """One opening. It has no thread: each `read` calls `live`, so that the world goes on, and steps the table reads."""

    def __init__(
        self,
        world: World,
        entities: Sequence[Entity],
        recover: Recover,
        changelog: Changelog,
        *,
        random: Random,
        live: Callable[["MemorySource"], None],
        reach: Reach,
    ) -> None:
        self._world, self._random, self._live, self._reach = world, random, live, reach
        self._entities = {entity.name: entity for entity in entities}
        self._changelog = changelog
        self._origin = Origin(connector="memory", name="shop", database="memory")
        stored = recover()
        checkpoint = self._resumed(stored)
        self._fresh = None if checkpoint == stored else checkpoint
        self._state = Checkpointing(
            checkpoint,
            name="shop",
            signing=lambda _: None,
            asking=(),
            stretch=lambda _: (EPOCH, {}),
            reach=reach,
        )
        self._plan(checkpoint)
        published = checkpoint.position
        passed = [logged for logged in world.log if commit_text(logged.end) <= checkpoint.through]
        if passed and not checkpoint.partial:
            last = Position(EPOCH, passed[-1].commit, 0)
            published = last if published is None else max(published, last)
        versions = Versions(changelog.versions(), accepted={}, filled=lambda *_: ())
        self._assembly = Assembly(
            entities={entity.table: entity for entity in entities},
            published=published,
            partial=checkpoint.partial,
            listener=self._windows,
            versions=versions,
        )
        self._events = self._follow()
        self._waiting: list[Event] = []
        self._bound: dict[str, Binding] = {}
        self._rows: list[RowEdit] = []
        self._marked: tuple[str, Chunk] | None = None

    def _resumed(self, stored: Checkpoint | None) -> Checkpoint:
        entities = list(self._entities.values())
        shapes = shapes_of(entities, codec=PLAIN_CODEC, hmac_key=b"")
        check_settings(stored, shapes, accept=False)
        through = commit_text(self._world.end) if stored is None else stored.through
        assert through >= commit_text(self._world.confirmed), "what was confirmed is needed again"
        return resumed(
            stored, entities, through=through, epoch=EPOCH, settings=shapes, source={"name": "memory"}, joined=True
        )

    def _plan(self, checkpoint: Checkpoint) -> None:
        """What this opening reads from tables, and what it looks for in the changelog."""
        repairs, windows = self._state.repairs, checkpoint.windows
        active = [name for name in self._entities if name not in repairs.paused]
        self._tasks = {
            name: RangeTask(name, self._world.tables[name].columns, windows[name])
            for name in active
            if not is_complete(windows[name])
        }
        self._lookups = {
            name: Lookup(name, repairs.open[name].keys, keys_max=3)
            for name in active
            if name in repairs.open and repairs.open[name].keys
        }
        self._sweeps = {name: Lookup(name, sweeping=True, keys_max=3) for name in sorted(repairs.sweeps(windows))}
        self._unswept = dict(self._sweeps)
        self._revision = repairs.revision
        lookups = [*self._lookups.values(), *self._sweeps.values()]
        nonces = iter(range(1 << 62))
        self._windows = Windows(
            self._tasks,
            horizon=self._world.next_xid,
            nonces=lambda: f"{self._random.getrandbits(64):016x}{next(nonces):016x}",
            lookups=lookups,
        )

    # The log

    def _follow(self) -> Iterator[Event]:
        """All from the place that was confirmed last, without an end."""
        number = sum(logged.end <= self._world.confirmed for logged in self._world.log)
        while True:
            while number == len(self._world.log):
                yield 0
            logged, number = self._world.log[number], number + 1
            yield logged
            yield from logged.events
            yield logged.end

    def _block(self) -> Assembled:
        """Some events of the log, wherever they part a transaction."""
        run = AssemblyRun(self._assembly, self._encode)
        self._rows = []
        try:
            for _ in range(self._random.choice([1, 3, 8, 40])):
                event = next(self._events)
                if event == 0:
                    break
                self._tell(run, event)
            run.flush()
        except ChangelogError as error:
            run.fail(error)
        return run.result()

    def _tell(self, run: AssemblyRun, event: Event) -> None:
        match event:
            case Logged():
                run.begin(transaction_of(event))
            case RowEdit():
                self._describe(run, event)
                self._rows.append(event)
                run.take(1)
            case LogMessage():
                run.message(event.prefix, event.content)
            case int():
                run.commit(event)

    def _describe(self, run: AssemblyRun, edit: RowEdit) -> None:
        """Tells how the table of the next row looks, if that is new."""
        known = self._bound.get(edit.table)
        if known is not None and known.width == len(edit.columns):
            return
        run.flush()
        entity = self._entities[edit.table]
        if known is not None:
            added = edit.columns[known.width :]
            changes = ColumnChanges(table=edit.table, position=run.here(), added=added, dropped=(), retyped=())
            run.alter(entity.table, changes)
        binding = self._bind(edit.table, edit.columns)
        self._bound[edit.table] = binding
        run.describe(entity, Look(columns=binding.shape, relation=binding.relid))

    def _bind(self, table: str, columns: Sequence[str]) -> Binding:
        return bind(self._entities[table], columns, 1 + list(self._entities).index(table))

    def _encode(self, first: int, end: int, spans: Sequence[Span]) -> EncodedRows:
        meta, records, places = Meta(spans), [], []
        for place, edit in enumerate(self._rows[first:end]):
            change = meta.change(place)
            if 2 * change.ordinal > meta.published[place]:
                made = row_records.records(self._origin, self._bound[edit.table], _row(edit), change)
                records += made
                places += [place] * len(made)
        shapes = {name: binding.shape for name, binding in self._bound.items()}
        at = np.array(places, np.int64)
        return EncodedRows(
            rows=batch.with_shapes(batch.from_records(records), shapes),
            commits=meta.commits[at],
            xids=meta.xids(at),
            unstamped=Counter(),
        )

    # The tables

    def _read_tables(self) -> None:
        """A step of the reading: finds ghosts, reads a chunk, or writes the message of the chunk that was read."""
        if self._unswept:
            self._sweep()
        elif self._marked is not None:
            nonce, chunk = self._marked
            self._marked = None
            self._world.emit(SIGNAL_PREFIX, nonce.encode())
            self._world.tables[chunk.entity].locks -= 1
        elif not self._windows.complete and (
            not self._windows.open or any(task.available for task in self._tasks.values())
        ):
            self._read_chunk()

    def _read_chunk(self) -> None:
        taken = self._windows.take({name: entity.table for name, entity in self._entities.items()})
        assert taken is not None
        nonce, chunk = taken
        snapshot, table = self._world.snapshot(), self._world.tables[chunk.entity]
        if not self._windows.reading(nonce, snapshot, table.columns):
            self._windows.give_back_unread(nonce)
            return
        self._reach("window:begun")
        rows = {str(key): values(row, table.columns) for key, row in table.rows(snapshot).items()}
        if isinstance(chunk.taken, Keys):
            requested, ghosts = chunk.taken.keys, chunk.taken.ghosts
            rows = {key: row for key, row in rows.items() if key in requested}
        else:
            requested, ghosts = None, {}
            first, end = chunk.taken
            rows = {key: row for key, row in rows.items() if first <= int(key) < end}
        binding = self._bind(chunk.entity, table.columns)
        self._windows.read(
            nonce, ReadRows(origin=self._origin, binding=binding, found=rows, requested=requested, ghosts=ghosts)
        )
        table.locks += 1
        self._marked = nonce, chunk
        self._reach("window:read")

    def _sweep(self) -> None:
        """Looks through the changelog for keys that the tables may lack."""
        repairs = self._state.repairs
        starts = {name: repairs.open[name].start for name in self._unswept if repairs.open[name].sweep}
        for name, lookup in self._unswept.items():
            if name not in starts:
                lookup.offer(survivors.of_keys(self._changelog.rows, name, repairs.open[name].absent))
        if starts:
            asked = {name: repairs.open[name].absent for name in starts}
            for part in survivors.older_than(self._changelog.rows, starts, asked):
                for name, ghosts in part.ghosts.items():
                    self._unswept[name].offer(ghosts)
        for lookup in self._unswept.values():
            self._windows.offered(lookup.end)
        self._unswept = {}

    def _reached(self) -> Reached:
        changed = self._state.replanned
        lookups = {name: lookup for name, lookup in self._lookups.items() if name not in changed}
        return Reached(
            revision=self._revision,
            idle=self._windows.complete,
            looked_up={name: LookedUp(left=lookup.left, absent=lookup.absent) for name, lookup in lookups.items()},
            sweeping=frozenset(self._sweeps),
            swept={name: sweep.more for name, sweep in self._sweeps.items() if sweep.complete and name not in changed},
        )

    @property
    def idle(self) -> bool:
        """Whether the changelog has all that the world has, and no repair is under way."""
        checkpoint = self._state.checkpoint
        read = all(map(is_complete, checkpoint.windows.values()))
        return read and not checkpoint.repairs.get("open") and checkpoint.through == self.end()

    # Source

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        """See `Source.read`."""
        if self._fresh is not None:
            fresh, self._fresh = self._fresh, None
            return Piece(rows=(), checkpoint=fresh, nbytes=0, urgent=True)
        self._live(self)
        if self._assembly.stop is not None:
            raise self._assembly.stop
        sweeping = not all(sweep.complete for sweep in self._sweeps.values())
        if self._state.is_outdated(sweeping=sweeping):
            raise ChangelogError(Kind.ALTERED, "another plan is stored")
        if self._random.random() < 0.5:
            self._read_tables()
        before = self._state.checkpoint
        assembled = self._block()
        self._state.deliver(assembled)
        self._state.progress(self._windows.progress(), self._reached())
        self._state.hear(assembled)
        checkpoint = self._state.checkpoint
        if checkpoint == before:
            return None
        nbytes = sum(rows.nbytes for rows in assembled.rows)
        log_bytes = int(checkpoint.through, 16) - int(before.through, 16)
        return Piece(rows=assembled.rows, checkpoint=checkpoint, nbytes=nbytes, log_bytes=log_bytes)

    def end(self) -> str:
        """See `Source.end`."""
        return commit_text(self._world.end - 1)

    def confirm(self, checkpoint: Checkpoint) -> None:
        """See `Source.confirm`."""
        self._state.confirm(checkpoint)
        self._world.confirmed = int(checkpoint.through, 16)

    def close(self) -> None:
        """See `Source.close`; the table locks end with the session."""
        for table in self._world.tables.values():
            table.locks = 0

    def activity(self) -> Activity:
        """See `Source.activity`."""
        return Activity(windows_open=self._windows.open, waiting=self._windows.waiting)


def _row(edit: RowEdit) -> Insert | Update | Delete:
    old = None if edit.old is None else values(edit.old, edit.columns)
    new = None if edit.new is None else values(edit.new, edit.columns)
    if old is None:
        assert new is not None
        return Insert(relid=0, new=new)
    return Delete(relid=0, old_kind="O", old=old) if new is None else Update(relid=0, old_kind="O", old=old, new=new)
