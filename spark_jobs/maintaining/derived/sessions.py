"""Keeps counts and sums of the rows of a view in PostgreSQL, for each session of each group.

The rows of a group are ordered by time. A new session begins where the time to the row before is longer than the gap:

    time    |--x-x--x----------------x---x-------x---x---|
    gap         ~~~~              ~~~~
    session    [    ]               [                ]

A change of a row can extend, split, join or end sessions. But it affects only sessions that are at most a gap away from
the row's old time or from its new time. So the transaction that applies a batch takes three steps. It notes these
times. It extends their span by all sessions that are at most a gap away. Then it makes the sessions in the extended
span again, from the rows. So it does not matter why a row changed, and a state that is applied again changes no
session.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from changelog.connectors.config import SessionConfig, TotalsConfig
from changelog.spark_jobs.maintaining.derived.totals import UTC, Tables, affected, expiring, interval
from changelog.spark_jobs.maintaining.postgres_tables import ViewIndex
from changelog.spark_jobs.maintaining.target import StateBatch

_TIMES: Final = """SELECT {by_values}, {time} AS time FROM {rows} AS was
    WHERE ({affected}) AND {time} IS NOT NULL"""

_BEFORE: Final = (UTC, "CREATE TABLE {changes} AS " + _TIMES)

_AFTER: Final = (
    "INSERT INTO {changes} " + _TIMES,
    "ANALYZE {changes}",
    """CREATE TABLE {spans} AS
        SELECT {by_of_change}, least(min(change.low), min(_start)) AS low, greatest(max(change.high), max(_end)) AS high
        FROM (SELECT {by_names}, min(time) AS low, max(time) AS high FROM {changes} GROUP BY {by_names}) change
        LEFT JOIN {totals} was ON {is_same_group} AND _end >= change.low - {gap} AND _start <= change.high + {gap}
        GROUP BY {by_of_change}""",
    "ANALYZE {spans}",
    """DELETE FROM {totals} was USING {spans} change
        WHERE {is_same_group} AND _end >= change.low AND _start <= change.high""",
    """INSERT INTO {totals}
        SELECT encode(sha256(convert_to(jsonb_build_array({by_names}, min(time))::text, 'UTF8')), 'hex'),
            {by_names}, min(time), max(time), count(*){sums}
        FROM (
            SELECT *, count(*) FILTER (WHERE begins) OVER (PARTITION BY {by_names} ORDER BY time, key) AS session
            FROM (
                SELECT {by_values}, {time} AS time, was._key AS key{values}, coalesce(
                    {time} - lag({time}) OVER (PARTITION BY {by_of_change} ORDER BY {time}, was._key) > {gap}, TRUE
                ) AS begins
                FROM {rows} AS was JOIN {spans} change ON {is_same_group} AND {time} BETWEEN change.low AND change.high
            ) AS event
        ) AS event
        GROUP BY {by_names}, session""",
    "DROP TABLE {changes}, {spans}",
)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Implements `Derivation` for the totals of sessions. `session` is the member `session` of `config`."""

    config: TotalsConfig
    session: SessionConfig
    tables: Tables

    def indexes(self) -> Iterator[ViewIndex]:
        """Yields the indexes that find sessions and their rows."""
        yield ViewIndex(self.tables["rows"], [*self.config.by, self.session.column])
        yield ViewIndex(self.tables["totals"], [*self.config.by, "_end"])

    def before(self, batch: StateBatch) -> Iterator[sql.Composed]:
        """Yields statements that note the times of the rows that the batch may change."""
        yield from self._statements(_BEFORE, batch.truncated)

    def after(self) -> Iterator[sql.Composed]:
        """Yields statements that note the times again, and then make the sessions near all noted times again."""
        yield from self._statements(_AFTER, None)
        yield from expiring(self.session.column, self.session.keep_days, self.tables)

    def _statements(self, texts: Sequence[str], truncated: str | None) -> Iterator[sql.Composed]:
        condition = affected(truncated, self.tables)
        return _statements(texts, self.config, self.session, condition, self.tables)


def _statements(
    texts: Sequence[str], totals: TotalsConfig, session: SessionConfig, condition: sql.Composed, tables: Tables
) -> Iterator[sql.Composed]:
    words = {
        **_by_words(totals.by),
        "values": _numbered(", was.{column} AS {value}", totals.sums),
        "sums": _numbered(", count({value}), sum({value})", totals.sums),
        "time": sql.Identifier("was", session.column),
        "gap": interval(session.gap_seconds),
        "affected": condition,
    }
    for text in texts:
        yield sql.SQL(text).format(**tables, **words)


def _by_words(by: Sequence[str]) -> dict[str, sql.Composable]:
    """Returns pieces of SQL that list the columns `by`. The tables that exist only within a transaction give these
    columns other names, so that none of them is called `time`, `low` or `high`.
    """
    names = [sql.Identifier(f"by_{number}") for number in range(len(by))]
    same = [
        sql.SQL("{} = {}").format(sql.Identifier("was", column), sql.Identifier("change", f"by_{number}"))
        for number, column in enumerate(by)
    ]
    return {
        "by_values": sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(sql.Identifier("was", column), name)
            for column, name in zip(by, names, strict=True)
        ),
        "by_names": sql.SQL(", ").join(names),
        "by_of_change": sql.SQL(", ").join(sql.Identifier("change", f"by_{number}") for number in range(len(by))),
        "is_same_group": sql.SQL(" AND ").join(same),
    }


def _numbered(text: str, columns: Sequence[str]) -> sql.Composed:
    return sql.SQL("").join(
        sql.SQL(text).format(column=sql.Identifier(column), value=sql.Identifier(f"value_{number}"))
        for number, column in enumerate(columns)
    )
