"""Turns frames of the replication stream into rows of the changelog. The module does no I/O.

A frame holds one message of pgoutput: a row, or a control message such as the beginning of a transaction. This module
decodes the control messages and passes them to the `Assembly` of the capture core. The `Assembly` puts the rows in
order.
"""

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from changelog.connectors.capture.assembly.assembled import Assembled, EncodedRows, Listener
from changelog.connectors.capture.assembly.assembly import Assembly, AssemblyRun
from changelog.connectors.capture.rows.row_records import Origin, Transaction
from changelog.connectors.capture.rows.spans import Spans
from changelog.connectors.sources.postgres.decode import messages, pgoutput
from changelog.connectors.sources.postgres.decode.binder import Binder
from changelog.connectors.sources.postgres.decode.columnar import Block, encode
from changelog.connectors.sources.postgres.decode.frames import Frames
from changelog.connectors.sources.postgres.decode.messages import DDL_PREFIX, LogicalMessage, Relation
from changelog.connectors.sources.postgres.decode.relations import Relations, altered, retyped
from changelog.connectors.sources.postgres.decode.xids import Xids
from changelog.connectors.sources.postgres.values.definitions import Definitions
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.versions import Versions

_POSTGRES_EPOCH_US = 946_684_800_000_000
_BEGIN = struct.Struct("!xQqI")
_COMMIT = struct.Struct("!xBQQq")


