"""Keeps counts and sums of the rows of a view in PostgreSQL, for each group of rows.

The transaction that applies a batch sums up the rows that the batch may change, once before it applies the batch and
once after. It adds the differences to the totals. So it does not matter why a row changed, and a state that is applied
again changes no total.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from psycopg import sql

from changelog.connectors.config import TotalsConfig
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.avro import Column
from changelog.schemas.spark import DIGITS_MAX
from changelog.schemas.types import ColumnType, Decimal, Primitive
from changelog.spark_jobs.views.copy_rows import ViewColumns

_COUNT: Final = "_count"

_NAME_BYTES_MAX: Final = 63
"""PostgreSQL cuts longer names, but never within a character."""

_SUM_TYPES: Final = frozenset({Primitive.INT, Primitive.LONG})

_GROUP_TYPES: Final = frozenset(
    {
        Primitive.BOOLEAN,
        Primitive.INT,
        Primitive.LONG,
        Primitive.STRING,
        Primitive.UUID,
        Primitive.DATE,
        Primitive.TIME,
        Primitive.TIMESTAMP,
        Primitive.TIMESTAMP_TZ,
    }
)

_GROUP_SUMS: Final = """SELECT encode(sha256(convert_to(jsonb_build_array({by})::text, 'UTF8')), 'hex') AS _key, {by},
    {sign} * count(*) AS _count{values} FROM {rows} WHERE {affected} GROUP BY {by}"""

_VALUE: Final = ", {sign} * count({column}) AS {count}, {sign} * coalesce(sum({column}), 0) AS {sum}"

_IN_BATCH: Final = "_key IN (SELECT _key FROM {batch})"

_BEFORE: Final = (
    "SET LOCAL TIME ZONE 'UTC'",  # the key of a group is made of texts, also of times
    "CREATE TABLE {changes} AS " + _GROUP_SUMS,
)

_AFTER: Final = (
    "INSERT INTO {changes} " + _GROUP_SUMS,
    """INSERT INTO {totals} AS was SELECT _key, {by}, sum(_count){added} FROM {changes} GROUP BY _key, {by}
        HAVING sum(_count) <> 0{differing}
        ON CONFLICT (_key) DO UPDATE SET _count = was._count + excluded._count{updated}""",
    "DELETE FROM {totals} was USING {changes} now WHERE was._key = now._key AND was._count = 0",
    "DROP TABLE {changes}",
)

_ADDED: Final = ", sum({count}), CASE WHEN sum({count}) <> 0 OR sum({sum}) <> 0 THEN sum({sum}) END"
_DIFFERING: Final = " OR sum({count}) <> 0 OR sum({sum}) <> 0"
_UPDATED: Final = """, {count} = was.{count} + excluded.{count}, {sum} = CASE WHEN was.{count} + excluded.{count} <> 0
    THEN coalesce(was.{sum}, 0) + coalesce(excluded.{sum}, 0) END"""
"""As in SQL, the sum is null if no row of the group has a value."""


def refuse_columns(totals: TotalsConfig, columns: Sequence[Column], path: str) -> None:
    """Raises ChangelogError (USAGE) if a view with these columns cannot have the totals that `path` configures."""
    types_by_name = {column.name: column.type for column in columns}
    for name in (*totals.by, *totals.sums):
        if name not in types_by_name:
            hint = f"it has: {', '.join(types_by_name)}"
            raise ChangelogError(Kind.USAGE, f"{path}: the view has no column {name}", hint=hint)
    for name in totals.sums:
        if not _is_summed(types_by_name[name]):
            what = f"neither an integer nor a decimal number of a fixed scale with at most {DIGITS_MAX} digits"
            hint = "sums of other types would not be exact, or do not exist"
            raise ChangelogError(Kind.USAGE, f"{path}.sums: {name} is {what}", hint=hint)
    for name in totals.by:
        if types_by_name[name] not in _GROUP_TYPES and not isinstance(types_by_name[name], Decimal):
            hint = "group by numbers without a floating point, booleans, text, UUIDs, dates and times"
            raise ChangelogError(Kind.USAGE, f"{path}.by: rows cannot be grouped by {name}", hint=hint)
    names = [name.encode()[:_NAME_BYTES_MAX].decode(errors="ignore") for name, _ in declared(totals, columns)]
    if len({*names}) < len(names):
        message = f"{path}: two columns of the totals have the same name"
        raise ChangelogError(Kind.USAGE, message, hint="each sum adds the columns count_NAME and sum_NAME")


def _is_summed(type_: ColumnType) -> bool:
    """Returns whether sums of the type are exact. A decimal number with more than `DIGITS_MAX` digits is not parsed, so
    it can be NaN. If NaN has been added to a sum, it cannot be subtracted again.
    """
    return type_ in _SUM_TYPES or (isinstance(type_, Decimal) and type_.precision <= DIGITS_MAX)


def declared(totals: TotalsConfig, columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Returns the names and PostgreSQL types of the columns of the table of totals."""
    view_types = dict(ViewColumns(columns).declared())
    by = [(name, view_types[name]) for name in totals.by]
    sums = [pair for name in totals.sums for pair in ((_count(name), "bigint"), (_sum(name), "numeric"))]
    return [("_key", "text"), *by, (_COUNT, "bigint"), *sums]


def before(totals: TotalsConfig, truncated: str | None, names: Mapping[str, sql.Composable]) -> Iterator[sql.Composed]:
    """Yields the statements that precede the application of a batch.

    `names` has the tables: `rows` of the view, the `batch`, the `totals`, and `changes`, which exists only within the
    transaction.
    """
    affected = sql.SQL(_IN_BATCH).format(**names)
    if truncated is not None:
        is_truncated = sql.SQL(' OR _position < {} COLLATE "C"').format(sql.Literal(truncated))
        affected = affected + is_truncated
    yield from _statements(_BEFORE, totals, -1, affected, names)


def after(totals: TotalsConfig, names: Mapping[str, sql.Composable]) -> Iterator[sql.Composed]:
    """Yields the statements that follow the application of a batch. For `names`, see `before`."""
    yield from _statements(_AFTER, totals, 1, sql.SQL(_IN_BATCH).format(**names), names)


def _statements(
    texts: Sequence[str], totals: TotalsConfig, sign: int, affected: sql.Composable, names: Mapping[str, sql.Composable]
) -> Iterator[sql.Composed]:
    def for_each_sum(text: str) -> sql.Composed:
        return sql.SQL("").join(
            sql.SQL(text).format(
                column=sql.Identifier(name),
                count=sql.Identifier(_count(name)),
                sum=sql.Identifier(_sum(name)),
                sign=sql.Literal(sign),
            )
            for name in totals.sums
        )

    words = {
        "by": sql.SQL(", ").join(map(sql.Identifier, totals.by)),
        "sign": sql.Literal(sign),
        "affected": affected,
        "values": for_each_sum(_VALUE),
        "added": for_each_sum(_ADDED),
        "differing": for_each_sum(_DIFFERING),
        "updated": for_each_sum(_UPDATED),
    }
    for text in texts:
        yield sql.SQL(text).format(**names, **words)


def _count(name: str) -> str:
    return f"count_{name}"


def _sum(name: str) -> str:
    return f"sum_{name}"
