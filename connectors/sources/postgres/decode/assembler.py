"""From frames of the stream to pieces of the changelog: transactions, stamps and positions. Pure."""

import struct
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.capture.announcing import Announcer
from connectors.capture.rows.render_rows import Span, parted
from connectors.capture.rows.row_records import Change, Origin, Transaction
from connectors.sources.postgres.decode import messages, pgoutput
from connectors.sources.postgres.decode.binder import Binder
from connectors.sources.postgres.decode.columnar import Block, EncodedBlock, encode
from connectors.sources.postgres.decode.frames import Frames
from connectors.sources.postgres.decode.messages import DDL_PREFIX, LogicalMessage, Relation
from connectors.sources.postgres.decode.relations import ColumnChanges, Relations, altered, retyped
from connectors.sources.postgres.decode.xids import Xids
from connectors.sources.postgres.values.definitions import Definitions
from envelope.columnar import batch
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from envelope.model import Stamp
from envelope.position import Position
from envelope.signal import FENCE_PREFIX, is_nonce
from envelope.signal import PREFIX as SIGNAL_PREFIX
from envelope.stamp import PREFIX as STAMP_PREFIX
from envelope.stamp import parse
from envelope.versions import Announced, Look, Versions

ORDINALS_MAX = 1 << 31
"""Changes of one transaction: a position counts each twice, in 32 bits."""

_POSTGRES_EPOCH_US = 946_684_800_000_000
_BEGIN = struct.Struct("!xQqI")
_COMMIT = struct.Struct("!xBQQq")
_EVERYTHING = 1 << 62


class Listener(Protocol):
    """Who wants to know what passes: table reads that are under way (`windows`)."""

    def touched(self, rows: pa.RecordBatch, xids: npt.NDArray[np.int64]) -> None:
        """Rows were delivered, by these transactions."""

    def discard(self, table: tuple[str, str]) -> None:
        """What was read of the table and not yet published no longer holds."""

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch | None:
        """A signal arrived; the rows that belong at its place."""

    def withdraw(self) -> None:
        """The rows that `signal` gave last are not published."""


@dataclass(slots=True, kw_only=True)
class Assembled:
    """What some frames gave. `through_lsn` is the end of the last whole transaction, None without one.

    Each batch of `rows` carries the shapes of its entities (`envelope.columnar.batch.shapes`), which no table
    alters inside one. `partial` says that the last row's transaction goes on. `signals` are the messages that may
    be signals, each where it stands. `fenced` says that somebody waits until the checkpoint is stored. `statements`
    are what the event trigger wrote, each with its commit; `described` is the last commit before which an entity's
    table was described, because it was altered or for the first time, 0 without one. `first` is the first
    transaction that began, `last` the one that the last row or `through_lsn` is of.
    """

    rows: list[pa.RecordBatch] = field(default_factory=list)
    through_lsn: int | None = None
    partial: bool = False
    altered: list[ColumnChanges] = field(default_factory=list)
    announced: list[Announced] = field(default_factory=list)
    unstamped: Counter[str] = field(default_factory=Counter)
    invalid_stamps: list[tuple[str, int]] = field(default_factory=list)
    signals: list[tuple[bytes, Change]] = field(default_factory=list)
    fenced: bool = False
    statements: list[tuple[bytes, int]] = field(default_factory=list)
    described: int = 0
    first: Transaction | None = None
    last: Transaction | None = None


@dataclass(slots=True)
class _Open:
    """The transaction that is being delivered: `ordinal` counts its records, `published` is what to drop."""

    transaction: Transaction
    stamp: Stamp | None = None
    ordinal: int = 0
    published: int = -1


