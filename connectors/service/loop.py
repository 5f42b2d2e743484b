"""Runs the publish loop, which reads rows from a source and stores them in a sink.

Exactly-once publishing depends on the order of the loop's steps. Only this module decides this order.

A *piece* is the result of one read of the source: rows, and the checkpoint that is valid as soon as the rows are
durable. A *commit* stores the rows of one or more pieces at once, with the checkpoint of the last piece.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sinks import Sink
from changelog.connectors.sources import ChangeSource, Piece, Recover
from changelog.connectors.state.before_images import BeforeImages
from changelog.envelope.checkpoint import Checkpoint, Stop
from changelog.envelope.errors import RETRIED, ChangelogError, Kind

READ_TIMEOUT_S = 0.2
GATHER_S_MAX = 0.05
"""How long one read may wait for further transactions, in seconds, so that they are decoded together.

This wait counts as a part of the time in which a commit gathers rows.
"""

DRAIN_S_MAX = 10.0
"""How many seconds a stopping service may read transactions that were committed before it was told to stop."""

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.5, 30.0

_REFUSALS = frozenset({Kind.STOP, Kind.MALFORMED, Kind.PRECONDITION})
"""If `Sink.add` raises an error of one of these kinds, it has added none of the rows that it was called with. Rows that
were added before can still be committed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """The rules for when a commit (rows and a checkpoint that are stored together) is stored.

    A commit with rows is stored as soon as it has `rows` rows or `nbytes` bytes, at the latest after it has gathered
    rows for `seconds` (with a backlog, for longer).

    A checkpoint without rows is stored at once if it is urgent or the changelog's first one. If table reads or repairs
    made progress, it is stored once the previous commit is `seconds` old. Any other checkpoint without rows is stored
    once the previous commit is `idle_seconds` old, or as soon as `idle_log_bytes` of the database's log were read since
    that commit.

    There is a backlog if the last piece had at least `backlog_rows` rows. Then a commit gathers rows for `patience`
    times as long as the sink took for the previous commit, but for at least `seconds` and at most `seconds_max`. So the
    slower the sink is, the more rows a commit has. Without a backlog, waiting longer would gain nothing.
    """

    seconds: float = 1.0
    seconds_max: float = 5.0
    patience: float = 12.0
    backlog_rows: int = 1000
    nbytes: int = 64 << 20
    rows: int = 100_000
    idle_seconds: float = 60.0
    idle_log_bytes: int = 16 << 20


class Observer:
    """Receives the loop's events. This base class ignores them."""

    def committed(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint, seconds: float, /) -> None:
        """Called when a commit is durable; the sink took `seconds` for it. `rows` are results of `summary_of`."""

    def turned(self, through: str) -> None:
        """Called after each turn of the loop. All rows from the log before the place `through` are durable."""

    def started(self, checkpoint: Checkpoint | None) -> None:
        """Called after the source was opened, to continue at `checkpoint`.

        For a new changelog, `checkpoint` is None.
        """

    def interrupted(self, error: ChangelogError, wait_s: float) -> None:
        """Called after an error that is retried (`RETRIED`). The source is opened again after `wait_s` seconds."""


@dataclass(slots=True)
class _Commit:
    """The content of the next commit. The sink already has the rows; here, `rows` has only the columns of `summary_of`.

    `opened_at` is the time on the loop's clock at which the loop began to gather the rows. `count` is the number of
    rows. `nbytes` and `log_bytes` are sums over the pieces of the commit. `urgent` says that a piece is urgent.
    """

    opened_at: float
    rows: list[pa.RecordBatch] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    count: int = 0
    nbytes: int = 0
    log_bytes: int = 0
    urgent: bool = False

    def add(self, piece: Piece, opened_at: float) -> None:
        if not self.rows:
            self.opened_at = opened_at
        self.rows += map(summary_of, piece.rows)
        self.count += sum(batch.num_rows for batch in piece.rows)
        self.nbytes += piece.nbytes
        self.log_bytes += piece.log_bytes
        self.checkpoint = piece.checkpoint
        self.urgent |= piece.urgent


