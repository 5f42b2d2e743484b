"""Defines the columns of a table of totals. Says which columns of a view can be used to group rows, which can be
summed, and which can have the times for windows or sessions.
"""

from collections.abc import Sequence
from typing import Final

from changelog.connectors.config import TotalsConfig
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.avro import Column
from changelog.schemas.spark import DIGITS_MAX
from changelog.schemas.types import ColumnType, Decimal, Primitive
from changelog.spark_jobs.views.copy_rows import ViewColumns

COUNT: Final = "_count"
START: Final = "_start"
END: Final = "_end"

_NAME_BYTES_MAX: Final = 63
"""PostgreSQL cuts longer names after this many bytes, or a little earlier, so that no character is divided."""

_SUM_TYPES: Final = frozenset({Primitive.INT, Primitive.LONG})
_TIME_TYPES: Final = frozenset({Primitive.TIMESTAMP, Primitive.TIMESTAMP_TZ})

_NOT_GROUPED: Final = frozenset({Primitive.FLOAT, Primitive.DOUBLE, Primitive.BYTES, Primitive.JSON})


def refuse_columns(totals: TotalsConfig, columns: Sequence[Column], path: str) -> None:
    """Raises ChangelogError (USAGE) if a view with these columns cannot have the totals that `path` configures."""
    types_by_name = {column.name: column.type for column in columns}
    time_column = time_column_of(totals)
    for name in (*totals.by, *totals.sums, *([] if time_column is None else [time_column])):
        if name not in types_by_name:
            hint = f"it has: {', '.join(types_by_name)}"
            raise ChangelogError(Kind.USAGE, f"{path}: the view has no column {name}", hint=hint)
    for name in totals.sums:
        if not _is_summed(types_by_name[name]):
            what = f"neither an integer nor a decimal number of a fixed scale with at most {DIGITS_MAX} digits"
            hint = "sums of other types would not be exact, or do not exist"
            raise ChangelogError(Kind.USAGE, f"{path}.sums: column {name} is {what}", hint=hint)
    for name in totals.by:
        if not _is_grouped(types_by_name[name]):
            hint = "group by numbers without a floating point, booleans, text, UUIDs, dates and times"
            raise ChangelogError(Kind.USAGE, f"{path}.by: rows cannot be grouped by column {name}", hint=hint)
    if time_column is not None and types_by_name[time_column] not in _TIME_TYPES:
        part = "session" if totals.window is None else "window"
        message = f"{path}.{part}: column {time_column} is not a date with a time"
        raise ChangelogError(Kind.USAGE, message, hint="name a column of type timestamp")
    names = [name.encode()[:_NAME_BYTES_MAX].decode(errors="ignore") for name, _ in declared(totals, columns)]
    if len({*names}) < len(names):
        message = f"{path}: two columns of the totals have the same name"
        raise ChangelogError(Kind.USAGE, message, hint="each sum adds the columns count_NAME and sum_NAME")


def _is_grouped(type_: ColumnType) -> bool:
    return isinstance(type_, Decimal) or (isinstance(type_, Primitive) and type_ not in _NOT_GROUPED)


def _is_summed(type_: ColumnType) -> bool:
    """Returns whether sums of the type stay exact. Decimals with more than `DIGITS_MAX` digits are excluded: they are
    not parsed, so a value can be NaN, and a NaN that was added to a sum cannot be subtracted again.
    """
    return type_ in _SUM_TYPES or (isinstance(type_, Decimal) and type_.precision <= DIGITS_MAX)


def declared(totals: TotalsConfig, columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Returns the columns of the table of totals: their names and their PostgreSQL types."""
    view_types = dict(ViewColumns(columns).declared())
    time_column = time_column_of(totals)
    by = [(name, view_types[name]) for name in totals.by]
    times = [] if time_column is None else [(name, view_types[time_column]) for name in (START, END)]
    sums = [pair for name in totals.sums for pair in ((count_column(name), "bigint"), (sum_column(name), "numeric"))]
    return [("_key", "text"), *by, *times, (COUNT, "bigint"), *sums]


def time_column_of(totals: TotalsConfig) -> str | None:
    """Returns the column that has the times for windows or sessions; None if the totals have neither."""
    part = totals.window or totals.session
    return None if part is None else part.column


def count_column(name: str) -> str:
    """Returns the name of the column that counts the values in the view's column `name`."""
    return f"count_{name}"


def sum_column(name: str) -> str:
    """Returns the name of the column that has the sum of the values in the view's column `name`."""
    return f"sum_{name}"
