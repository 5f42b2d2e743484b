"""Makes random changes to tables, in several sessions whose transactions overlap.

Each session has its own keys, so that sessions never wait for each other. Now and then, when no transaction is open,
the definition of a table changes, or a table is truncated.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tests.campaigns._debezium.tables import Alteration, Table, drawn

SESSIONS = 3
ROWS_MAX = 40
"""One statement changes fewer rows than this."""

Execute = Callable[[str], None]


class Dialect(Protocol):
    """What differs from database to database. `begin` is the statement that begins a transaction.

    If `scans` is true, a statement that changes several rows may wait for locks of rows that it does not change.
    """

    begin: str
    scans: bool

    def alteration(self, random: Random, table: Table) -> Alteration:
        """Returns a random change of a table's definition."""


@dataclass(slots=True)
class _Session:
    """A session. Its rows have numbers. `rows` has the numbers of those that exist now, by table, and `before` of those
    that existed before the open transaction.
    """

    number: int
    execute: Execute
    rows: dict[str, set[int]]
    open: bool = False
    before: dict[str, set[int]] = field(default_factory=dict)
    savepoints: list[tuple[str, dict[str, set[int]]]] = field(default_factory=list)


class Workload:
    """Writes to tables. `counts` counts what was done, by kind. `changes` is the number of changed rows, including the
    rows of transactions that were rolled back.
    """

    def __init__(self, random: Random, dialect: Dialect, tables: Sequence[Table], executes: Sequence[Execute]) -> None:
        self._random, self._dialect, self._tables = random, dialect, tables
        self._sessions = [
            _Session(number, execute, {table.name: set() for table in tables})
            for number, execute in enumerate(executes)
        ]
        self._next = 0
        self.counts = Counter[str]()
        self.changes = 0

    def fill(self, rows: int) -> None:
        """Inserts rows into each table."""
        for table in self._tables:
            for session in self._sessions:
                numbers = [self._number(session) for _ in range(rows // SESSIONS + 1)]
                self._insert(session, table, numbers)
        self.changes = 0

    def run(self, changes: int, alterations: int) -> None:
        """Changes about `changes` rows. Between these changes, alters or truncates a table `alterations` times."""
        every, before, altered = changes // (alterations + 1), self.changes, 0
        while self.changes < before + changes:
            if self.changes >= before + every * (altered + 1):
                self._alter()
                altered += 1
            self._step(self._random.choice(self._sessions))
        for session in self._sessions:
            self._end(session)

    def _step(self, session: _Session) -> None:
        draw = self._random.random()
        if not session.open:
            session.execute(self._dialect.begin)
            session.open, session.before = True, _copied(session.rows)
        elif draw < 0.15:
            self._end(session)
            return
        elif draw < 0.2:
            name = f"s{self._random.randrange(3)}"
            session.execute(f"SAVEPOINT {name}")
            session.savepoints.append((name, _copied(session.rows)))
            return
        elif draw < 0.25 and session.savepoints:
            self._roll_back_to(session)
            return
        self._write(session)

    def _end(self, session: _Session) -> None:
        if not session.open:
            return
        if self._random.random() < 0.1:
            session.execute("ROLLBACK")
            session.rows = session.before
            self.counts["rollbacks"] += 1
        else:
            session.execute("COMMIT")
            self.counts["commits"] += 1
        session.open, session.savepoints = False, []

    def _roll_back_to(self, session: _Session) -> None:
        name, rows = session.savepoints[-1]
        session.execute(f"ROLLBACK TO SAVEPOINT {name}")
        session.rows = _copied(rows)
        self.counts["savepoints rolled back"] += 1

    def _write(self, session: _Session) -> None:
        table = self._random.choice(self._tables)
        rows = sorted(session.rows[table.name])
        many = self._random.randrange(2, ROWS_MAX) if self._random.random() < 0.3 else 1
        draw = self._random.random()
        if many > 1 and self._dialect.scans:
            for other in self._sessions:
                if other is not session:
                    self._end(other)
        if len(rows) < 5 or draw < 0.3:
            self._insert(session, table, [self._number(session, table) for _ in range(many)])
        elif draw < 0.7:
            self._update(session, table, self._random.sample(rows, min(many, len(rows))))
        elif draw < 0.78:
            self._move(session, table, self._random.choice(rows))
        else:
            self._delete(session, table, self._random.sample(rows, min(many, len(rows) // 2)))

    def _number(self, session: _Session, table: Table | None = None) -> int:
        """Returns a number that no row has. It is often the number of a row that was deleted before."""
        if table is not None and self._next > 10 and self._random.random() < 0.5:
            number = self._random.randrange(self._next) * SESSIONS + session.number
            if number not in session.rows[table.name]:
                return number
        self._next += 1
        return self._next * SESSIONS + session.number

    def _insert(self, session: _Session, table: Table, numbers: Sequence[int]) -> None:
        numbers = sorted(set(numbers))
        names = [column.name for column in table.key] + [*table.columns]
        rows = ",".join(
            f"({','.join([*table.key_values(number), *drawn(self._random, table.columns)])})" for number in numbers
        )
        session.execute(f"INSERT INTO {table.name} ({','.join(names)}) VALUES {rows}")
        session.rows[table.name].update(numbers)
        self._count("inserts", len(numbers))

    def _update(self, session: _Session, table: Table, numbers: Sequence[int]) -> None:
        count = self._random.randrange(1, len(table.columns) + 1)
        chosen = self._random.sample(sorted(table.columns), count if self._random.random() < 0.5 else 1)
        values = drawn(self._random, {name: table.columns[name] for name in chosen})
        assignments = ", ".join(f"{name} = {value}" for name, value in zip(chosen, values, strict=True))
        session.execute(f"UPDATE {table.name} SET {assignments} WHERE {_any(table, numbers)}")
        self._count("updates", len(numbers))

    def _move(self, session: _Session, table: Table, number: int) -> None:
        new = self._number(session, table)
        names = [column.name for column in table.key]
        assignments = [f"{name} = {value}" for name, value in zip(names, table.key_values(new), strict=True)]
        if self._random.random() < 0.5:
            name = self._random.choice(sorted(table.columns))
            assignments.append(f"{name} = {table.columns[name].draw(self._random)}")
        session.execute(f"UPDATE {table.name} SET {', '.join(assignments)} WHERE {table.where(number)}")
        session.rows[table.name] ^= {number, new}
        self._count("moves", 1)

    def _delete(self, session: _Session, table: Table, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        session.execute(f"DELETE FROM {table.name} WHERE {_any(table, numbers)}")
        session.rows[table.name].difference_update(numbers)
        self._count("deletes", len(numbers))

    def _count(self, what: str, rows: int) -> None:
        self.counts[what] += rows
        self.changes += rows

    def _alter(self) -> None:
        for session in self._sessions:
            self._end(session)
        table = self._random.choice(self._tables)
        session = self._sessions[0]
        if self._random.random() < 0.15:
            session.execute(f"TRUNCATE TABLE {table.name}")
            for of in self._sessions:
                of.rows[table.name] = set()
            self.counts["truncates"] += 1
            return
        change = self._dialect.alteration(self._random, table)
        session.execute(change.sql)
        table.columns = dict(change.columns)
        self.counts["alterations"] += 1


def _copied(rows: dict[str, set[int]]) -> dict[str, set[int]]:
    return {name: set(numbers) for name, numbers in rows.items()}


def _any(table: Table, numbers: Sequence[int]) -> str:
    return " OR ".join(f"({table.where(number)})" for number in numbers)
