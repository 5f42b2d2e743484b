"""Turns events of the binary log into rows of the changelog. It reads no socket, file or clock.

The `Assembly` of the capture core puts the rows in order. `TransactionReader` tells the `Assembly` which events belong
to one transaction. In the positions of a transaction's rows, `commit` is the coordinate of the transaction's GTID
event: the place of this event in the log, as one number.

The service writes nothing to the server, so nothing in the log marks when a table was read. Instead, the source notes
where the log ended at that time. It publishes the rows of the read once the stream has reached this place and is
between two transactions:

    … XID │ GTID … XID │ GTID … XID │        rows of table reads can be published at each │
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from changelog.connectors.capture.assembly.assembled import Assembled, EncodedRows, Listener
from changelog.connectors.capture.assembly.assembly import Assembly, AssemblyRun
from changelog.connectors.capture.assembly.row_groups import encode_groups
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction
from changelog.connectors.capture.rows.spans import Spans
from changelog.connectors.sources.mysql.decode.cutting import Item, cut, divided
from changelog.connectors.sources.mysql.decode.events.event_block import EMPTY, EventBlock
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.log_state import LogState
from changelog.connectors.sources.mysql.decode.rows.row_texts import RowTexts
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.decode.stops import Stops
from changelog.connectors.sources.mysql.decode.transactions import TransactionReader
from changelog.connectors.sources.mysql.decode.usual.runs import TransactionRun, UsualRuns, deliver
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate_text
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from changelog.envelope.versions import Versions


class WaitingReads(Protocol):
    """The table reads that wait until the stream has reached a place."""

    def due(self, end: int) -> Iterable[bytes]:
        """Returns the nonces (ids) of the table reads to publish at `end`, a coordinate between two transactions."""

    def next_due(self) -> int | None:
        """Returns the first coordinate at which a table read is due; None if no table read waits."""


class Assembler:
    """Turns the events of a stream into rows. Keeps the state of the stream between two calls of `feed`.

    `state` says where the stream is, and which transactions it has delivered. `published` is the position up to which
    rows are already published; `partial` says that this position is inside a transaction. `through` is the coordinate
    up to which the changelog is complete. `listener` is told which rows are delivered; it is None if no tables are to
    be read. `versions` knows which columns the changelog has; without it, no changes of columns are announced. `reads`
    has the table reads that wait; the assembler queries `reads` at each place between two transactions.
    """

    def __init__(
        self,
        *,
        origin: Origin,
        tables: Tables,
        entities: Mapping[tuple[str, str], Entity],
        state: LogState,
        published: Position | None,
        partial: bool,
        through: int,
        listener: Listener | None,
        reads: WaitingReads,
        versions: Versions | None = None,
    ) -> None:
        self._origin, self._tables, self.state, self._reads = origin, tables, state, reads
        self._assembly = Assembly(
            entities=entities, published=published, partial=partial, listener=listener, versions=versions
        )
        self._events = EventReader()
        self._tail = EMPTY
        self._decoded: Iterator[Item] = iter(())
        self.busy = False
        """Whether `feed` has more to return from the events that it got. If so, the next call must pass no events."""
        self._end = through
        at_end = published is not None and published.commit == through - 1
        self._ordinal = published.ordinal // 2 + 1 if published is not None and at_end else 0

    @property
    def between(self) -> bool:
        """Whether no transaction is open."""
        return self._assembly.open is None and self.state.transaction is None and not self._tail

    @property
    def through(self) -> str:
        """The place in the log up to which everything is delivered, as a `Checkpoint.through`."""
        return commit_text(self._end)

    @property
    def stop(self) -> ChangelogError | None:
        """The error that the source raises after it has returned all that `feed` returned; None if there is none."""
        return self._assembly.stop

    def feed(self, events: EventBlock) -> Assembled:
        """Returns the rows of the transactions that are complete now.

        Rows of an incomplete transaction are returned only if the transaction is large. While the assembler is `busy`,
        `events` must be empty. Raises ChangelogError (MALFORMED) for bytes that are not events. Errors of other kinds
        are stored in `stop` instead; after such an error, nothing more is returned.
        """
        if self.stop is not None:
            return Assembled()
        self._tail = self._tail + events
        del events  # so that memory has only one copy of a large event while it is decoded
        if not self.busy:
            count = cut(self._tail)
            block, self._tail = self._tail[:count], self._tail[count:]
            runs = UsualRuns(block, self._events, self.state, self._tables, self._reads.next_due)
            self._decoded, self.busy = divided(self._events, block, runs.find), True
            del block, runs
        texts, stop = RowTexts(), None
        run = AssemblyRun(self._assembly, _Encoder(self._origin, texts).encode)
        stops = Stops(self.state, run, self._origin)
        reader = TransactionReader(self.state, self._tables, run, texts, stops)
        try:
            self._publish_reads(run)
            for item in self._decoded:
                if item is None:
                    break
                if isinstance(item, TransactionRun):
                    deliver(item, self.state, run, texts)
                    self._publish_reads(run)
                elif reader.read(item):
                    if self.state.leaves_epoch:
                        break
                    self._publish_reads(run)
            else:
                self.busy = False
            run.flush()
        except ChangelogError as error:
            if error.kind is Kind.MALFORMED:
                raise
            error.position = error.position or stops.here()
            stop = run.fail(error)
        self.state.end_block(stop)
        assembled = run.result()
        if assembled.partial and assembled.last is not None:
            self.state.half = assembled.last.name, assembled.last.epoch, assembled.last.commit
        return assembled

    def _publish_reads(self, run: AssemblyRun) -> None:
        """Between two transactions, publishes the rows of the table reads that are due at this place."""
        place = self.state.place
        if self._assembly.open is not None or self.state.transaction is not None or not place.known:
            return
        self.state.passed = place.end
        if place.end > self._end:
            self._end, self._ordinal = place.end, 0
        for nonce in self._reads.due(place.end):
            commit = self._end - 1
            transaction = Transaction(
                xid=commit,
                name=coordinate_text(self._end),
                epoch=self.state.epoch,
                commit=commit,
                committed_at=0,
            )
            change = Change(transaction=transaction, ordinal=self._ordinal, stamp=None)
            self._ordinal = run.between(nonce, change, self._end).ordinal


class _Encoder:
    """Encodes the rows of one block. It must not refer to its `AssemblyRun`: a cycle would keep the block in memory."""

    def __init__(self, origin: Origin, texts: RowTexts) -> None:
        self._origin, self._texts = origin, texts

    def encode(self, _first: int, _end: int, spans: Spans) -> EncodedRows:
        groups, data = self._texts.take()
        return encode_groups(self._origin, groups, data, spans)