class Assembler:
    """The state between frames: relations, the open transaction, what was published before.

    `versions` knows what columns the changelog has; without it, none are announced. `definitions` knows what composite
    types were; without it, none is altered.
    """

    def __init__(
        self,
        *,
        origin: Origin,
        binder: Binder,
        entities: Mapping[tuple[str, str], Entity],
        partitioned: Collection[tuple[str, str]],
        epoch: Callable[[int], int],
        xids: Xids,
        published: Position | None,
        partial: bool,
        listener: Listener | None,
        versions: Versions | None = None,
        definitions: Definitions | None = None,
        rows_max: int = 4096,
        bytes_max: int = 32 << 20,
    ) -> None:
        self._origin, self._entities = origin, entities
        self._relations = Relations(binder, entities, partitioned, definitions)
        self._epoch, self._xids = epoch, xids
        self._published, self._partial = published, partial
        self._listener = listener
        self._announcer = Announcer(versions)
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._open: _Open | None = None
        self._tail: list[bytes] = []
        self._stop: ChangelogError | None = None

    @property
    def between(self) -> bool:
        """Whether no transaction is open."""
        return self._open is None and not self._tail

    @property
    def stop(self) -> ChangelogError | None:
        """The stop that stands behind all that was given."""
        return self._stop

    def feed(self, frames: Sequence[bytes]) -> Assembled:
        """The whole transactions in the frames; part of one only when it is larger than `rows_max` or `bytes_max`.
        Raises ChangelogError (MALFORMED) for bytes that are no such frames. After a stop of another
        kind nothing more is given: see `stop`.
        """
        if self._stop is not None or not frames:
            return Assembled()
        self._tail += frames
        del frames  # a large one is not held as such while it is read
        return _Feed(self).run()