def summary_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the columns `entity`, `op`, `transaction` and `original`, which metrics need.

    `original` says, as a boolean, whether the row has an original.
    """
    columns = {name: rows.column(name) for name in ("entity", "op", "transaction")}
    return pa.RecordBatch.from_pydict({**columns, "original": pc.is_valid(rows.column("original"))})


def _filled(piece: Piece, state: BeforeImages) -> Piece:
    """Returns the piece with the values that its rows lack, as far as `state` knows them."""
    rows = state.fill(piece.rows, piece.checkpoint)
    growth = sum(batch.nbytes for batch in rows) - sum(batch.nbytes for batch in piece.rows)
    return replace(piece, rows=rows, nbytes=piece.nbytes + max(growth, 0))


def publish(
    open_source: Callable[[Recover], ChangeSource],
    sink: Sink,
    *,
    stop: Event,
    state: BeforeImages | None = None,
    cadence: Cadence | None = None,
    observer: Observer | None = None,
    reach: Reach = nowhere,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Publishes until `stop` is set. Begins where the sink's changelog ends, and repeats these steps:

    1. Read the next committed transactions from the source.
    2. Take values that the database's log lacks from `state`, which knows the current row of every key.
    3. Add the rows to the sink. If a commit is due, store all added rows and the checkpoint in one atomic commit.
    4. After a commit, bring `state` up to date with the rows and the checkpoint that were stored.
    5. Confirm the checkpoint to the source, but only after the commit of step 3 is durable.

    Without a `state`, there are no steps 2 and 4. A crash between any two steps loses nothing and repeats nothing.
    After a crash between steps 3 and 4, `state` catches up from the changelog. When `stop` is set, the function stores
    the transactions that were committed before the stop, as far as it can read them within DRAIN_S_MAX, and returns.

    If the connection to the source or to the sink is lost, or if the source has to be opened again (ALTERED), the
    function waits, and then continues with both from the last checkpoint. Each wait is twice as long as the previous
    one, up to BACKOFF_S_MAX. The waits start again at BACKOFF_S_MIN after something was committed, or after the source
    has streamed for longer than the last wait. Each opening of the source recovers the sink again, because another
    instance may have published in between. On any other ChangelogError, the function first stores all rows that it read
    before the error, and then raises the error.
    """
    watcher = observer or Observer()
    run = _Run(sink, state, cadence or Cadence(), watcher, reach, clock)
    wait_s = BACKOFF_S_MIN
    while not stop.is_set():
        run.progressed, run.streamed_s = False, 0.0
        try:
            run.publish_from(open_source, stop)
        except ChangelogError as error:
            if error.kind not in RETRIED:
                raise
            made_progress = run.progressed or run.streamed_s > wait_s
            wait_s = BACKOFF_S_MIN if made_progress else min(2 * wait_s, BACKOFF_S_MAX)
            watcher.interrupted(error, wait_s)
            run.abandon()
            stop.wait(wait_s)


