"""How composite types were defined at each place of the log.

ALTER TYPE of a composite, or ALTER TABLE of a table whose row type a column has, sends nothing: from its commit on, the
texts of values have other attributes. So the catalogue is looked at, and what it says is laid along the log. A look
that finds the same rows as the one before says that nothing was altered between the two. One that finds others says
only that something was: until it is known where the altering transaction committed, the values between are in doubt,
and their texts are published as they are. A key would then be another one, so its rows wait until nobody alters its
type. Once a type was altered, each key has another text in any case: `evidence` has the table read again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from connectors.sources.postgres.session.connection import translated
from connectors.sources.postgres.values.types import PgType, Query, TypeCatalog, composites, in_doubt

GLANCE_S = 1.0
"""How often the catalogue is looked at though no row needs it: what is in doubt lies between two looks."""

_PAST_MAX = 16
_MET_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeLook:
    """What the catalogue said of some composites. Places are positions of bytes in the log.

    `rows` stand for the attributes: any that is altered gives others. `makers` are the transactions (the low 32 bits of
    their ids) that made them and may be younger than a change that is yet to be read. Where a change of one of the
    composites is not `pending`, all that committed `before` this place is in it.
    """

    rows: Collection[tuple[int, int, int]]
    makers: frozenset[int]
    pending: bool
    before: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Definition:
    """The types from where the last of its `makers` committed, for certain `until` a place."""

    types: dict[int, PgType]
    rows: Collection[tuple[int, int, int]]
    makers: frozenset[int] = frozenset()
    until: int = 0


class Definitions:
    """The types of columns, as they were for each transaction of the stream in its turn.

    `look` looks at the composites that these relations hold; `query` asks the catalogue as it is now. `ends` is what
    the property gave earlier.
    """

    def __init__(
        self, look: Callable[[frozenset[int]], CompositeLook], query: Query, ends: Mapping[str, int] | None = None
    ) -> None:
        self._look, self._query = look, query
        self._plain = TypeCatalog(query)
        self._oids: set[int] = set()
        self._relations: frozenset[int] = frozenset()
        self._past: list[_Definition] = []
        self._looked_before = 0
        self._pending = False
        self._glance_at = 0.0
        self._met: dict[int, int] = {}
        self._ends = {int(xid): place for xid, place in (ends or {}).items()}
        self._within = (0, 0)
        self._settled: tuple[_Definition, bool] | None = None

    @property
    def tracking(self) -> bool:
        """Whether there is any type that may be altered without a message."""
        return bool(self._oids)

    @property
    def ends(self) -> Mapping[str, int]:
        """For each transaction that altered a type not long ago, a place in the log where it had committed."""
        return {str(xid): self._ends[xid] for xid in sorted(self._ends)}

    def track(self, oids: Iterable[int]) -> None:
        """These are types of columns: those with composites are looked at from now on."""
        new = {oid for oid in oids if oid not in self._oids and composites(self._plain.resolve(oid))}
        if new:
            self._oids |= new
            self._past = []
            self._refresh()

    def resolve(self, oid: int) -> PgType:
        """The type as it was for the open transaction; its composites may be in doubt."""
        self.track([oid])
        if oid not in self._oids:
            return self._plain.resolve(oid)
        definition, certain = self._choose()
        return definition.types[oid] if certain else in_doubt(definition.types[oid])

    def pending(self, oid: int) -> bool:
        """Whether the type that was resolved for the open transaction is in doubt while another one alters a type."""
        return self._pending and oid in self._oids and not self._choose()[1]

    def tracks(self, oid: int) -> bool:
        """Whether a type that was resolved has composites."""
        return oid in self._oids

    def enter(self, xid: int, first: int, commit: int) -> None:
        """The open transaction is this: its first row is at `first` (0: not known), and it committed at `commit`."""
        self._within = first, commit
        if not self._oids:
            return
        self._met[xid & 0xFFFFFFFF] = commit
        if len(self._met) > _MET_MAX:
            del self._met[next(iter(self._met))]
        if xid & 0xFFFFFFFF in self._ends:
            self._ends[xid & 0xFFFFFFFF] = min(self._ends[xid & 0xFFFFFFFF], commit)

    def settle(self) -> bool:
        """Whether the types of the open transaction are others than those of the one before, for all that is known."""
        before, self._settled = self._settled, self._choose()
        return self._settled != before

    def glance(self, now: float) -> None:
        """Looks at the catalogue if that was not done for a while; `now` counts seconds."""
        if self._oids and now >= self._glance_at:
            self._glance_at = now + GLANCE_S
            self._refresh()

    def _choose(self) -> tuple[_Definition, bool]:
        first, commit = self._within
        if commit > self._looked_before:
            self._refresh()
        definition = next((definition for definition in self._past if commit <= definition.until), self._past[-1])
        since = max((self._ends[xid] for xid in definition.makers), default=0)
        return definition, since <= first and commit <= definition.until

    def _refresh(self) -> None:
        seen = self._look(self._relations)
        if not self._past or self._past[-1].rows != seen.rows:
            seen, types = self._read(seen)
            self._past = [*self._past[1 - _PAST_MAX :], _Definition(types=types, rows=seen.rows)]
        last = self._past[-1]
        last.makers, self._pending = seen.makers, seen.pending
        if not seen.pending:
            last.until = seen.before
        self._looked_before = seen.before
        ends = {xid: self._ends.get(xid, self._met.get(xid, seen.before)) for xid in seen.makers}
        self._ends = {xid: self._ends[xid] for before in self._past[:-1] for xid in before.makers} | ends

    def _read(self, seen: CompositeLook) -> tuple[CompositeLook, dict[int, PgType]]:
        """The types, read between two looks that say the same: what made them had committed before the second."""
        while True:
            catalog = TypeCatalog(self._query)
            types = {oid: catalog.resolve(oid) for oid in self._oids}
            self._relations = frozenset().union(*map(composites, types.values()))
            again = self._look(self._relations)
            if again.rows == seen.rows:
                return again, types
            seen = again


def look_at(connection: psycopg.Connection[Any], slot: str, relations: Collection[int]) -> CompositeLook:
    """Looks at the attributes of these relations; what the slot no longer has to read is old."""
    values = {"relations": sql.Literal("{{{}}}".format(",".join(map(str, relations)))), "slot": sql.Literal(slot)}
    with translated("looking at composite types"), connection.cursor() as cursor:
        cursor.execute(sql.SQL(_LOOK).format(**values))
        answers = [cursor.fetchall()] if cursor.description else []
        while cursor.nextset():
            answers += [cursor.fetchall()] if cursor.description else []
    [(before,)], [(pending,)], rows = answers
    return CompositeLook(
        rows=frozenset((relation, number, xid) for relation, number, xid, _ in rows),
        makers=frozenset(xid for _, _, xid, young in rows if young),
        pending=pending,
        before=before,
    )


# The order matters. A transaction that alters a type holds its lock until others see what it committed: what is in the
# log up to the first answer and not locked at the second, the third sees, because each has a snapshot of its own.
# A type whose attributes were all made by the command that made the type never had others.
_LOOK = """
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
