"""Keeps counts and sums of the rows of a view in PostgreSQL, for each group of rows, or for each group and time window.

The transaction that applies a batch sums up the rows that the batch may change, both before and after it changes them.
It adds the differences to the totals. So it does not matter why a row changed, and a state that is applied again
changes no total.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from changelog.connectors.config import TotalsConfig, WindowConfig
from changelog.spark_jobs.maintaining.derived.totals_columns import END, START, count_column, sum_column
from changelog.spark_jobs.maintaining.postgres_tables import ViewIndex
from changelog.spark_jobs.maintaining.target import StateBatch

Tables = Mapping[str, sql.Identifier]
"""The names of a view's tables in the database, by the words `rows`, `batch`, `totals`, `progress`, `changes` and
`spans`. The tables `changes` and `spans` exist only within a transaction.
"""

UTC: Final = "SET LOCAL TIME ZONE 'UTC'"
"""The keys of totals are made from texts of times. These must not depend on the time zone of the connection."""

_GROUP_SUMS: Final = """SELECT encode(sha256(convert_to(jsonb_build_array({groups})::text, 'UTF8')), 'hex') AS _key,
    {named_groups}, {sign} * count(*) AS _count{values} FROM {rows} AS was {windows} WHERE {affected}
    GROUP BY {groups}"""

_VALUE: Final = ", {sign} * count({column}) AS {count}, {sign} * coalesce(sum({column}), 0) AS {sum}"

_IN_BATCH: Final = "was._key IN (SELECT _key FROM {batch})"
_IS_TRUNCATED: Final = ' OR was._position < {} COLLATE "C"'

_WINDOWS: Final = """CROSS JOIN LATERAL generate_series(
        date_bin({every}, {time}, '1970-01-01'), {time} - {size} + interval '1 microsecond', - {every}
    ) AS part(start)"""
"""The windows to which a row belongs, the last one first. A row without a time belongs to none."""

_BEFORE: Final = (UTC, "CREATE TABLE {changes} AS " + _GROUP_SUMS)

_AFTER: Final = (
    "INSERT INTO {changes} " + _GROUP_SUMS,
    """INSERT INTO {totals} AS was SELECT _key, {names}, sum(_count){added} FROM {changes} GROUP BY _key, {names}
        HAVING sum(_count) <> 0{differing}
        ON CONFLICT (_key) DO UPDATE SET _count = was._count + excluded._count{updated}""",
    "DELETE FROM {totals} was USING {changes} now WHERE was._key = now._key AND was._count = 0",
    "DROP TABLE {changes}",
)

_ADDED: Final = ", sum({count}), CASE WHEN sum({count}) <> 0 OR sum({sum}) <> 0 THEN sum({sum}) END"
_DIFFERING: Final = " OR sum({count}) <> 0 OR sum({sum}) <> 0"
_UPDATED: Final = """, {count} = was.{count} + excluded.{count}, {sum} = CASE WHEN was.{count} + excluded.{count} <> 0
    THEN coalesce(was.{sum}, 0) + coalesce(excluded.{sum}, 0) END"""
"""As always in SQL, a sum is null if no row of the group has a value."""

_EXPIRING: Final = (
    """UPDATE {progress} SET newest = greatest(newest, (
        SELECT max({time})::timestamp FROM {rows} AS was WHERE was._key IN (SELECT _key FROM {batch})
    ))""",
    "DELETE FROM {totals} WHERE _end::timestamp < (SELECT newest FROM {progress}) - make_interval(days => {days})",
)


@dataclass(frozen=True, slots=True)
class Totals:
    """Implements `Derivation` for the totals of groups, or of groups and windows."""

    config: TotalsConfig
    tables: Tables

    def indexes(self) -> Iterator[ViewIndex]:
        """Yields nothing, because the tables' primary keys are enough."""
        yield from ()

    def before(self, batch: StateBatch) -> Iterator[sql.Composed]:
        """Yields statements that sum up the rows that the batch may change, with negative signs."""
        yield from _statements(_BEFORE, self.config, -1, affected(batch.truncated, self.tables), self.tables)

    def after(self) -> Iterator[sql.Composed]:
        """Yields statements that sum up the same rows again, and add the differences to the totals."""
        yield from _statements(_AFTER, self.config, 1, affected(None, self.tables), self.tables)
        if self.config.window is not None:
            yield from expiring(self.config.window.column, self.config.window.keep_days, self.tables)