class Assembler:
    """Keeps the state between two calls of `feed`: relations, the open transaction, and what is already published.

    `epoch` returns the epoch of a commit position. `published` is the position up to which rows are already published;
    `partial` says that this position is inside a transaction. `partitioned` names the partitioned tables. `versions`
    knows which columns the changelog has; without it, no changes of columns are announced. `definitions` knows how
    composite types were defined earlier; without it, composite types count as never altered. `rows_max` and `bytes_max`
    limit how much of one transaction is in memory.
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
        self._origin = origin
        self._relations = Relations(binder, entities, partitioned, definitions)
        self._epoch, self._xids = epoch, xids
        self._assembly = Assembly(
            entities=entities, published=published, partial=partial, listener=listener, versions=versions
        )
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._tail: list[bytes] = []

    @property
    def between(self) -> bool:
        """Whether no transaction is open, and no frame waits for the next call of `feed`."""
        return self._assembly.open is None and not self._tail

    @property
    def stop(self) -> ChangelogError | None:
        """The error that the source raises after it has returned everything from `feed`; None if there is no error."""
        return self._assembly.stop

    def feed(self, frames: Sequence[bytes]) -> Assembled:
        """Returns the transactions that are complete with these frames.

        Returns a part of a transaction only if the transaction has `rows_max` rows or `bytes_max` bytes. Raises
        ChangelogError (MALFORMED) for frames that are not valid. Errors of other kinds are stored in `stop` instead,
        and all later calls return nothing.
        """
        if self.stop is not None or not frames:
            return Assembled()
        self._tail += frames
        del frames  # so that memory has only one copy of a large frame while it is decoded
        is_open = self._assembly.open is not None
        block = Frames(self._tail, rows_max=self._rows_max, bytes_max=self._bytes_max, is_open=is_open)
        del self._tail[: block.cut]
        return _Feed(self, block).run()


class _Rows:
    """The rows of one block of frames. `AssemblyRun` says why this object must not refer to the `_Feed`."""

    def __init__(self, origin: Origin, relations: Relations, frames: Frames) -> None:
        self._origin, self._relations, self._frames = origin, relations, frames

    def encode(self, first: int, end: int, spans: Spans) -> EncodedRows:
        frames = self._frames
        numbers = frames.rows[first:end]
        block = Block(data=frames.data, starts=frames.starts[numbers], ends=frames.ends[numbers], spans=spans)
        encoded = encode(self._origin, self._relations.bound, block)
        shapes = self._relations.shapes(encoded.rows.column("entity").unique().to_pylist())
        return replace(encoded, rows=batch.with_encoded_shapes(encoded.rows, shapes))

    def lsn(self, row: int) -> int:
        return self._frames.lsn(self._frames.rows[row])


class _Feed:
    """Passes the content of one block of frames to the assembly."""

    def __init__(self, assembler: Assembler, frames: Frames) -> None:
        self._assembler, self._frames, self._relations = assembler, frames, assembler._relations
        self._inside = assembler._assembly.open is not None
        rows = _Rows(assembler._origin, assembler._relations, frames)
        self._run = AssemblyRun(assembler._assembly, rows.encode, place_of=rows.lsn)
        self._tracked = self._relations.tracked_in(frames)

    def run(self) -> Assembled:
        """Handles the frames in order: decodes each control message, and only counts the rows between them."""
        next_frame, take, frames = 0, self._run.take, self._frames
        try:
            if self._tracked and self._inside:
                self._settle()
            for control in frames.controls.tolist():
                take(control - next_frame)
                next_frame = control + 1
                self._control(control, frames.payload(control))
            take(frames.cut - next_frame)
            self._run.flush()
        except ChangelogError as error:
            if error.kind is Kind.MALFORMED:
                raise
            self._run.fail(error)
        return self._run.result()

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
        full_xid = self._assembler._xids.full(xid)
        self._run.begin(
            Transaction(
                xid=full_xid,
                name=str(full_xid),
                epoch=self._assembler._epoch(final_lsn),
                commit=final_lsn,
                committed_at=committed_at + _POSTGRES_EPOCH_US,
            )
        )
        self._relations.enter(xid, final_lsn, self._frames, frame)
        if self._tracked:
            self._settle()

    def _commit(self, payload: bytes) -> None:
        try:
            _, _, end_lsn, _ = _COMMIT.unpack(payload)
        except struct.error as error:
            raise ChangelogError(Kind.MALFORMED, "a Commit message has the wrong length") from error
        self._run.commit(end_lsn)

    def _relation(self, payload: bytes) -> None:
        relation = pgoutput.decode(payload)
        assert isinstance(relation, Relation)
        table = relation.namespace, relation.name

        def changed(before: Relation) -> None:
            self._run.alter(table, altered(before, relation, self._run.here()))

        described = self._relations.describe(relation, self._flush, changed)
        if described is not None and described.has_key:
            self._run.describe(described.entity, described.table)
        elif described is not None:
            # Without its key columns, the table's rows cannot be published, so the stream stops at the next row.
            self._run.set_columns(described.entity, described.table)
        self._tracked = self._tracked or self._relations.tracked_in(self._frames)

    def _settle(self) -> None:
        """Makes sure that the open transaction's rows are decoded with the composite types as this transaction saw
        them.
        """
        for described in self._relations.settle(self._flush):
            self._run.alter(described.entity.table, retyped(described, self._run.here()))
            self._run.set_columns(described.entity, described.table)

    def _flush(self, *, but_a_delete: bool = False) -> None:
        """Encodes the pending rows.

        With `but_a_delete`, a delete at the end of these rows stays pending. It may belong to the insert that follows
        it: a row that moves to another partition is a delete and an insert.
        """
        last = self._run.rows_taken - 1
        is_delete = but_a_delete and self._run.pending and self._frames.kind(self._frames.rows[last]) == ord("D")
        self._run.flush(but_last=int(is_delete))

    def _message(self, payload: bytes) -> None:
        """Passes a logical message to the assembly, if the message belongs to a transaction.

        PostgreSQL sorts the changes of a transaction and its savepoints by their LSN. A row has the LSN at which its
        record begins, and a message has the LSN at which its record ends. So a message and the row right after it have
        the same LSN. If a savepoint begins between the two, the server may deliver the row before the message. So if a
        row with the message's LSN was delivered before the message, it was in fact written after the message.
        """
        message = pgoutput.decode(payload)
        assert isinstance(message, LogicalMessage)
        if not message.transactional:
            return
        change = self._run.message(message.prefix, message.content, place=message.lsn, settle=self._settle)
        if change is not None and message.prefix == DDL_PREFIX:
            self._run.statement(message.content, change)

    def _other(self, message: messages.Decoded) -> None:
        """Ignores messages that publish nothing. Raises ChangelogError (MALFORMED) for any other kind."""
        if not isinstance(message, messages.ReplicationOrigin | messages.TypeName | messages.StreamAbort):
            raise ChangelogError(
                Kind.MALFORMED,
                f"the stream sent {type(message).__name__}, a message of an option that we did not request",
            )
