"""A type that is certain is what it was when the row was written, whatever a look at the catalogue meets on its way."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from changelog.connectors.sources.postgres.values.definitions import CompositeLook, Definitions

COMPOSITE, RELATION, INT = 100, 1, 23

ROUNDS = 1000


@dataclass(slots=True)
class Alteration:
    """One ALTER TYPE: it holds its lock until others see it. Its attribute is named for its transaction."""

    xid: int
    begun: int
    commit: int | None = None
    visible: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the stream shows: rows from `first` to `commit`, or none."""

    xid: int
    first: int
    commit: int
    rows: bool


class Database:
    """A log with one composite type. Anything may happen between two questions: `meanwhile` is called there."""

    def __init__(self, meanwhile: Callable[["Database"], None]) -> None:
        self.lsn, self.xid = 1000, 700
        self.alterations: list[Alteration] = []
        self.stream: list[Transaction] = []
        self._meanwhile = meanwhile

    # What happens.

    def write(self, *, lasts: int) -> None:
        self.xid += 1
        self.stream.append(Transaction(self.xid, self._next(), self._next(lasts), rows=True))

    def alter(self) -> None:
        """Begins, commits, or shows the commit of an alteration: one at a time."""
        last = self.alterations[-1] if self.alterations else None
        if last is None or last.visible:
            self.xid += 1
            self.alterations.append(Alteration(self.xid, self._next()))
        elif last.commit is None:
            last.commit = self._next()
        else:
            last.visible = True

    def show(self, *, rows: bool) -> None:
        """The stream shows the last alteration; what that wrote itself, it wrote at some step of the alteration."""
        last = self.alterations[-1] if self.alterations else None
        if last is not None and last.commit is not None and all(last.xid != each.xid for each in self.stream):
            self.stream.append(Transaction(last.xid, last.begun, last.commit, rows=rows))
            self.stream.sort(key=lambda each: each.commit)

    def _next(self, bytes_: int = 1) -> int:
        self.lsn += bytes_
        return self.lsn

    # What can be asked.

    def name(self, lsn: int) -> str:
        """The attribute's name for a row at this place."""
        committed = [each.xid for each in self.alterations if each.commit and each.commit < lsn]
        return f"a{committed[-1]}" if committed else "a"

    def look(self, relations: frozenset[int]) -> CompositeLook:
        if not relations:
            return CompositeLook(rows=frozenset(), makers=frozenset(), pending=False, before=self.lsn)
        before = self._asked(self.lsn)
        pending = bool(self._asked(any(not each.visible for each in self.alterations)))
        xid = self._asked(self._seen())
        makers = frozenset({xid} - {0})
        return CompositeLook(rows=frozenset({(RELATION, 1, xid)}), makers=makers, pending=pending, before=before)

    def query(self, text: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        if values == [INT]:
            return [("int4", "b", False, 0, None, None, 0, -1, 0, ",")]
        if values == [COMPOSITE]:
            return [("public.co", "c", False, 0, None, None, 0, -1, RELATION, ",")]
        assert values == [RELATION], text
        seen = self._asked(self._seen())
        return [(f"a{seen}" if seen else "a", INT, -1)]

    def _seen(self) -> int:
        return max((each.xid for each in self.alterations if each.visible), default=0)

    def _asked(self, answer: int) -> int:
        self._meanwhile(self)
        return answer


@pytest.mark.parametrize("part", range(4))
def test_what_is_certain_is_right(seed: int, part: int) -> None:
    certain = 0
    for number in range(ROUNDS):
        label = f"{seed}/{part}/{number}"
        certain += _round(random.Random(label), label)
    assert certain > ROUNDS


def _round(chance: random.Random, label: str) -> int:
    """A few steps of a database and of who follows it; how many rows had a certain type."""

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
    followed = Definitions(database.look, database.query)
    followed.track([COMPOSITE])
    read = certain = 0
    for step in range(10):
        happen(database)
        match chance.choice(["read", "read", "glance", "open"]):
            case "glance":
                followed.glance(float(step))
            case "open":
                followed = Definitions(database.look, database.query, dict(followed.ends))
                followed.track([COMPOSITE])
        commits = [each for each in database.stream if each.commit > read]
        for transaction in commits[: chance.randint(0, len(commits))]:
            read = transaction.commit
            followed.enter(transaction.xid, transaction.first, transaction.commit)
            if transaction.rows:
                certain += check(database, followed, transaction, label)
    return certain


def check(database: Database, followed: Definitions, transaction: Transaction, label: str) -> bool:
    followed.settle()
    type_ = followed.resolve(COMPOSITE)
    if type_.certain:
        [attribute] = type_.fields
        names = [database.name(transaction.first), database.name(transaction.commit)]
        assert [attribute.name] * 2 == names, label
    return type_.certain


def quiet(_: Database) -> None:
    """Nothing happens."""


def read(database: Database, followed: Definitions, *, lasts: int = 1) -> tuple[str, bool]:
    """What a row that is written now is read by."""
    database.write(lasts=lasts)
    written = database.stream[-1]
    followed.enter(written.xid, written.first, written.commit)
    followed.settle()
    type_ = followed.resolve(COMPOSITE)
    return type_.fields[0].name, type_.certain


def altered(database: Database) -> None:
    for _ in range(3):
        database.alter()


def test_a_change_is_certain_from_the_next_look_on() -> None:
    database = Database(quiet)
    followed = Definitions(database.look, database.query)
    followed.track([COMPOSITE])
    assert read(database, followed) == ("a", True)
    altered(database)
    assert read(database, followed) == ("a702", False)
    assert read(database, followed) == ("a702", True)


def test_a_change_is_certain_from_its_commit_on_where_the_stream_shows_it() -> None:
    database = Database(quiet)
    followed = Definitions(database.look, database.query)
    followed.track([COMPOSITE])
    altered(database)
    [alteration] = database.alterations
    assert alteration.commit is not None
    followed.enter(alteration.xid, 0, alteration.commit)
    assert read(database, followed) == ("a701", True)


def test_what_was_learned_holds_for_the_next_opening() -> None:
    database = Database(quiet)
    followed = Definitions(database.look, database.query)
    followed.track([COMPOSITE])
    altered(database)
    followed.glance(1.0)
    database.write(lasts=1)
    again = Definitions(database.look, database.query, followed.ends)
    again.track([COMPOSITE])
    again.enter(702, database.stream[-1].first, database.stream[-1].commit)
    assert again.resolve(COMPOSITE).certain


def test_while_a_lock_is_held_nothing_later_is_certain() -> None:
    database = Database(quiet)
    followed = Definitions(database.look, database.query)
    followed.track([COMPOSITE])
    database.alter()
    assert read(database, followed) == ("a", False)
    database.alter()
    assert read(database, followed) == ("a", False)
    database.alter()
    assert read(database, followed) == ("a701", False)
    assert read(database, followed) == ("a701", True)


def test_a_type_without_composites_is_asked_for_once() -> None:
    database = Database(quiet)
    followed = Definitions(database.look, database.query)
    assert followed.resolve(INT).name == "int4"
    assert not followed.tracking
    followed.enter(1, 2, 3)
    assert not followed.tracks(INT)