class _Run:
    """What `publish` remembers from one opening of the source to the next.

    `progressed` says whether something was committed since the source was opened. `streamed_s` says how many seconds
    the source has streamed since then. `_holds_sink` says that the sink was recovered, and that no later error has made
    the sink's state unknown. `_stored_checkpoint` is the last checkpoint in the sink, as far as this process knows.
    `_took_s` is the duration of the last commit in seconds.
    """

    def __init__(
        self,
        sink: Sink,
        state: BeforeImages | None,
        cadence: Cadence,
        observer: Observer,
        reach: Reach,
        clock: Callable[[], float],
    ) -> None:
        self.progressed = False
        self.streamed_s = 0.0
        self._sink, self._state, self._cadence = sink, state, cadence
        self._observer, self._reach, self._clock = observer, reach, clock
        self._holds_sink = False
        self._stored_checkpoint: Checkpoint | None = None
        self._stored_at = clock()
        self._took_s = 0.0
        self._has_backlog = False
        self._next = _Commit(clock())

    def publish_from(self, open_source: Callable[[Recover], ChangeSource], stop: Event) -> None:
        """Opens the source, and publishes from it until `stop` is set or an error is raised."""
        source = open_source(self._recover)
        try:
            self._stored_at = opened_at = self._clock()
            self._next = _Commit(self._stored_at)
            self._observer.started(self._stored_checkpoint)
            while not stop.is_set():
                self._step(source)
                self.streamed_s = self._clock() - opened_at
            self._drain(source)
            self._commit(source)
        finally:
            source.close()

    def abandon(self) -> None:
        """Drops the uncommitted rows before a wait. If they stayed, they could block other users of the sink."""
        if not self._holds_sink:
            return
        try:
            with self._sinking():
                self._sink.abandon()
        except ChangelogError as error:
            if error.kind not in RETRIED:
                raise

    def _recover(self) -> Checkpoint | None:
        """Recovers the sink, because another instance may have published to it. Returns the sink's last checkpoint."""
        self._holds_sink = False
        self._stored_checkpoint = self._sink.recover()
        self._holds_sink = True
        if self._state is not None:
            self._state.recover(self._stored_checkpoint)
        return self._stored_checkpoint

    @contextmanager
    def _sinking(self, refusals: Collection[Kind] = ()) -> Iterator[None]:
        """Clears `_holds_sink` if the sink raises an error whose kind is not in `refusals`."""
        try:
            yield
        except ChangelogError as error:
            self._holds_sink = error.kind in refusals
            raise

    def _drain(self, source: ChangeSource) -> None:
        """Reads up to the present end of the source's log, for at most DRAIN_S_MAX.

        After an error that is retried, ends earlier if the sink is intact: the rows that were read can still be stored.
        """
        deadline = self._clock() + DRAIN_S_MAX
        try:
            end = source.end()
            while self._read_to() < end and self._clock() < deadline:
                self._step(source)
        except ChangelogError as error:
            if not self._holds_sink or error.kind not in RETRIED:
                raise

    def _settled(self) -> str:
        """Returns a place in the log (`Checkpoint.through`). All rows from the log before this place are durable."""
        newest = self._stored_checkpoint if self._next.rows else self._next.checkpoint or self._stored_checkpoint
        return "" if newest is None else newest.through

    def _read_to(self) -> str:
        """Returns the place in the log (`Checkpoint.through`) up to which the log was read."""
        newest = self._next.checkpoint or self._stored_checkpoint
        return "" if newest is None else newest.through

    def _step(self, source: ChangeSource) -> None:
        try:
            piece = source.read(self._timeout_s(), self._gather_read_s())  # 1
            self._reach("loop:read")
            if piece is not None:
                self._take(piece)
        except ChangelogError as error:
            if self._holds_sink and error.kind not in RETRIED:
                self._commit(source, Stop.of(error))
            raise
        self._observer.turned(self._settled())
        if self._is_due():
            self._commit(source)

    def _take(self, piece: Piece) -> None:
        if self._state is not None:
            piece = _filled(piece, self._state)  # 2
        if piece.rows:
            with self._sinking(_REFUSALS):
                self._sink.add(piece.rows)
        if self._state is not None:
            self._state.add()
        count_before = self._next.count
        self._next.add(piece, self._clock() - self._gather_read_s())
        self._has_backlog = self._next.count - count_before >= self._cadence.backlog_rows

    def _timeout_s(self) -> float:
        if not self._next.rows:
            return READ_TIMEOUT_S
        return min(READ_TIMEOUT_S, max(0.0, self._next.opened_at + self._gather_s() - self._clock()))

    def _gather_read_s(self) -> float:
        return min(self._timeout_s() if self._next.rows else self._gather_s(), GATHER_S_MAX)

    def _gather_s(self) -> float:
        cadence = self._cadence
        if not self._has_backlog:
            return cadence.seconds
        return max(cadence.seconds, min(cadence.patience * self._took_s, cadence.seconds_max))

    def _is_due(self) -> bool:
        next_, cadence = self._next, self._cadence
        if next_.checkpoint is None:
            return False
        if next_.rows:
            return (
                next_.count >= cadence.rows
                or next_.nbytes >= cadence.nbytes
                or self._clock() - next_.opened_at >= self._gather_s()
            )
        if self._stored_checkpoint is None or next_.urgent:
            return True
        new, old = next_.checkpoint, self._stored_checkpoint
        if (new.windows, new.repairs) != (old.windows, old.repairs):
            return self._clock() - self._stored_at >= cadence.seconds
        return next_.log_bytes >= cadence.idle_log_bytes or self._clock() - self._stored_at >= cadence.idle_seconds

    def _commit(self, source: ChangeSource, stop: Stop | None = None) -> None:
        """Stores the rows that were read. With `stop`, the checkpoint also says which error came after these rows."""
        rows, newest = self._next.rows, self._next.checkpoint or self._stored_checkpoint
        checkpoint = None if newest is None else newest.stopping(stop)
        if checkpoint is not None and self._state is not None:
            checkpoint = self._state.mark(checkpoint)
        if checkpoint is None or (not rows and checkpoint == self._stored_checkpoint):
            return
        started_at = self._clock()
        with self._sinking():
            self._sink.commit(checkpoint)  # 3
        self._reach("loop:published")
        self._stored_checkpoint, self._stored_at, self.progressed = checkpoint, self._clock(), True
        self._took_s = self._stored_at - started_at
        self._next = _Commit(self._stored_at)
        if self._state is not None:
            self._state.fold(checkpoint)  # 4
            self._reach("loop:folded")
        source.confirm(checkpoint)  # 5
        self._reach("loop:confirmed")
        self._observer.committed(rows, checkpoint, self._took_s)
