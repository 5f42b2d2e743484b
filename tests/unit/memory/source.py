"""Implements `changelog.connectors.sources.ChangeSource` for a `World` (a database in memory).

It uses the code that all sources share. That code reads a table in *windows*: one chunk (a range of keys) at a time.
"""

from collections.abc import Callable, Sequence
from random import Random

from changelog.connectors.capture.assembly.assembly import Assembly
from changelog.connectors.capture.checkpointing import Checkpointing, resumed
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.settings_guard import PLAIN_CODEC, check_settings, shapes_of
from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.key_lookup import Lookup, LookupKeys
from changelog.connectors.capture.tables.repairs import LookupProgress, Reached
from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.connectors.capture.tables.windows import Chunk, Windows
from changelog.connectors.failpoints import Reach
from changelog.connectors.sources import Activity, Changelog, Piece, Recover
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from changelog.envelope.signal import PREFIX as SIGNAL_PREFIX
from changelog.envelope.versions import Versions
from tests.unit.memory.log_blocks import EPOCH, LogBlocks
from tests.unit.memory.tables import RangeTask, ReadRows, bind, values
from tests.unit.memory.world import World

NAME = "shop"
SOURCE = {"name": "memory"}
"""The member `source` of every checkpoint, which identifies the database."""


class MemorySource:
    """An opened source. It has no thread of its own.

    - Each `read` calls `live`, and `live` may change the world. Often, `read` also does one step of reading the tables.
    - If `messages` is true, the source writes a message into the log after each chunk of a table that it has read, as a
      source for PostgreSQL does. Where it later reads this message, it publishes the chunk's rows.
    - Otherwise, the source first delivers everything that was in the log when the reading of the chunk ended. Then it
      publishes the chunk's rows, between two transactions.
    - For `whole`, see `LogBlocks`.
    """

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
        accept_settings: bool = False,
        messages: bool = True,
        whole: bool = True,
    ) -> None:
        self._world, self._random, self._live, self._reach = world, random, live, reach
        self._entities = {entity.name: entity for entity in entities}
        self._changelog = changelog
        self._origin = Origin(connector="memory", name=NAME, database="memory")
        stored = recover()
        checkpoint = self._resumed(stored, accept_settings=accept_settings)
        self._fresh = None if checkpoint == stored else checkpoint
        self._state = Checkpointing(
            checkpoint,
            name=NAME,
            signing=lambda _: None,
            asking=(),
            stretch=lambda _: (EPOCH, {}),
            reach=reach,
        )
        self._plan(checkpoint)
        published = checkpoint.position
        earlier = [logged for logged in world.log if commit_text(logged.end) <= checkpoint.through]
        if earlier and not checkpoint.partial:
            last = Position(EPOCH, earlier[-1].commit, 0)
            published = last if published is None else max(published, last)
        versions = Versions(changelog.versions(), accepted={}, filled=lambda *_: ())
        self._assembly = Assembly(
            entities={entity.table: entity for entity in entities},
            published=published,
            partial=checkpoint.partial,
            listener=self._windows,
            versions=versions,
        )
        end = int(checkpoint.through, 16)
        at_end = checkpoint.position is not None and checkpoint.position.commit == end
        self._log = LogBlocks(
            world,
            self._entities,
            self._assembly,
            self._origin,
            random,
            due=self._due,
            end=end,
            ordinal=checkpoint.position.ordinal // 2 + 1 if checkpoint.position is not None and at_end else 0,
            whole=whole,
        )
        self._marked: tuple[str, Chunk] | None = None
        self._messages = messages
        self._read: list[tuple[int, str]] = []
        """For each chunk without a message: the position up to which the log must be delivered first, and its nonce."""
        self.is_closed = False

    def _resumed(self, checkpoint: Checkpoint | None, *, accept_settings: bool) -> Checkpoint:
        entities = list(self._entities.values())
        shapes = shapes_of(entities, codec=PLAIN_CODEC, hmac_key=b"")
        check_settings(checkpoint, shapes, accept=accept_settings)
        through = commit_text(self._world.end - 1) if checkpoint is None else checkpoint.through
        assert through >= commit_text(self._world.confirmed), "the source needs the log before the confirmed position"
        return resumed(
            checkpoint,
            entities,
            through=through,
            epoch=EPOCH,
            settings=shapes,
            source=SOURCE,
            joined=True,
            held_entities=lambda: {version.entity for version in self._changelog.versions()},
        )

    def _plan(self, checkpoint: Checkpoint) -> None:
        """Plans what the source reads from the tables, and what it looks for in the changelog."""
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
            horizon=self._world.end,
            nonces=lambda: f"{self._random.getrandbits(64):016x}{next(nonces):016x}",
            lookups=lookups,
        )

    # The tables

    def _read_tables(self) -> None:
        """Does one step: searches for ghosts (see `_sweep`), reads a chunk, or ends the reading of a chunk."""
        if self._unswept:
            self._sweep()
        elif self._marked is not None:
            nonce, chunk = self._marked
            self._marked = None
            if self._messages:
                self._world.emit(SIGNAL_PREFIX, nonce.encode())
            else:
                self._read.append((self._world.end - 1, nonce))
            self._world.tables[chunk.entity].locks -= 1
        elif not self._windows.complete and (
            not self._windows.open or any(task.available for task in self._tasks.values())
        ):
            self._read_chunk()

    def _read_chunk(self) -> None:
        next_chunk = self._windows.take({name: entity.table for name, entity in self._entities.items()})
        assert next_chunk is not None
        nonce, chunk = next_chunk
        snapshot, table = self._world.snapshot(), self._world.tables[chunk.entity]
        if not self._windows.reading(nonce, snapshot, table.columns):
            self._windows.give_back_unread(nonce)
            return
        self._reach("window:begun")
        rows = {str(key): values(row, table.columns) for key, row in table.rows(snapshot).items()}
        if isinstance(chunk.part, LookupKeys):
            requested, ghosts = chunk.part.keys, chunk.part.ghosts
            rows = {key: row for key, row in rows.items() if key in requested}
        else:
            requested, ghosts = None, {}
            first, end = chunk.part
            rows = {key: row for key, row in rows.items() if first <= int(key) < end}
        binding = bind(self._entities[chunk.entity], table.columns)
        self._windows.read(
            nonce, ReadRows(origin=self._origin, binding=binding, rows=rows, requested=requested, ghosts=ghosts)
        )
        table.locks += 1
        self._marked = nonce, chunk
        self._reach("window:read")

    def _due(self, end: int) -> list[bytes]:
        nonces = [nonce.encode() for needed, nonce in self._read if needed <= end]
        self._read = [(needed, nonce) for needed, nonce in self._read if needed > end]
        return nonces

    def _sweep(self) -> None:
        """Searches the changelog for possible ghosts: keys that the changelog still has and the tables may lack."""
        repairs = self._state.repairs
        starts = {name: repairs.open[name].start for name in self._unswept if repairs.open[name].sweep}
        for name, lookup in self._unswept.items():
            if name not in starts:
                lookup.offer(survivors.of_keys(self._changelog.rows, name, repairs.open[name].absent))
        if starts:
            absent = {name: repairs.open[name].absent for name in starts}
            for part in survivors.older_than(self._changelog.rows, starts, absent):
                for name, ghosts in part.ghosts.items():
                    self._unswept[name].offer(ghosts)
        for lookup in self._unswept.values():
            self._windows.offered(lookup.end)
        self._unswept = {}

    def _reached(self) -> Reached:
        replanned = self._state.replanned
        lookups = {name: lookup for name, lookup in self._lookups.items() if name not in replanned}
        return Reached(
            revision=self._revision,
            idle=self._windows.complete,
            lookups={
                name: LookupProgress(keys_left=lookup.keys_left, absent=lookup.absent)
                for name, lookup in lookups.items()
            },
            sweeping=frozenset(self._sweeps),
            swept={
                name: sweep.more for name, sweep in self._sweeps.items() if sweep.complete and name not in replanned
            },
        )

    @property
    def idle(self) -> bool:
        """Whether everything in the world is delivered, and no repair is open."""
        checkpoint = self._state.checkpoint
        tables_complete = all(map(is_complete, checkpoint.windows.values()))
        return tables_complete and not checkpoint.repairs.get("open") and checkpoint.through == self.end()

    @property
    def ghosts(self) -> tuple[str, tuple[int, ...]]:
        """The entity and the ghosts of the chunk that was read last. Empty once the reading of that chunk has ended."""
        chunk = self._marked[1] if self._marked else None
        if chunk is None or not isinstance(chunk.part, LookupKeys):
            return "", ()
        return chunk.entity, tuple(map(int, chunk.part.ghosts))

    # The interface `ChangeSource`
    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        """See `ChangeSource.read`."""
        if self._fresh is not None:
            fresh, self._fresh = self._fresh, None
            return Piece(rows=(), checkpoint=fresh, nbytes=0, urgent=True)
        self._live(self)
        with self._world.lock:
            return self._next_piece()

    def _next_piece(self) -> Piece | None:
        if self._assembly.stop is not None:
            raise self._assembly.stop
        sweeping = not all(sweep.complete for sweep in self._sweeps.values())
        if self._state.is_outdated(sweeping=sweeping):
            raise ChangelogError(Kind.ALTERED, "another plan is stored")
        if self._random.random() < 0.5:
            self._read_tables()
        before = self._state.checkpoint
        assembled = self._log.next()
        self._state.deliver(assembled)
        self._state.progress(self._windows.progress(), self._reached())
        self._state.hear(assembled)
        checkpoint = self._state.checkpoint
        if checkpoint == before:
            return None
        nbytes = sum(rows.nbytes for rows in assembled.rows)
        log_bytes = int(checkpoint.through, 16) - int(before.through, 16)
        return Piece(
            rows=assembled.rows, checkpoint=checkpoint, nbytes=nbytes, log_bytes=log_bytes, urgent=assembled.fenced
        )

    def end(self) -> str:
        """See `ChangeSource.end`."""
        return commit_text(self._world.end - 1)

    def confirm(self, checkpoint: Checkpoint) -> None:
        """See `ChangeSource.confirm`."""
        self._state.confirm(checkpoint)
        self._world.confirmed = int(checkpoint.through, 16)

    def close(self) -> None:
        """See `ChangeSource.close`; the table locks end with the session."""
        self.is_closed = True
        for table in self._world.tables.values():
            table.locks = 0

    def activity(self) -> Activity:
        """See `ChangeSource.activity`."""
        return Activity(windows_open=self._windows.open, waiting=self._windows.waiting)
