"""The publish loop: the one place where order is decided."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

import pyarrow as pa
import pyarrow.compute as pc

from connectors.failpoints import Reach, nowhere
from connectors.sinks import Sink
from connectors.sources import Piece, Recover, Source
from envelope.checkpoint import Checkpoint, Stop
from envelope.errors import RETRIED, ChangelogError, Kind

READ_TIMEOUT_S = 0.2
GATHER_S_MAX = 0.05
"""How long a read may gather transactions to be decoded at once: part of the time that a commit gathers."""

DRAIN_S_MAX = 10.0
"""How long a service that is to stop may go on to read what was committed before."""

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.5, 30.0

_REFUSALS = frozenset({Kind.STOP, Kind.MALFORMED, Kind.PRECONDITION})
"""What a sink says of rows that it takes none of: what was added before them can still be committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """When a commit closes; positions alone are stored at the slower `idle` measures.

    While there is a backlog (the last piece had `backlog_rows` or more) and commits are slow, they are made larger:
    each gathers rows for `patience` times as long as the one before it took, if that is longer than `seconds`; for
    `seconds_max` at most. Otherwise nothing is gained by waiting.
    """

    seconds: float = 1.0
    seconds_max: float = 5.0
    patience: float = 4.0
    backlog_rows: int = 1000
    nbytes: int = 64 << 20
    rows: int = 100_000
    idle_seconds: float = 60.0
    idle_log_bytes: int = 16 << 20


class Observer:
    """Who is told what the loop does; this one keeps it to itself."""

    def committed(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint, seconds: float, /) -> None:
        """A commit is durable; it took `seconds`. Its rows are told as `noted` has them."""

    def turned(self, through: str) -> None:
        """The loop came round; all before `through` is durable or holds nothing to publish."""

    def started(self, checkpoint: Checkpoint | None) -> None:
        """The source is open."""

    def interrupted(self, error: ChangelogError, wait_s: float) -> None:
        """The source was lost and is opened again after `wait_s`."""


@dataclass(slots=True)
class _Commit:
    """What the next sink commit will hold; its rows are in the sink's hands already, and `rows` say what they were."""

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
        self.rows += map(noted, piece.rows)
        self.count += sum(batch.num_rows for batch in piece.rows)
        self.nbytes += piece.nbytes
        self.log_bytes += piece.log_bytes
        self.checkpoint = piece.checkpoint
        self.urgent |= piece.urgent


def noted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Of a commit's rows, what is kept: `entity`, `op`, `transaction`, and whether there is an `original`."""
    kept = {name: rows.column(name) for name in ("entity", "op", "transaction")}
    return pa.RecordBatch.from_pydict({**kept, "original": pc.is_valid(rows.column("original"))})


