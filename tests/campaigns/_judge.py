"""Compares a changelog with the rows that `_oracle` expects. Also checks the order of its rows, and compares the last
state of each key with the tables.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import psycopg
from psycopg import sql

from changelog.connectors.capture.rows.codec import canonical
from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS, codec_for
from changelog.connectors.sources.postgres.values.types import TypeCatalog
from changelog.envelope.key import key_text
from tests.campaigns._oracle import TABLES, TRUNCATE_KEY, Expected

_COLUMNS = ("entity", "partition", "key", "op", "position", "transaction", "identifier", "current", "original", "moved")
_VERSION = re.compile(r'"version":(\d+)')
_STAMP = re.compile(r'"stamp":"([^"]*)"')
_EXAMPLES_MAX = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a changelog."""

    entity: str
    partition: int
    key: str
    op: str
    position: str
    transaction: str
    identifier: str
    current: str | None
    original: str | None
    moved: str | None

    @property
    def place(self) -> tuple[int, int]:
        """The commit and the ordinal in the position of the row."""
        _, commit, ordinal = self.position.split("/")
        return int(commit, 16), int(ordinal, 16)


@dataclass(slots=True)
class State:
    """The last state of a key. After a delete, `current` is None, and `version` is the version of the deleted row."""

    current: str | None
    version: int
    partition: int


@dataclass(slots=True)
class Verdict:
    """The result: how many rows were compared, and how many faults of each kind were found. `faults` has examples."""

    rows: int = 0
    changes: int = 0
    reads: int = 0
    transactions: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    stale: int = 0
    wrong: int = 0
    faults: list[str] = field(default_factory=list)

    def note(self, fault: str, row: object) -> None:
        """Adds an example of a fault, unless there are enough examples."""
        if len(self.faults) < _EXAMPLES_MAX:
            self.faults.append(f"{fault}: {str(row)[:600]}")

    def check(self) -> None:
        """Raises AssertionError if any fault was noted."""
        if self.faults:
            figures = {name: getattr(self, name) for name in ("lost", "repeated", "reordered", "stale", "wrong")}
            raise AssertionError("\n".join([f"{figures} of {self.rows} rows", *self.faults]))


def rows(path: Path) -> Iterator[Row]:
    """The rows of a file log (a changelog in Parquet files), in the order of the log."""
    for batch in read_log(path):
        yield from map(Row, *(batch.column(name).to_pylist() for name in _COLUMNS))


class Fold:
    """Follows the changelog like a consumer, and keeps the last state of each key.

    Notes a fault if a state comes after a newer state of the same key. Also notes a fault if the original in a row is
    not, byte for byte, the previous state of its key.
    """

    def __init__(self, verdict: Verdict) -> None:
        self.states: dict[tuple[str, str], State] = {}
        self._verdict = verdict
        self._last: dict[tuple[str, int], str] = {}
        self._floor: dict[str, int] = {}

    def add(self, row: Row) -> None:
        """Checks the next row of the log, and applies it."""
        self._check_order(row)
        if row.key == TRUNCATE_KEY:
            self._truncate(row)
        else:
            self._state(row)

    def _check_order(self, row: Row) -> None:
        last = self._last.get((row.entity, row.partition), "")
        if row.position == last:
            self._verdict.repeated += 1
            self._verdict.note("repeated position", row)
        elif row.position < last:
            self._verdict.reordered += 1
            self._verdict.note(f"position after {last}", row)
        self._last[row.entity, row.partition] = row.position

    def _truncate(self, row: Row) -> None:
        """Clears the states of the entity. The campaigns write a version into the stamp of a truncate. No row that the
        truncate removed has a higher version.
        """
        _, _, floor = row.identifier.partition("floor-")
        self._floor[row.entity] = int(floor or 0)
        for (entity, _), state in self.states.items():
            if entity == row.entity:
                state.current = None

    def _state(self, row: Row) -> None:
        """Compares the row with its key's previous state, and stores the new state."""
        key = (row.entity, row.key)
        before = self.states.get(key)
        json_text = row.current if row.current is not None else row.original
        assert json_text is not None
        match = _VERSION.search(json_text)
        assert match is not None
        version = int(match[1])
        floor = max(self._floor.get(row.entity, 0), before.version if before else 0)
        same_state = row.op in ("read", "delete") and before is not None and before.current is not None
        moved = row.moved is not None and "movedFrom" in row.moved
        if version < floor or (version == floor and before and not (same_state or (moved and row.op == "create"))):
            self._verdict.stale += 1
            self._verdict.note(f"the row comes after version {floor}", row)
        self._check_original(row, before)
        self._check_stamp(row)
        self.states[key] = State(row.current, version, row.partition)

    def _check_original(self, row: Row, before: State | None) -> None:
        if row.op not in ("update", "delete") or before is None:
            return
        if before.current is None or before.partition != row.partition or row.original is None:
            self._verdict.wrong += 1
            self._verdict.note("the row changes or deletes a state that does not exist", row)
        elif before.current != row.original:
            self._verdict.wrong += 1
            self._verdict.note(f"the original is not {before.current[:300]}", row)

    def _check_stamp(self, row: Row) -> None:
        if row.op in ("create", "update") and row.current is not None:
            match = _STAMP.search(row.current)
            if match is None or match[1] != row.identifier:
                self._verdict.wrong += 1
                self._verdict.note(f"the provenance has the stamp {row.identifier}, but the row has another", row)


