"""The *oracle* reads the server's log a second time, through a slot of its own, and computes which rows the changelog
must have.

While the campaign runs, the oracle stores the raw frames of complete transactions in a file. Afterwards, it decodes the
frames and computes the rows. For this, it uses the product's replication stream and its decoder, `pgoutput.decode`, but
none of the code that comes after the decoder in the product.
"""

import json
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import psycopg

from changelog.connectors.capture.rows import row_change
from changelog.connectors.sources.postgres.decode import messages, pgoutput
from changelog.connectors.sources.postgres.stream.pump import Stream
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import key_text, partition

TRUNCATE_KEY = "\0truncate"

_HEADER = 25
_START = struct.Struct("!xQ")
_COMMIT_END = struct.Struct("!x8x8x8xcBQQ")
_SIZE = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Table:
    """The key of an entity, and how its rows are distributed to the changelog's partitions. `partitioned` says whether
    its table in PostgreSQL is partitioned, too.
    """

    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    partitions: int
    partitioned: bool = False


TABLES: Mapping[str, Table] = {
    "account": Table(("id",), ("guest_id",), 8),
    "line": Table(("order_id", "line_no"), ("order_id", "line_no"), 3),
    "place": Table(("id", "region"), ("id", "region"), 2, partitioned=True),
    "doc": Table(("id",), ("id",), 1),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """One row that the changelog must have. `version` is that of the new state or deleted row. A truncate has none."""

    commit: int
    ordinal: int
    xid: int
    entity: str
    partition: int
    key: str
    op: str
    identifier: str
    version: int | None


class Oracle:
    """Creates a slot, and copies its replication stream into `file` until `stop`. It survives crashes of the server.

    With `failover`, standbys have the slot, too.
    """

    def __init__(self, dsn: str, file: Path, name: str = "oracle", *, failover: bool = False) -> None:
        self._dsn, self._file, self._name = dsn, file, name
        with psycopg.connect(dsn, autocommit=True) as connection:
            tables = ", ".join(TABLES)
            connection.execute(
                f"CREATE PUBLICATION {name} FOR TABLE {tables} WITH (publish_via_partition_root = true)".encode()
            )
            failover_option = ", failover => true" if failover else ""
            query = f"SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput'{failover_option})"
            self._through = parse_lsn(str(connection.execute(query.encode(), [name]).fetchall()[0][0]))
        self._stopping = threading.Event()
        self._reached = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, lsn: int, timeout_s: float) -> None:
        """Waits until the file has a transaction that ends after `lsn`."""
        with self._reached:
            if not self._reached.wait_for(lambda: self._failure or self._through > lsn, timeout_s):
                raise AssertionError(f"the oracle did not reach {lsn:X} in {timeout_s:.0f} s")
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        """Stops copying the stream."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._file.open("wb") as out:
                while not self._stopping.is_set():
                    try:
                        self._drain(out)
                    except ChangelogError as error:
                        if error.kind not in (Kind.CONNECTION, Kind.IN_USE):
                            raise
                        self._stopping.wait(0.2)
        except BaseException as error:
            with self._reached:
                self._failure = error
                self._reached.notify_all()
            raise

    def _drain(self, out: BinaryIO) -> None:
        """Opens the stream, and copies complete transactions to the file until `stop`."""
        options = {"proto_version": "1", "publication_names": self._name, "messages": "true"}
        connection = ReplicationConnection.connect(self._dsn, settings=SETTINGS)
        with Stream(connection, slot=self._name, start_lsn=self._through, options=options) as stream:
            waiting: list[bytes] = []
            while not self._stopping.is_set():
                for frame in stream.take(0.2):
                    waiting.append(frame)
                    if frame[_HEADER : _HEADER + 1] == b"C":
                        self._keep(out, waiting)
                        waiting.clear()
                stream.confirm(self._through)

    def _keep(self, out: BinaryIO, frames: Sequence[bytes]) -> None:
        """Writes the frames of a transaction to the file, unless they are there already."""
        end = _COMMIT_END.unpack_from(frames[-1])[-1]
        if end <= self._through:
            return
        for frame in frames:
            out.write(_SIZE.pack(len(frame)))
            out.write(frame)
        out.flush()
        with self._reached:
            self._through = end
            self._reached.notify_all()

    def expected(self, since: int) -> Iterator[Expected]:
        """Yields the expected rows of all transactions whose commit is at `since` or later in the server's log, in the
        order of the log. Call this only after `stop`.
        """
        transaction = _Transaction({})
        with self._file.open("rb") as frames:
            while size := frames.read(_SIZE.size):
                frame = frames.read(_SIZE.unpack(size)[0])
                message = pgoutput.decode(frame[_HEADER:])
                transaction.add(message, _START.unpack_from(frame)[0])
                if isinstance(message, messages.Commit):
                    if message.commit_lsn >= since:
                        yield from transaction.rows()
                    transaction = _Transaction(transaction.relations)


@dataclass(frozen=True, slots=True)
class _Record:
    """A change. `start` is the position where its record begins in the server's log. `block` is the number of logical
    messages that come before this change in its transaction.
    """

    message: row_change.Insert | row_change.Update | row_change.Delete | messages.Truncate
    start: int
    ordinal: int
    identifier: str
    block: int


class _Transaction:
    """The changes of one transaction. Their ordinals follow the rules that `Position` states."""

    def __init__(self, relations: dict[int, messages.Relation]) -> None:
        self.relations = relations
        self._commit = self._xid = 0
        self._identifier = ""
        self._records: list[_Record] = []
        self._ordinal = self._block = 0

    def add(self, message: messages.Decoded, start: int) -> None:
        """Notes a message of the transaction. `start` is where the message's record begins in the server's log."""
        match message:
            case messages.Begin():
                self._commit, self._xid = message.final_lsn, message.xid
            case messages.Relation():
                self.relations[message.relid] = message
            case messages.LogicalMessage():
                if message.transactional:
                    self._message(message)
            case row_change.Insert() | row_change.Update() | row_change.Delete() | messages.Truncate():
                self._records.append(_Record(message, start, self._ordinal, self._identifier, self._block))
                self._ordinal += 1

    def _message(self, message: messages.LogicalMessage) -> None:
        """Counts a logical message. If it is a stamp with an identifier, stamps all changes that come after it in the
        server's log, even those that the server delivered before it.
        """
        self._ordinal += 1
        self._block += 1
        if message.prefix == "provenance" and (identifier := json.loads(message.content).get("identifier")):
            self._identifier = identifier
            for number, record in enumerate(self._records):
                if record.start >= message.lsn:
                    self._records[number] = replace(record, identifier=self._identifier, block=self._block)

    def rows(self) -> Iterator[Expected]:
        skipped = False
        for number, record in enumerate(self._records):
            message, ordinal = record.message, record.ordinal
            if skipped:
                skipped = False
                continue
            if isinstance(message, messages.Truncate):
                yield from self._truncated(ordinal, record.identifier, message)
                continue
            relation = self.relations[message.relid]
            table = TABLES[relation.name]
            old = None if isinstance(message, row_change.Insert) else _values(relation, message.old)
            new = None if isinstance(message, row_change.Delete) else _values(relation, message.new)
            if table.partitioned and new is None and (inserted := self._inserted_again(number, relation, table, old)):
                skipped, new, ordinal = True, inserted, ordinal + 1
            yield from self._changed(ordinal, record.identifier, relation.name, old, new)

    def _inserted_again(
        self, number: int, relation: messages.Relation, table: Table, old: Mapping[str, str | None] | None
    ) -> dict[str, str | None] | None:
        """If the change with this number is a delete from a partitioned table, and the next change inserts the same
        key, returns the inserted row. The changelog shows the two changes as one update.
        """
        if number + 1 == len(self._records):
            return None
        deleted, inserted = self._records[number : number + 2]
        if (inserted.ordinal, inserted.block) != (deleted.ordinal + 1, deleted.block):
            return None
        next_message = inserted.message
        if not isinstance(next_message, row_change.Insert) or next_message.relid != relation.relid:
            return None
        values = _values(relation, next_message.new)
        return values if old is not None and _text(old, table.key) == _text(values, table.key) else None

    def _changed(
        self,
        ordinal: int,
        identifier: str,
        entity: str,
        old: Mapping[str, str | None] | None,
        new: Mapping[str, str | None] | None,
    ) -> Iterator[Expected]:
        """Yields the expected rows of one change. If the change moves the row to another key or partition, these are
        two.
        """

        def row(op: str, values: Mapping[str, str | None], half: int = 0) -> Expected:
            table = TABLES[entity]
            number = partition(_text(values, table.partition_by).encode(), table.partitions)
            version = int(values["version"] or 0)
            key = _text(values, table.key)
            return Expected(self._commit, 2 * ordinal + half, self._xid, entity, number, key, op, identifier, version)

        if old is None or new is None:
            yield row("create" if old is None else "delete", old or new or {})
            return
        deleted, created = row("delete", old), row("create", new, 1)
        if (deleted.key, deleted.partition) == (created.key, created.partition):
            yield row("update", new)
        else:
            yield deleted
            yield created

    def _truncated(self, ordinal: int, identifier: str, record: messages.Truncate) -> Iterator[Expected]:
        for relid in record.relids:
            entity = self.relations[relid].name
            for number in range(TABLES[entity].partitions):
                yield Expected(
                    self._commit, 2 * ordinal, self._xid, entity, number, TRUNCATE_KEY, "truncate", identifier, None
                )


def _text(values: Mapping[str, str | None], columns: Sequence[str]) -> str:
    return key_text([values[name] or "" for name in columns])


def _values(relation: messages.Relation, values: Sequence[row_change.Value] | None) -> dict[str, str | None]:
    assert values is not None, "the log lacks an old row, although all tables have REPLICA IDENTITY FULL"
    return {
        column.name: value.decode() if isinstance(value, bytes) else None
        for column, value in zip(relation.columns, values, strict=True)
    }