def publish(
    open_source: Callable[[Recover], Source],
    sink: Sink,
    *,
    stop: Event,
    cadence: Cadence | None = None,
    observer: Observer | None = None,
    reach: Reach = nowhere,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Runs from where the sink's changelog ends until `stop` is set; then stores what was committed
    before, as far as it can be read in DRAIN_S_MAX, and returns.

    Over and over: 1. read the next committed transactions from the source; 3. publish rows and
    position in one atomic sink commit, rows as they come; 5. confirm the position to the source,
    never before 3 is durable. (2 and 4, looking up and folding before-images, need a state store.)
    A crash between any two loses nothing and repeats nothing.

    A connection that is lost, on either side, is made again after a wait, from the last checkpoint. The
    wait grows until something is committed, or the source has streamed for longer than it. Each opening
    of the source recovers the sink again: the source was released, so another instance may have
    published meanwhile. Raises ChangelogError of every other kind, once what stands before it is stored.
    """
    watcher = observer or Observer()
    run = _Run(sink, cadence or Cadence(), watcher, reach, clock)
    wait_s = BACKOFF_S_MIN
    while not stop.is_set():
        run.progressed, run.streamed_s = False, 0.0
        try:
            run.through(open_source, stop)
        except ChangelogError as error:
            if error.kind not in RETRIED:
                raise
            worked = run.progressed or run.streamed_s > wait_s
            wait_s = BACKOFF_S_MIN if worked else min(2 * wait_s, BACKOFF_S_MAX)
            watcher.interrupted(error, wait_s)
            run.abandon()
            stop.wait(wait_s)


class _Run:
    """One service's turns: `held` says that the sink is ours, and `stored` is its checkpoint as far as we know."""

    def __init__(
        self, sink: Sink, cadence: Cadence, observer: Observer, reach: Reach, clock: Callable[[], float]
    ) -> None:
        self.progressed = False
        self.streamed_s = 0.0
        self._sink, self._cadence, self._observer, self._reach, self._clock = sink, cadence, observer, reach, clock
        self._held = False
        self._stored: Checkpoint | None = None
        self._stored_at = clock()
        self._took_s = 0.0
        self._behind = False
        self._next = _Commit(clock())

    def through(self, open_source: Callable[[Recover], Source], stop: Event) -> None:
        """One opening of the source."""
        source = open_source(self._recover)
        try:
            self._stored_at = opened_at = self._clock()
            self._next = _Commit(self._stored_at)
            self._observer.started(self._stored)
            while not stop.is_set():
                self._step(source)
                self.streamed_s = self._clock() - opened_at
            self._drain(source)
            self._commit(source)
        finally:
            source.close()

    def abandon(self) -> None:
        """Drops what was added and not committed, before the wait for the source: in a sink, it is in others' way."""
        if not self._held:
            return
        try:
            with self._sinking():
                self._sink.abandon()
        except ChangelogError as error:
            if error.kind not in RETRIED:
                raise

    def _recover(self) -> Checkpoint | None:
        """While the slot was ours no longer, another instance may have published: what we remember proves nothing."""
        self._held = False
        self._stored = self._sink.recover()
        self._held = True
        return self._stored

    @contextmanager
    def _sinking(self, refusals: Collection[Kind] = ()) -> Iterator[None]:
        """What the sink fails with leaves its state unknown, but for `refusals`."""
        try:
            yield
        except ChangelogError as error:
            self._held = error.kind in refusals
            raise

    def _drain(self, source: Source) -> None:
        """Reads on to where the source's log ends now."""
        deadline = self._clock() + DRAIN_S_MAX
        try:
            end = source.end()
            while self._read_to() < end and self._clock() < deadline:
                self._step(source)
        except ChangelogError as error:
            if not self._held or error.kind not in RETRIED:
                raise

    def _settled(self) -> str:
        newest = self._stored if self._next.rows else self._next.checkpoint or self._stored
        return "" if newest is None else newest.through

    def _read_to(self) -> str:
        newest = self._next.checkpoint or self._stored
        return "" if newest is None else newest.through

    def _step(self, source: Source) -> None:
        try:
            piece = source.read(self._timeout_s(), self._gather_read_s())  # 1
            self._reach("loop:read")
            if piece is not None:
                self._take(piece)
        except ChangelogError as error:
            if self._held and error.kind not in RETRIED:
                self._commit(source, Stop.of(error))
            raise
        self._observer.turned(self._settled())
        if self._is_due():
            self._commit(source)

    def _take(self, piece: Piece) -> None:
        if piece.rows:
            with self._sinking(_REFUSALS):
                self._sink.add(piece.rows)
        before = self._next.count
        self._next.add(piece, self._clock() - self._gather_read_s())
        self._behind = self._next.count - before >= self._cadence.backlog_rows

    def _timeout_s(self) -> float:
        if not self._next.rows:
            return READ_TIMEOUT_S
        return min(READ_TIMEOUT_S, max(0.0, self._next.opened_at + self._gather_s() - self._clock()))

    def _gather_read_s(self) -> float:
        return min(self._timeout_s() if self._next.rows else self._gather_s(), GATHER_S_MAX)

    def _gather_s(self) -> float:
        cadence = self._cadence
        if not self._behind:
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
        if self._stored is None or next_.urgent:
            return True
        read, stored = next_.checkpoint, self._stored
        if (read.windows, read.repairs) != (stored.windows, stored.repairs):
            return self._clock() - self._stored_at >= cadence.seconds
        return next_.log_bytes >= cadence.idle_log_bytes or self._clock() - self._stored_at >= cadence.idle_seconds

    def _commit(self, source: Source, met: Stop | None = None) -> None:
        """Stores what was read, and the stop that was met behind it."""
        rows, newest = self._next.rows, self._next.checkpoint or self._stored
        checkpoint = None if newest is None else newest.stopping(met)
        if checkpoint is None or (not rows and checkpoint == self._stored):
            return
        started_at = self._clock()
        with self._sinking():
            self._sink.commit(checkpoint)  # 3
        self._reach("loop:published")
        self._stored, self._stored_at, self.progressed = checkpoint, self._clock(), True
        self._took_s = self._stored_at - started_at
        self._next = _Commit(self._stored_at)
        source.confirm(checkpoint)  # 5
        self._reach("loop:confirmed")
        self._observer.committed(rows, checkpoint, self._stored_at - started_at)