def affected(truncated: str | None, tables: Tables) -> sql.Composed:
    """Returns the condition that the batch may change a row. In it, the row is called `was`."""
    in_batch = sql.SQL(_IN_BATCH).format(**tables)
    return in_batch if truncated is None else in_batch + sql.SQL(_IS_TRUNCATED).format(sql.Literal(truncated))


def expiring(column: str, keep_days: int | None, tables: Tables) -> Iterator[sql.Composed]:
    """Yields the statements that remove old totals. Nothing is removed if `keep_days` is None.

    A total is old if its `_end` is more than `keep_days` days before the newest time that any row ever had in `column`.
    This newest time is stored: it must not decrease, or else totals that were removed could come back.
    """
    if keep_days is None:
        return
    words = {"time": sql.Identifier("was", column), "days": sql.Literal(keep_days)}
    for text in _EXPIRING:
        yield sql.SQL(text).format(**tables, **words)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Says how rows are grouped. `expressions` has the SQL for each column of a group, and `windows` has the SQL that
    finds the windows of a row.
    """

    expressions: Mapping[str, sql.Composable]
    windows: sql.Composable

    @staticmethod
    def of(totals: TotalsConfig) -> "_Groups":
        by = {name: sql.Identifier("was", name) for name in totals.by}
        if totals.window is None:
            return _Groups(by, sql.SQL(""))
        words = _window_words(totals.window)
        start, end = sql.SQL("part.start"), sql.SQL("part.start + {size}").format(**words)
        return _Groups({**by, START: start, END: end}, sql.SQL(_WINDOWS).format(**words))

    def words(self) -> dict[str, sql.Composable]:
        named = [sql.SQL("{} AS {}").format(value, sql.Identifier(name)) for name, value in self.expressions.items()]
        return {
            "groups": sql.SQL(", ").join(self.expressions.values()),
            "named_groups": sql.SQL(", ").join(named),
            "names": sql.SQL(", ").join(map(sql.Identifier, self.expressions)),
            "windows": self.windows,
        }


def _window_words(window: WindowConfig) -> dict[str, sql.Composable]:
    return {
        "time": sql.Identifier("was", window.column),
        "size": interval(window.seconds),
        "every": interval(window.every_seconds or window.seconds),
    }


def interval(seconds: int) -> sql.Composed:
    """Returns an interval as SQL. It is in seconds, because in a time zone a day can have 23 or 25 hours."""
    return sql.SQL("make_interval(secs => {})").format(sql.Literal(seconds))


def _statements(
    texts: Sequence[str], totals: TotalsConfig, sign: int, condition: sql.Composable, tables: Tables
) -> Iterator[sql.Composed]:
    def format_sums(text: str) -> sql.Composed:
        return sql.SQL("").join(
            sql.SQL(text).format(
                column=sql.Identifier("was", name),
                count=sql.Identifier(count_column(name)),
                sum=sql.Identifier(sum_column(name)),
                sign=sql.Literal(sign),
            )
            for name in totals.sums
        )

    words = {
        **_Groups.of(totals).words(),
        "sign": sql.Literal(sign),
        "affected": condition,
        "values": format_sums(_VALUE),
        "added": format_sums(_ADDED),
        "differing": format_sums(_DIFFERING),
        "updated": format_sums(_UPDATED),
    }
    for text in texts:
        yield sql.SQL(text).format(**tables, **words)
