"""Tests `Definitions`, which finds out how a composite type was defined when a row was written.

If `Definitions` calls a type *certain*, the type must be right. This is difficult: reading the catalogue takes several
queries, and the types may change between two of them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from changelog.connectors.sources.postgres.values.definitions import CompositeReading, Definitions

COMPOSITE, RELATION, INT = 100, 1, 23

ROUNDS = 1000


@dataclass(slots=True)
class Alteration:
    """One ALTER TYPE. It renames the type's attribute; the new name contains the id of the transaction.

    An alteration holds a lock until other sessions see the new name. So there is only one alteration at a time.
    """

    xid: int
    begun: int
    commit: int | None = None
    visible: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction in the stream. `first` is the position where it begins, and `rows` says whether it has rows."""

    xid: int
    first: int
    commit: int
    rows: bool


class Database:
    """Simulates a database with a log and one composite type. `meanwhile` is called before each answer to a query, and
    may change the database.
    """

    def __init__(self, meanwhile: Callable[["Database"], None]) -> None:
        self.lsn, self.xid = 1000, 700
        self.alterations: list[Alteration] = []
        self.stream: list[Transaction] = []
        self._meanwhile = meanwhile

    # Changes of the database

    def write(self, *, lasts: int) -> None:
        self.xid += 1
        self.stream.append(Transaction(self.xid, self._next(), self._next(lasts), rows=True))

    def alter(self) -> None:
        """Does the next step of an alteration. The steps are: it begins, it commits, and it becomes visible."""
        last = self.alterations[-1] if self.alterations else None
        if last is None or last.visible:
            self.xid += 1
            self.alterations.append(Alteration(self.xid, self._next()))
        elif last.commit is None:
            last.commit = self._next()
        else:
            last.visible = True

    def show(self, *, rows: bool) -> None:
        """Puts the transaction of the last alteration into the stream, if it has committed and is not there yet. With
        `rows`, the transaction also has rows.
        """
        last = self.alterations[-1] if self.alterations else None
        if (
            last is not None
            and last.commit is not None
            and all(last.xid != transaction.xid for transaction in self.stream)
        ):
            self.stream.append(Transaction(last.xid, last.begun, last.commit, rows=rows))
            self.stream.sort(key=lambda transaction: transaction.commit)

    def _next(self, bytes_: int = 1) -> int:
        self.lsn += bytes_
        return self.lsn

    # Queries

    def name(self, lsn: int) -> str:
        """The name of the attribute when a row at this log position was written."""
        committed = [alteration.xid for alteration in self.alterations if alteration.commit and alteration.commit < lsn]
        return f"a{committed[-1]}" if committed else "a"

    def read_composites(self, relations: frozenset[int]) -> CompositeReading:
        if not relations:
            return CompositeReading(rows=frozenset(), makers=frozenset(), pending=False, before=self.lsn)
        before = self._answered(self.lsn)
        pending = bool(self._answered(any(not alteration.visible for alteration in self.alterations)))
        xid = self._answered(self._visible_xid())
        makers = frozenset({xid} - {0})
        return CompositeReading(rows=frozenset({(RELATION, 1, xid)}), makers=makers, pending=pending, before=before)

    def query(self, text: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        if values == [INT]:
            return [("int4", "b", False, 0, None, None, 0, -1, 0, ",")]
        if values == [COMPOSITE]:
            return [("public.co", "c", False, 0, None, None, 0, -1, RELATION, ",")]
        assert values == [RELATION], text
        xid = self._answered(self._visible_xid())
        return [(f"a{xid}" if xid else "a", INT, -1)]

    def _visible_xid(self) -> int:
        return max((alteration.xid for alteration in self.alterations if alteration.visible), default=0)

    def _answered(self, answer: int) -> int:
        self._meanwhile(self)
        return answer


@pytest.mark.parametrize("part", range(4))
def test_a_type_that_is_called_certain_is_right(seed: int, part: int) -> None:
    certain = 0
    for number in range(ROUNDS):
        label = f"{seed}/{part}/{number}"
        certain += _round(random.Random(label), label)
    assert certain > ROUNDS


def _round(chance: random.Random, label: str) -> int:
    """Lets a database and `Definitions` do random steps. Returns for how many transactions the type was certain."""

    def happen(database: Database) -> None:
        for _ in range(chance.choice([0, 0, 1, 3, 5])):
            match chance.choice(["write", "write", "alter", "alter", "show"]):
                case "write":
                    database.write(lasts=chance.choice([1, 1, 5]))
                case "alter":
                    database.alter()
                case "show":
                    database.show(rows=chance.random() < 0.5)

    database = Database(happen)
    definitions = Definitions(database.read_composites, database.query)
    definitions.track([COMPOSITE])
    last_commit = certain = 0
    for step in range(10):
        happen(database)
        match chance.choice(["read", "read", "refresh", "open"]):
            case "refresh":
                definitions.refresh_if_due(float(step))
            case "open":
                definitions = Definitions(database.read_composites, database.query, dict(definitions.ends))
                definitions.track([COMPOSITE])
        unread = [entry for entry in database.stream if entry.commit > last_commit]
        for transaction in unread[: chance.randint(0, len(unread))]:
            last_commit = transaction.commit
            definitions.enter(transaction.xid, transaction.first, transaction.commit)
            if transaction.rows:
                certain += check(database, definitions, transaction, label)
    return certain


def check(database: Database, definitions: Definitions, transaction: Transaction, label: str) -> bool:
    definitions.settle()
    type_ = definitions.resolve(COMPOSITE)
    if type_.certain:
        [attribute] = type_.fields
        names = [database.name(transaction.first), database.name(transaction.commit)]
        assert [attribute.name] * 2 == names, label
    return type_.certain


def do_nothing(_: Database) -> None:
    """Changes nothing in the database."""


def write_and_resolve(database: Database, definitions: Definitions, *, lasts: int = 1) -> tuple[str, bool]:
    """Writes a row, and lets `definitions` find out its type. Returns the name of the attribute, and whether the type
    is certain.
    """
    database.write(lasts=lasts)
    transaction = database.stream[-1]
    definitions.enter(transaction.xid, transaction.first, transaction.commit)
    definitions.settle()
    type_ = definitions.resolve(COMPOSITE)
    return type_.fields[0].name, type_.certain


def alter_completely(database: Database) -> None:
    for _ in range(3):
        database.alter()


def test_an_altered_type_is_certain_after_the_catalogue_is_read_again() -> None:
    database = Database(do_nothing)
    definitions = Definitions(database.read_composites, database.query)
    definitions.track([COMPOSITE])
    assert write_and_resolve(database, definitions) == ("a", True)
    alter_completely(database)
    assert write_and_resolve(database, definitions) == ("a702", False)
    assert write_and_resolve(database, definitions) == ("a702", True)


def test_an_altered_type_is_certain_once_the_stream_shows_the_alteration() -> None:
    database = Database(do_nothing)
    definitions = Definitions(database.read_composites, database.query)
    definitions.track([COMPOSITE])
    alter_completely(database)
    [alteration] = database.alterations
    assert alteration.commit is not None
    definitions.enter(alteration.xid, 0, alteration.commit)
    assert write_and_resolve(database, definitions) == ("a701", True)


def test_a_type_stays_certain_after_a_restart() -> None:
    database = Database(do_nothing)
    definitions = Definitions(database.read_composites, database.query)
    definitions.track([COMPOSITE])
    alter_completely(database)
    definitions.refresh_if_due(1.0)
    database.write(lasts=1)
    reopened = Definitions(database.read_composites, database.query, definitions.ends)
    reopened.track([COMPOSITE])
    reopened.enter(702, database.stream[-1].first, database.stream[-1].commit)
    assert reopened.resolve(COMPOSITE).certain


def test_no_type_is_certain_while_an_alteration_is_open() -> None:
    database = Database(do_nothing)
    definitions = Definitions(database.read_composites, database.query)
    definitions.track([COMPOSITE])
    database.alter()
    assert write_and_resolve(database, definitions) == ("a", False)
    database.alter()
    assert write_and_resolve(database, definitions) == ("a", False)
    database.alter()
    assert write_and_resolve(database, definitions) == ("a701", False)
    assert write_and_resolve(database, definitions) == ("a701", True)


def test_a_type_without_composites_is_not_tracked() -> None:
    database = Database(do_nothing)
    definitions = Definitions(database.read_composites, database.query)
    assert definitions.resolve(INT).name == "int4"
    assert not definitions.tracking
    definitions.enter(1, 2, 3)
    assert not definitions.tracks(INT)
