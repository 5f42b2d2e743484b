"""Tracks how composite types were defined at each position of the database's log.

The log does not announce an ALTER TYPE of a composite. If the type of a column is the row type of another table, the
log does not announce an ALTER TABLE of that other table either. After the commit of such a statement, the values simply
have other attributes. So the source reads the catalogue now and then, and finds out for which log positions each
reading is valid. Two equal readings in a row prove that nothing was altered between them. Two different readings prove
only that something was altered. Until the source knows where the altering transaction committed, it cannot know which
attributes the values in between have. These values are *uncertain*, and their texts are published unchanged.

An uncertain value in a key cannot be published unchanged, because readers would take it for the key of another row. So
a row with such a key waits until the type is no longer being altered. The alteration changes how every key of the table
is written; the module `admin/evidence` notices this, and the table is read again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from changelog.connectors.sources.postgres.session.connection import translated
from changelog.connectors.sources.postgres.values.types import PgType, Query, TypeCatalog, composites, in_doubt

READ_INTERVAL_S = 1.0
"""The seconds between two readings of the catalogue, unless a row needs one sooner. The interval limits how many values
are uncertain.
"""

_PAST_MAX = 16
_COMMITS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeReading:
    """One reading of some composites in the catalogue.

    `rows` identifies the attributes; altering any attribute changes `rows`. `makers` holds the transactions that wrote
    the attributes (the low 32 bits of their ids), but only transactions that the stream may still deliver.
    `pending` says that a transaction is altering one of the composites at this moment. If `pending` is false, the
    reading includes every alteration that committed before the log position `before`.
    """

    rows: Collection[tuple[int, int, int]]
    makers: frozenset[int]
    pending: bool
    before: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Definition:
    """The types of columns, as one or more equal readings of the catalogue show them.

    They are valid from the commit of the last transaction in `makers`, at least up to the log position `until`.
    """

    types: dict[int, PgType]
    rows: Collection[tuple[int, int, int]]
    makers: frozenset[int] = frozenset()
    until: int = 0


class Definitions:
    """Resolves the types of columns as each transaction of the stream saw them.

    `read_composites` reads the composites that the given relations define; `query` queries the catalogue as it is now.
    `ends` is what the property `ends` returned before a restart.
    """

    def __init__(
        self,
        read_composites: Callable[[frozenset[int]], CompositeReading],
        query: Query,
        ends: Mapping[str, int] | None = None,
    ) -> None:
        self._read_composites, self._query = read_composites, query
        self._plain = TypeCatalog(query)
        self._oids: set[int] = set()
        self._relations: frozenset[int] = frozenset()
        self._past: list[_Definition] = []
        self._covered_lsn = 0
        self._pending = False
        self._next_read_at = 0.0
        self._commits: dict[int, int] = {}
        self._ends = {int(xid): lsn for xid, lsn in (ends or {}).items()}
        self._within = (0, 0)
        self._settled: tuple[_Definition, bool] | None = None

    @property
    def tracking(self) -> bool:
        """Whether any column has a type that can be altered without a message in the log."""
        return bool(self._oids)

    @property
    def ends(self) -> Mapping[str, int]:
        """For each transaction that recently altered a type, a log position by which it had committed."""
        return {str(xid): self._ends[xid] for xid in sorted(self._ends)}

    def track(self, oids: Iterable[int]) -> None:
        """Adds types of columns (OIDs). From now on, those that contain composites are read regularly."""
        new = {oid for oid in oids if oid not in self._oids and composites(self._plain.resolve(oid))}
        if new:
            self._oids |= new
            self._past = []
            self._refresh()

    def resolve(self, oid: int) -> PgType:
        """Returns the type as the current transaction (see `enter`) saw it. Its composites may be marked uncertain."""
        self.track([oid])
        if oid not in self._oids:
            return self._plain.resolve(oid)
        definition, certain = self._choose()
        return definition.types[oid] if certain else in_doubt(definition.types[oid])

    def pending(self, oid: int) -> bool:
        """Returns whether the type is uncertain in the current transaction, because another transaction was altering a
        type at the last reading.
        """
        return self._pending and oid in self._oids and not self._choose()[1]

    def tracks(self, oid: int) -> bool:
        """Returns whether a resolved type contains composites."""
        return oid in self._oids

    def enter(self, xid: int, first: int, commit: int) -> None:
        """Makes a committed transaction the current one.

        `first` is the log position of its first row (0 if unknown), and `commit` that of its commit.
        """
        self._within = first, commit
        if not self._oids:
            return
        self._commits[xid & 0xFFFFFFFF] = commit
        if len(self._commits) > _COMMITS_MAX:
            del self._commits[next(iter(self._commits))]
        if xid & 0xFFFFFFFF in self._ends:
            self._ends[xid & 0xFFFFFFFF] = min(self._ends[xid & 0xFFFFFFFF], commit)

    def settle(self) -> bool:
        """Returns whether types may resolve differently than at the previous call.

        This is the case if the current transaction sees other definitions, or if definitions became certain or
        uncertain.
        """
        before, self._settled = self._settled, self._choose()
        return self._settled != before

    def refresh_if_due(self, now: float) -> None:
        """Reads the catalogue if READ_INTERVAL_S have passed since the last call that did so; `now` is in seconds."""
        if self._oids and now >= self._next_read_at:
            self._next_read_at = now + READ_INTERVAL_S
            self._refresh()

    def _choose(self) -> tuple[_Definition, bool]:
        first, commit = self._within
        if commit > self._covered_lsn:
            self._refresh()
        definition = next((definition for definition in self._past if commit <= definition.until), self._past[-1])
        valid_from = max((self._ends[xid] for xid in definition.makers), default=0)
        return definition, valid_from <= first and commit <= definition.until

    def _refresh(self) -> None:
        reading = self._read_composites(self._relations)
        if not self._past or self._past[-1].rows != reading.rows:
            reading, types = self._read_types(reading)
            self._past = [*self._past[1 - _PAST_MAX :], _Definition(types=types, rows=reading.rows)]
        last = self._past[-1]
        last.makers, self._pending = reading.makers, reading.pending
        if not reading.pending:
            last.until = reading.before
        self._covered_lsn = reading.before
        ends = {xid: self._ends.get(xid, self._commits.get(xid, reading.before)) for xid in reading.makers}
        self._ends = {xid: self._ends[xid] for earlier in self._past[:-1] for xid in earlier.makers} | ends

    def _read_types(self, reading: CompositeReading) -> tuple[CompositeReading, dict[int, PgType]]:
        """Reads the types between two equal readings of the attributes; returns the second reading and the types.

        Because the readings are equal, all makers of the types had committed before the second reading.
        """
        while True:
            catalog = TypeCatalog(self._query)
            types = {oid: catalog.resolve(oid) for oid in self._oids}
            self._relations = frozenset().union(*map(composites, types.values()))
            confirming = self._read_composites(self._relations)
            if confirming.rows == reading.rows:
                return confirming, types
            reading = confirming


def read_composites(connection: psycopg.Connection[Any], slot: str, relations: Collection[int]) -> CompositeReading:
    """Reads the attributes of these relations. `makers` holds only transactions that `slot` may still deliver."""
    values = {"relations": sql.Literal("{{{}}}".format(",".join(map(str, relations)))), "slot": sql.Literal(slot)}
    with translated("looking at composite types"), connection.cursor() as cursor:
        cursor.execute(sql.SQL(_ATTRIBUTES).format(**values))
        answers = [cursor.fetchall()] if cursor.description else []
        while cursor.nextset():
            answers += [cursor.fetchall()] if cursor.description else []
    [(before,)], [(pending,)], rows = answers
    return CompositeReading(
        rows=frozenset((relation, number, xid) for relation, number, xid, _ in rows),
        makers=frozenset(xid for _, _, xid, young in rows if young),
        pending=pending,
        before=before,
    )


# The order of the queries matters. A transaction that alters a type holds its lock until other sessions can see its
# commit, and each query has a snapshot of its own. So if the commit of an alteration is in the log before the first
# query, and the second query finds no lock, the third query sees the alteration. `bool_and` finds the types that were
# never altered: all their attributes were created with the type itself.
_ATTRIBUTES = """
BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;
SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint;
SELECT EXISTS (
  SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
  WHERE l.relation = ANY ({relations}::oid[]) AND l.mode = 'AccessExclusiveLock' AND l.granted);
SELECT a.attrelid::bigint, a.attnum::int, a.xmin::text::bigint,
  NOT bool_and(a.xmin = t.xmin AND a.cmin = t.cmin) OVER (PARTITION BY a.attrelid)
    AND NOT coalesce(age(a.xmin) < 0 OR age(a.xmin) > age(s.catalog_xmin), false)
FROM pg_attribute a JOIN pg_type t ON t.typrelid = a.attrelid
LEFT JOIN pg_replication_slots s ON s.slot_name = {slot}
WHERE a.attrelid = ANY ({relations}::oid[]) AND a.attnum > 0;
COMMIT
"""