class _Feed:
    """One call of `feed`: what it works on and what it has found so far."""

    def __init__(self, assembler: Assembler) -> None:
        self._of = assembler
        of = assembler
        self._frames = Frames(of._tail, rows_max=of._rows_max, bytes_max=of._bytes_max, opened=of._open is not None)
        del assembler._tail[: self._frames.cut]
        self._spans: list[Span] = []
        self._spanned = self._encoded = 0  # of the frames' rows
        self._found: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]] = []
        self._whole: list[tuple[Transaction, int]] = []  # each with its end
        self._assembled = Assembled()
        self._tracked = assembler._relations.tracked_in(self._frames)

    def run(self) -> Assembled:
        """The frames in order: control messages one by one, the rows between them as spans."""
        done = 0
        try:
            if self._tracked and self._of._open is not None:
                self._settle()
            for control in self._frames.controls.tolist():
                self._span(control - done)
                done = control + 1
                self._control(control, self._frames.payload(control))
            self._span(self._frames.cut - done)
            self._flush()
        except ChangelogError as error:
            if error.kind is Kind.MALFORMED:
                raise
            self._stopped(error)
        return self._result()

    def _span(self, rows: int) -> None:
        """The next rows belong to the open transaction; what only described a table does not part them."""
        if not rows:
            return
        open_ = self._opened()
        if open_.ordinal + rows > ORDINALS_MAX:
            raise ChangelogError(
                Kind.LIMIT, f"a transaction has more than {ORDINALS_MAX} changes", hint="positions cannot count them"
            )
        before, self._spanned, open_.ordinal = open_.ordinal, self._spanned + rows, open_.ordinal + rows
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.transaction, last.ordinal + last.rows) == (open_.transaction, before):
            self._spans[-1] = replace(last, rows=last.rows + rows)
            return
        self._spans.append(
            Span(
                transaction=open_.transaction,
                stamp=open_.stamp,
                ordinal=before,
                rows=rows,
                published=open_.published,
            )
        )

    def _control(self, frame: int, payload: bytes) -> None:
        match payload[:1]:
            case b"B":
                self._begin(frame, payload)
            case b"C":
                self._commit(payload)
            case b"R":
                self._relation(payload)
            case b"M":
                self._message(payload)
            case _:
                self._other(pgoutput.decode(payload))

    def _begin(self, frame: int, payload: bytes) -> None:
        try:
            final_lsn, committed_at, xid = _BEGIN.unpack(payload)
        except struct.error as error:
            raise ChangelogError(Kind.MALFORMED, "a Begin message has the wrong length") from error
        of = self._of
        if of._open is not None:
            raise ChangelogError(Kind.MALFORMED, "the stream began a transaction inside another")
        transaction = Transaction(
            xid=of._xids.full(xid),
            epoch=of._epoch(final_lsn),
            commit=final_lsn,
            committed_at=committed_at + _POSTGRES_EPOCH_US,
        )
        of._open = _Open(transaction, published=self._published(transaction))
        self._assembled.first = self._assembled.first or transaction
        of._relations.enter(xid, final_lsn, self._frames, frame)
        if self._tracked:
            self._settle()

    def _published(self, transaction: Transaction) -> int:
        """Up to which position ordinal the transaction is in the changelog already."""
        last = self._of._published
        if last is None or (transaction.epoch, transaction.commit) > (last.epoch, last.commit):
            return -1
        is_last = (transaction.epoch, transaction.commit) == (last.epoch, last.commit)
        return last.ordinal if is_last and self._of._partial else _EVERYTHING

    def _commit(self, payload: bytes) -> None:
        try:
            _, _, end_lsn, _ = _COMMIT.unpack(payload)
        except struct.error as error:
            raise ChangelogError(Kind.MALFORMED, "a Commit message has the wrong length") from error
        self._whole.append((self._opened().transaction, end_lsn))
        self._of._open = None

    def _opened(self) -> _Open:
        if self._of._open is None:
            raise ChangelogError(Kind.MALFORMED, "the stream sent a change outside a transaction")
        return self._of._open

    def _relation(self, payload: bytes) -> None:
        relation = pgoutput.decode(payload)
        assert isinstance(relation, Relation)
        of = self._of

        def changed(before: Relation) -> None:
            self._assembled.altered.append(altered(before, relation, self._here()))
            if of._listener is not None:
                of._listener.discard((relation.namespace, relation.name))

        described = of._relations.describe(relation, self._flush, changed)
        if described is not None:
            self._assembled.described = self._opened().transaction.commit
            of._announcer.look(described.entity, described.look)  # a window's rows may have looked otherwise in between
        self._tracked = self._tracked or of._relations.tracked_in(self._frames)

    def _settle(self) -> None:
        """Reads the open transaction's rows by the types of its time."""
        of = self._of
        for described in of._relations.settle(self._flush):
            self._assembled.altered.append(retyped(described, self._here()))
            if of._listener is not None:
                of._listener.discard(described.entity.table)
            of._announcer.look(described.entity, described.look)

    def _here(self) -> Position:
        open_ = self._opened()
        return Change(transaction=open_.transaction, ordinal=open_.ordinal, stamp=None).position()

    def _message(self, payload: bytes) -> None:
        message = pgoutput.decode(payload)
        assert isinstance(message, LogicalMessage)
        if not message.transactional:
            return
        open_ = self._opened()
        ordinal = open_.ordinal
        open_.ordinal += 1
        if message.prefix == STAMP_PREFIX:
            self._stamp(message, open_)
        elif message.prefix == FENCE_PREFIX:
            self._assembled.fenced = True
        elif 2 * ordinal <= open_.published:
            return
        elif message.prefix == DDL_PREFIX:
            self._assembled.statements.append((message.content, open_.transaction.commit))
        elif message.prefix == SIGNAL_PREFIX:
            self._signal(message.content, Change(transaction=open_.transaction, ordinal=ordinal, stamp=None))

    def _signal(self, content: bytes, change: Change) -> None:
        """What is said to the service; or the place of a window's rows, which has a nonce for its name."""
        if not is_nonce(content):
            self._assembled.signals.append((content, change))
        elif self._of._listener is not None and self._opened().published < 0:
            self._flush()
            self._settle()
            rows = self._of._listener.signal(content, change)
            if rows is not None and rows.num_rows:
                self._publish_read(rows, change.transaction.commit)

    def _publish_read(self, rows: pa.RecordBatch, commit: int) -> None:
        """Rows of a table, which look as the table did when they were read."""
        shapes, relation = batch.shapes(rows), batch.relation(rows)
        for entity in self._of._entities.values():
            if entity.name in shapes:
                self._of._announcer.look(entity, Look(columns=shapes[entity.name], relation=relation))
        try:
            self._publish_shaped(rows, np.full(rows.num_rows, commit))
        except ChangelogError:
            assert self._of._listener is not None
            self._of._listener.withdraw()
            raise

    def _stamp(self, message: LogicalMessage, open_: _Open) -> None:
        """What is no stamp leaves the one before as it is."""
        reading = parse(message.content)
        if reading.problem is not None:
            self._assembled.invalid_stamps.append((reading.problem, open_.transaction.xid))
        if reading.stamp is not None:
            open_.stamp = reading.stamp
            self._stamp_late(message.lsn, open_.transaction, reading.stamp)

    def _stamp_late(self, lsn: int, transaction: Transaction, stamp: Stamp) -> None:
        """Gives the stamp whose log record ends at `lsn` to the rows behind it that were delivered before it.

        PostgreSQL puts the records of a transaction and its savepoints in order by their LSN, and takes a message's
        end for it: a message and the row right behind it are equal, and where a savepoint parts them, either may be
        delivered first (reproduced).
        """
        if not self._spans or self._spans[-1].transaction is not transaction:
            return
        span = self._spans[-1]
        late = 0
        while late < span.rows and self._frames.lsn(self._frames.rows[self._spanned - 1 - late]) == lsn:
            late += 1
        if late:
            before = span.rows - late
            behind = replace(span, stamp=stamp, ordinal=span.ordinal + before, rows=late)
            self._spans[-1:] = [replace(span, rows=before), behind] if before else [behind]

    def _other(self, message: messages.Decoded) -> None:
        """Ignores messages that publish nothing; any other kind was not requested."""
        if not isinstance(message, messages.ReplicationOrigin | messages.TypeName | messages.StreamAbort):
            raise ChangelogError(
                Kind.MALFORMED,
                f"the stream sent {type(message).__name__}, which belongs to an option that was not asked for",
            )

    def _flush(self, *, but_a_delete: bool = False) -> None:
        """Encodes the rows that are spanned but not yet encoded, and tells the listener.

        All `but_a_delete` at their end, which may belong to an insert behind it.
        """
        if self._spanned == self._encoded:
            return
        end = self._spanned
        if but_a_delete and self._frames.kind(self._frames.rows[end - 1]) == ord("D"):
            end -= 1
        if end == self._encoded:
            return
        frames = self._frames
        here = frames.rows[self._encoded : end]
        spans, self._spans = parted(self._spans, self._spanned - end)
        block = Block(data=frames.data, starts=frames.starts[here], ends=frames.ends[here], spans=spans)
        encoded = encode(self._of._origin, self._of._relations.bound, block)
        self._encoded = end
        self._assembled.unstamped += encoded.unstamped
        if encoded.stop is not None:
            self._publish_before(encoded)
            raise encoded.stop
        if encoded.rows.num_rows:
            self._publish(encoded.rows, encoded.commits)
        if self._of._listener is not None and encoded.rows.num_rows:
            self._of._listener.touched(encoded.rows, encoded.xids)

    def _publish_before(self, encoded: EncodedBlock) -> None:
        """Of rows that a stop cut short, what stands before its transaction: behind that, some may be missing."""
        assert encoded.stop is not None
        at = encoded.stop.position or self._here()
        whole = int(np.searchsorted(encoded.commits, at.commit))
        if whole:
            self._publish(encoded.rows.slice(0, whole), encoded.commits[:whole])

    def _publish(self, rows: pa.RecordBatch, commits: npt.NDArray[np.int64]) -> None:
        self._publish_shaped(batch.with_encoded_shapes(rows, self._of._relations.shapes), commits)

    def _publish_shaped(self, rows: pa.RecordBatch, commits: npt.NDArray[np.int64]) -> None:
        """The rows, and before the first row of an entity whose columns are new, their version."""
        done = 0
        for first in self._of._announcer.firsts(rows):
            if first.row > done:
                self._found.append((rows.slice(done, first.row - done), commits[done : first.row]))
                done = first.row
            announced = self._of._announcer.announce(first, rows.column("provenance")[first.row].as_py())
            self._assembled.announced.append(announced)
            self._found.append((batch.from_records([announced.record]), commits[first.row : first.row + 1]))
        self._found.append((rows.slice(done), commits[done:]))

    def _stopped(self, error: ChangelogError) -> None:
        """Keeps what stands before the transaction of the stop."""
        if error.position is None:
            error.position = self._here()
        commit = error.position.commit
        kept = []
        for rows, commits in self._found:
            keep = int(np.searchsorted(commits, commit))
            if keep:
                kept.append((rows.slice(0, keep), commits[:keep]))
        self._found = kept
        self._whole = [whole for whole in self._whole if whole[0].commit < commit]
        self._assembled.signals = [each for each in self._assembled.signals if each[1].transaction.commit < commit]
        self._assembled.announced = [
            each
            for each in self._assembled.announced
            if each.record.envelope.provenance.source.position.commit < commit
        ]
        self._of._stop = error
        self._of._open = None

    def _result(self) -> Assembled:
        self._assembled.rows = [rows for rows, _ in self._found]
        if self._whole:
            self._assembled.last, self._assembled.through_lsn = self._whole[-1]
        open_ = self._of._open
        if open_ is not None and self._found and int(self._found[-1][1][-1]) == open_.transaction.commit:
            self._assembled.last, self._assembled.partial = open_.transaction, True
        return self._assembled