def judge(dsn: str, log: Path, expected: Iterator[Expected]) -> Verdict:
    """Judges the rows of a file log with `judge_rows`, and returns its verdict."""
    return judge_rows(dsn, rows(log), expected, Verdict())


def judge_rows(dsn: str, log: Iterator[Row], expected: Iterator[Expected], verdict: Verdict) -> Verdict:
    """Raises AssertionError if the rows differ from `expected`, contradict each other, or do not end with the states
    that the tables have.

    While the iterator `log` reads the rows, it may add faults of its own to `verdict`.
    """
    fold = Fold(verdict)
    compare(log, expected, verdict, fold)
    compare_tables(dsn, fold, verdict)
    verdict.check()
    return verdict


def compare(log: Iterator[Row], expected: Iterator[Expected], verdict: Verdict, fold: Fold) -> None:
    """Compares the log with the expected rows. Rows that were read from tables are not expected: they are only counted
    and applied to `fold`.
    """
    expected_rows = chain(expected, [None])
    next_expected = next(expected_rows)
    last_commit = 0
    for row in log:
        verdict.rows += 1
        fold.add(row)
        if row.op == "read":
            verdict.reads += 1
            continue
        verdict.changes += 1
        while next_expected is not None and (next_expected.commit, next_expected.ordinal) < row.place:
            verdict.lost += 1
            verdict.note("lost", next_expected)
            next_expected = next(expected_rows)
        if next_expected is None or (next_expected.commit, next_expected.ordinal) > row.place:
            verdict.repeated += 1
            verdict.note("the row was never committed, or it is repeated", row)
            continue
        if next_expected.commit != last_commit:
            verdict.transactions += 1
            last_commit = next_expected.commit
        _compare_row(row, next_expected, verdict)
        next_expected = next(expected_rows)
    while next_expected is not None:
        verdict.lost += 1
        verdict.note("lost", next_expected)
        next_expected = next(expected_rows)


def _compare_row(row: Row, expected: Expected, verdict: Verdict) -> None:
    text = row.current if row.current is not None else row.original
    match = None if text is None else _VERSION.search(text)
    version = int(match[1]) if match else None
    actual = (row.entity, row.partition, row.key, row.op, row.identifier, int(row.transaction) & 0xFFFFFFFF, version)
    if actual != (
        expected.entity,
        expected.partition,
        expected.key,
        expected.op,
        expected.identifier,
        expected.xid,
        expected.version,
    ):
        verdict.wrong += 1
        verdict.note(f"{expected} expected", row)


def compare_tables(dsn: str, fold: Fold, verdict: Verdict) -> None:
    """Compares the last states in the log with the tables. Converts the tables' values with the product's code."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, value in SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        types = TypeCatalog(lambda query, values: connection.execute(query.encode(), values).fetchall())
        for entity in TABLES:
            folded = {key: state.current for (name, key), state in fold.states.items() if name == entity}
            table = _table(connection, types, entity)
            for key in folded.keys() | table.keys():
                if folded.get(key) is None and key not in table:
                    continue
                if not _equal(folded.get(key), table.get(key)):
                    verdict.wrong += 1
                    verdict.note(f"{entity} {key} is {str(table.get(key))[:400]} in the table", folded.get(key))


def _equal(folded: str | None, row: str | None) -> bool:
    return folded == row or (folded is not None and row is not None and json.loads(folded) == json.loads(row))


def _table(connection: psycopg.Connection, types: TypeCatalog, entity: str) -> dict[str, str]:
    """Returns the rows of a table as JSON, by key."""
    cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier("public", entity)))
    result = cursor.pgresult
    assert result is not None
    names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
    codecs = [codec_for(types.resolve(result.ftype(column)), result.fmod(column)) for column in range(result.nfields)]
    key_columns = [names.index(name) for name in TABLES[entity].key]
    rows = {}
    for number in range(result.ntuples):
        values = [result.get_value(number, column) for column in range(result.nfields)]
        parts = [
            json.dumps(name).encode() + b":" + (b"null" if value is None else codec.to_json(value))
            for name, value, codec in zip(names, values, codecs, strict=True)
        ]
        key = key_text([canonical(values[column] or b"", codecs[column]) for column in key_columns])
        rows[key] = (b"{" + b",".join(parts) + b"}").decode()
    return rows
