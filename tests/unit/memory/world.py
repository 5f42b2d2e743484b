"""A tiny database in memory: tables, transactions that commit before they are visible, and a log.

A commit is in the log at once, but readers of the tables see it only later. Until then, other writers cannot change the
rows that it changed, as in a real database. Some edits are not logged at all.

A transaction's id is its position in the log. In PostgreSQL, ids follow the order in which transactions begin. The
shared code and the drift comparison must work with both kinds of ids.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from threading import RLock

import numpy as np

from changelog.connectors.capture.tables.windows import Ints, Mask
from changelog.envelope.signal import PREFIX as SIGNAL_PREFIX
from changelog.envelope.signal import Signal, encode
from changelog.envelope.stamp import PREFIX as STAMP_PREFIX

KEYS = 24
"""Rows have keys from 0 to KEYS - 1."""

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RowEdit:
    """An insert, update or delete of a row. `columns` are the columns that the table had at that time."""

    table: str
    columns: tuple[str, ...]
    key: int
    old: Row | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A message in a transaction."""

    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Logged:
    """A transaction in the log. Its id is `commit`, and it ends at the position `end`, before the next transaction."""

    commit: int
    end: int
    events: tuple[RowEdit | LogMessage, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot. It sees the commits before `end`, except those in `unseen`. Implements `windows.Visibility`."""

    end: int
    unseen: frozenset[int]

    def misses(self, ids: Ints) -> Mask:
        mask: Mask = (ids >= self.end) | np.isin(ids, list(self.unseen))
        return mask

    def unseen_before(self, horizon: int) -> tuple[int, ...]:
        return tuple(sorted(commit for commit in self.unseen if commit < horizon))

    def shows(self, commit: int) -> bool:
        return commit < self.end and commit not in self.unseen


@dataclass(slots=True)
class Table:
    """A table. For each key, `versions` has its rows and the commits that made them, oldest first; None is a delete.

    Initial rows and unlogged edits have the commit 0.
    """

    name: str
    columns: tuple[str, ...] = ("id", "status")
    versions: dict[int, list[tuple[int, Row | None]]] = field(default_factory=dict)
    locks: int = 0

    def rows(self, snapshot: Seen) -> dict[int, Row]:
        """Returns the rows that the snapshot sees, by key."""
        last = {
            key: next((row for commit, row in reversed(versions) if commit == 0 or snapshot.shows(commit)), None)
            for key, versions in self.versions.items()
        }
        return {key: row for key, row in sorted(last.items()) if row is not None}


class World:
    """The database. A source may read its log only from the position `confirmed` on.

    Threads that share the database must hold its `lock`.
    """

    def __init__(self, random: Random, tables: tuple[str, ...]) -> None:
        self._random = random
        self.lock = RLock()
        self.tables = {name: Table(name) for name in tables}
        self.log: list[Logged] = []
        self.end, self.confirmed = 100, 99
        self.unlogged: list[tuple[int, str, int]] = []
        """The unlogged edits: where the log ended at the time of the edit, the table, and the key."""
        self._last_number = self._counter = 0
        self._open: dict[int, list[RowEdit | LogMessage]] = {}
        self._unseen: dict[int, tuple[RowEdit | LogMessage, ...]] = {}
        for name in tables:
            for key in random.sample(range(KEYS), KEYS // 2):
                self._put(name, key, 0, {"id": key, "status": f"first {key}"})

    # For sources

    def snapshot(self) -> Seen:
        """Returns a snapshot of the transactions that are visible now."""
        return Seen(self.end, frozenset(self._unseen))

    def emit(self, prefix: str, content: bytes) -> int:
        """Commits a transaction with only this message, and returns the new end of the log."""
        number = self._begin()
        self._open[number].append(LogMessage(prefix, content))
        self._commit(number)
        return self.end

    def show_messages(self) -> None:
        """Makes those commits visible that contain only messages."""
        self._unseen = {
            commit: events
            for commit, events in self._unseen.items()
            if any(isinstance(event, RowEdit) for event in events)
        }

    # Changes of the world

    def change(self, name: str, rows: Mapping[int, Row | None], *, seen: bool = True) -> None:
        """Commits these rows of a table in one transaction. The transaction is visible at once if `seen` is true.

        A row that is None deletes the key.
        """
        number = self._begin()
        for key, row in rows.items():
            edit = RowEdit(name, self.tables[name].columns, key, self._current(name, key, number), row)
            self._open[number].append(edit)
        commit = self._commit(number)
        if seen:
            del self._unseen[commit]

    def edit_unlogged(self, name: str, key: int, row: Row | None) -> None:
        """Changes a row without a trace in the log."""
        self.unlogged.append((self.end, name, key))
        self._put(name, key, 0, row)

    def step(self) -> None:
        """Does one random thing, such as a write, a commit or a signal."""
        often = [self._write] * 10 + [self._commit_one] * 9 + [self._show_one] * 8
        self._random.choice([*often, self._roll_back, self._edit_one_unlogged, self._alter, self._signal])()

    def settle(self) -> None:
        """Commits every open transaction, resumes paused entities, and makes everything visible."""
        for number in list(self._open):
            self._commit(number)
        self._send("resume", None)
        self._unseen.clear()

    def rebuild(self) -> None:
        """Sends signals to read every table again. These reads find the unlogged edits."""
        for name in self.tables:
            self._send("rebuild", name)
        self._unseen.clear()

    def show_all(self) -> None:
        """Makes every commit visible."""
        self._unseen.clear()

    def transactions(self) -> Iterator[Logged]:
        """Yields the transactions in the log that changed rows."""
        return (logged for logged in self.log if any(isinstance(event, RowEdit) for event in logged.events))

    def _write(self) -> None:
        """Begins a transaction with a few changes, sometimes with a stamp among them."""
        number, random = self._begin(), self._random
        for _ in range(random.choice([1, 1, 2, 5, 12])):
            name, key = random.choice(list(self.tables)), random.randrange(KEYS)
            if self._locked(name, key, but=number):
                continue
            before = self._current(name, key, number)
            is_deletion = before is not None and random.random() < 0.4
            self._counter += 1
            columns = self.tables[name].columns
            row = {"id": key, "status": f'it\'s "{self._counter}"', "note": f"n{self._counter}"}
            after = None if is_deletion else {column: row[column] for column in columns}
            self._open[number].append(RowEdit(name, columns, key, before, after))
            if random.random() < 0.2:
                stamp = b'{"serviceName":"till","apiVersion":"v1","identifier":"%d"}' % self._counter
                self._open[number].append(LogMessage(STAMP_PREFIX, stamp))

    def _commit_one(self) -> None:
        if self._open:
            self._commit(self._random.choice(list(self._open)))

    def _show_one(self) -> None:
        if self._unseen:
            del self._unseen[self._random.choice(list(self._unseen))]

    def _roll_back(self) -> None:
        if self._open:
            del self._open[self._random.choice(list(self._open))]

    def _edit_one_unlogged(self) -> None:
        name, key = self._random.choice(list(self.tables)), self._random.randrange(KEYS)
        if not self._locked(name, key):
            before = self.tables[name].rows(self.snapshot()).get(key)
            self.edit_unlogged(name, key, None if before is not None else {"id": key, "status": "unlogged"})

    def _alter(self) -> None:
        """Adds a column to a table that no transaction writes to and no source reads."""
        table = self._random.choice(list(self.tables.values()))
        pending = [*self._open.values(), *self._unseen.values()]
        busy = any(isinstance(event, RowEdit) and event.table == table.name for events in pending for event in events)
        if "note" not in table.columns and not busy and not table.locks:
            table.columns = (*table.columns, "note")

    def _signal(self) -> None:
        entity = self._random.choice(list(self.tables))
        do = self._random.choice(["rebuild", "republish", "keys", "keys", "pause", "resume", "cancel"])
        if do == "keys":
            self._send("republish", entity, tuple(str(key) for key in self._random.sample(range(KEYS), 4)))
        else:
            self._send(do, entity)

    def _send(self, do: str, entity: str | None, keys: tuple[str, ...] | None = None) -> None:
        self._counter += 1
        signal = Signal(do=do, id=f"s{self._counter}", entity=entity, keys=keys)  # type: ignore[arg-type]
        self.emit(SIGNAL_PREFIX, encode(signal, None))

    def _begin(self) -> int:
        self._last_number += 1
        self._open[self._last_number] = []
        return self._last_number

    def _commit(self, number: int) -> int:
        events, commit = tuple(self._open.pop(number)), self.end
        self._unseen[commit] = events
        self.log.append(Logged(commit, commit + 1 + len(events), events))
        self.end += 2 + len(events)
        for event in events:
            if isinstance(event, RowEdit):
                self._put(event.table, event.key, commit, event.new)
        return commit

    def _put(self, name: str, key: int, commit: int, row: Row | None) -> None:
        self.tables[name].versions.setdefault(key, []).append((commit, row))

    def _locked(self, name: str, key: int, *, but: int = 0) -> bool:
        others = [*(events for number, events in self._open.items() if number != but), *self._unseen.values()]
        touched = (event for events in others for event in events if isinstance(event, RowEdit))
        return any((event.table, event.key) == (name, key) for event in touched)

    def _current(self, name: str, key: int, number: int) -> Row | None:
        """Returns the row as the open transaction `number` sees it."""
        edits = [e for e in self._open[number] if isinstance(e, RowEdit) and (e.table, e.key) == (name, key)]
        return edits[-1].new if edits else self.tables[name].rows(self.snapshot()).get(key)
