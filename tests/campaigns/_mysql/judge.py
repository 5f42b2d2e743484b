"""Judges a changelog by the versions of its rows. In the database, triggers number the changes of each key: this number
is the version.

In the changelog, the changes of each key must have consecutive versions. A row that was read from its table must have
the version of the key's last published change: then the row includes exactly the changes that were published before it.
At the end, the changelog must have the last version of each key, and the last states must equal the rows of the tables.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymysql.cursors import Cursor, DictCursor

from changelog.connectors.sinks.files.log import read_log
from tests.campaigns._mysql.tables import TABLES, Table

TRUNCATE = "truncate"
_COLUMNS = ("entity", "partition", "op", "position", "current", "original")
_BY_NAME = {table.name: table for table in TABLES}
_EXAMPLES_MAX = 10

Row = dict[str, Any]
Name = tuple[str, str]
"""The name of a key: its entity, and a text that has the key's values with commas between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The version of each key when the service started. All of these keys had rows: none had been deleted by then."""

    versions: Mapping[Name, int]

    @classmethod
    def of(cls, cursor: Cursor) -> "Start":
        """Reads the present versions."""
        return cls(versions=counters(cursor))


@dataclass(slots=True)
class Verdict:
    """How many rows were judged, and how many faults of each kind were found. `faults` has examples."""

    changes: int = 0
    reads: int = 0
    truncates: int = 0
    transactions: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    stale: int = 0
    wrong: int = 0
    faults: list[str] = field(default_factory=list)

    def note(self, kind: str, row: object) -> None:
        """Counts a fault, and adds it as an example, unless there are enough examples."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.faults) < _EXAMPLES_MAX:
            self.faults.append(f"{kind}: {str(row)[:700]}")

    def check(self) -> None:
        """Raises AssertionError if any fault was noted."""
        if self.faults:
            figures = {kind: getattr(self, kind) for kind in ("lost", "repeated", "reordered", "stale", "wrong")}
            raise AssertionError("\n".join([str(figures), *self.faults]))


class Reader:
    """Reads the changelog as a consumer does.

    `states` has the last published row of each key, or None after a delete. `versions` has the last version of each
    key. `transactions` maps the number of each published transaction (in its rows' column `txn`) to its commit.
    """

    def __init__(self, start: Start, verdict: Verdict) -> None:
        self.versions = dict(start.versions)
        self.states: dict[Name, Row | None] = {}
        self._alive = set(start.versions)
        self._verdict = verdict
        self._places: dict[tuple[str, int], str] = {}
        self._commit = ""
        self.transactions: dict[int, str] = {}

    def add(
        self, entity: str, partition: int, op: str, position: str, current: Row | None, original: Row | None
    ) -> None:
        """Judges the next row of the changelog, and applies it."""
        text = f"{entity} {op} {position} {current} {original}"
        self._check_place(entity, partition, position, text)
        if op == TRUNCATE:
            self._truncate(entity, partition)
            return
        row = current if current is not None else original
        assert row is not None, text
        name = name_of(_BY_NAME[entity], row)
        faults = self._faults(name, op, row, original)
        for kind in faults:
            self._verdict.note(kind, f"{text}; after version {self.versions.get(name, 0)}, {self.states.get(name)}")
        self._apply(name, op, row)
        if op in ("create", "update"):
            self._check_transaction(row["txn"], position, text)

    def _check_place(self, entity: str, partition: int, position: str, text: str) -> None:
        if position <= self._places.get((entity, partition), "") or position[:25] < self._commit:
            self._verdict.note("reordered", f"{text}; after {self._commit}")
        self._places[entity, partition] = position
        self._transactions_seen(position[:25])

    def _transactions_seen(self, commit: str) -> None:
        self._verdict.transactions += commit != self._commit
        self._commit = commit

    def _truncate(self, entity: str, partition: int) -> None:
        if partition:
            return
        self._verdict.truncates += 1
        self._alive = {name for name in self._alive if name[0] != entity}
        self.states = {name: row for name, row in self.states.items() if name[0] != entity}

    def _faults(self, name: Name, op: str, row: Row, original: Row | None) -> Iterator[str]:
        last, alive = self.versions.get(name, 0), name in self._alive
        if alive == (op == "create"):
            yield "stale" if op == "read" else "wrong"
        if op == "read":
            if row["version"] != last:
                yield "stale"
            return
        number = row["version"] + (op == "delete")
        if number != last + 1:
            yield "lost" if number > last + 1 else "repeated"
        before = self.states.get(name)
        if op != "create" and before is not None and (original is None or before.items() - original.items()):
            yield "wrong"

    def _apply(self, name: Name, op: str, row: Row) -> None:
        if op == "delete":
            self.versions[name] = row["version"] + 1
            self.states[name] = None
            self._alive.discard(name)
        else:
            self.versions[name] = row["version"]
            self.states[name] = row
            self._alive.add(name)

    def _check_transaction(self, txn: int, position: str, text: str) -> None:
        """Notes a fault if the transaction's first row had another commit in its position than this row."""
        commit = self.transactions.setdefault(txn, position[:25])
        if commit != position[:25]:
            self._verdict.note("wrong", f"{text}; other rows of its transaction are at {commit}")


def judge(cursor: DictCursor, log: Path, start: Start, rolled_back: Set[int]) -> Verdict:
    """Compares a file log with the database. Raises AssertionError if it finds a fault. Nothing may write to the log or
    to the database meanwhile.

    `rolled_back` has the numbers of XA transactions that were rolled back. No row may have such a number in `txn`.
    """
    verdict = Verdict()
    reader = Reader(start, verdict)
    for row in _rows(log):
        verdict.reads += row[2] == "read"
        verdict.changes += row[2] != "read"
        reader.add(*row)
    for txn in rolled_back & reader.transactions.keys():
        verdict.note("wrong", f"transaction {txn} was rolled back, but is published at {reader.transactions[txn]}")
    _compare(counters(cursor), reader.versions, "lost", verdict)
    published = {name: row for name, row in reader.states.items() if row is not None}
    _compare(_tables(cursor), published, "wrong", verdict)
    verdict.check()
    return verdict


def _rows(log: Path) -> Iterator[tuple[str, int, str, str, Row | None, Row | None]]:
    for batch in read_log(log):
        columns = (batch.column(name).to_pylist() for name in _COLUMNS)
        for entity, partition, op, position, current, original in zip(*columns, strict=True):
            if entity in _BY_NAME:
                yield entity, partition, op, position, _parsed(current), _parsed(original)


def _parsed(text: str | None) -> Row | None:
    row: Row | None = None if text is None else json.loads(text)
    return row


def _compare(database: Mapping[Name, Any], changelog: Mapping[Name, Any], kind: str, verdict: Verdict) -> None:
    for name in database.keys() | changelog.keys():
        if database.get(name) != changelog.get(name):
            verdict.note(
                kind, f"{name} is {database.get(name)} in the database, {changelog.get(name)} in the changelog"
            )


def name_of(table: Table, row: Row) -> Name:
    """Returns the name of a row's key."""
    return table.name, ",".join(str(row[column]) for column in table.key)


def counters(cursor: Cursor) -> dict[Name, int]:
    """Returns the versions of all keys. The triggers keep them in the table `counter`."""
    cursor.execute("SELECT entity, name, version FROM counter")
    rows: Iterable[Any] = cursor.fetchall()
    values = (row.values() if isinstance(row, dict) else row for row in rows)
    return {(entity, name): version for entity, name, version in values}


def _tables(cursor: DictCursor) -> dict[Name, Row]:
    rows: dict[Name, Row] = {}
    for table in TABLES:
        cursor.execute(f"SELECT * FROM {table.name}")
        rows |= {name_of(table, row): row for row in cursor.fetchall()}
    return rows
