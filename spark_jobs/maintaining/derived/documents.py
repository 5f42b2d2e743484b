"""Keeps documents of several entities in PostgreSQL. A document is a row with arrays, which are columns of the row. The
elements of an array are the rows of another entity that belong to this *enclosing* row.

For each array, there are tables with its rows, in addition to the view's own tables. One transaction applies a batch.
Both before and after it changes the batch's rows, it notes to which enclosing rows they belong. Then it makes the
arrays of these enclosing rows again, inner arrays before outer ones. So it does not matter why a row changed, and the
work depends on the size of the batch, not on the size of the tables.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.avro import Column
from changelog.schemas.spark import DIGITS_MAX
from changelog.schemas.types import ColumnType, Decimal, Primitive
from changelog.spark_jobs.maintaining.derived.totals import affected
from changelog.spark_jobs.maintaining.parts import Path, ViewPart
from changelog.spark_jobs.maintaining.postgres_tables import ViewIndex
from changelog.spark_jobs.maintaining.target import StateBatch
from changelog.spark_jobs.views.to_postgres import ClaimedName

_NAME_BYTES_MAX: Final = 63
_MEMBERS_AT_ONCE: Final = 50  # a function has at most 100 arguments, and a member takes two

_SETTINGS: Final = (
    "SET LOCAL enable_seqscan = off",  # tables that were just filled have no statistics
    "SET LOCAL enable_hashjoin = off",
    "SET LOCAL enable_mergejoin = off",
    "SET LOCAL jit = off",
    "SET LOCAL extra_float_digits = 1",
)
_RESETS: Final = tuple(f"RESET {statement.split()[2]}" for statement in _SETTINGS)
"""From `_SETTINGS` until `_RESETS`, PostgreSQL finds rows by indexes, and prints floats exactly."""

_BEFORE: Final = "CREATE TABLE {values} AS SELECT {on} FROM {rows} AS was WHERE {affected}"

_NOTING: Final = ("INSERT INTO {values} SELECT {on} FROM {rows} AS was WHERE {affected}", "ANALYZE {values}")

_DOCUMENTS: Final = """WITH belonging AS MATERIALIZED (
        SELECT outside._key FROM (SELECT DISTINCT * FROM {values}) inside JOIN {outer} outside ON {belongs}
        UNION SELECT _key FROM {outer_batch}
    ), documents AS MATERIALIZED (
        SELECT outside._key, coalesce((
            SELECT jsonb_agg({element} ORDER BY inside._key COLLATE "C") FROM {rows} inside WHERE {belongs}
        ), '[]') AS elements FROM belonging JOIN {outer} outside USING (_key)
    )"""

_UPDATE: Final = """UPDATE {outer} outside SET {member} = documents.elements FROM documents
        WHERE outside._key = documents._key AND outside.{member}::text <> documents.elements::text"""

_MAKING: Final = f"{_DOCUMENTS} {_UPDATE}"
_MAKING_AND_NOTING: Final = f"""{_DOCUMENTS}, changed AS ({_UPDATE} RETURNING {{outer_on}})
    INSERT INTO {{outer_values}} SELECT * FROM changed"""
"""Makes the arrays of the enclosing rows again. `_MAKING_AND_NOTING` is for enclosing rows that are in an array
themselves: it also notes to which rows they belong.
"""

_DROPPING: Final = "DROP TABLE {values}"

_FLOAT: Final = """CASE WHEN abs({0}) < 1e16 AND {0} = trunc({0}) THEN to_jsonb(round({0}::text::numeric, 1))
    ELSE to_jsonb({0}) END"""

_JSON: Final[Mapping[ColumnType, str]] = {
    Primitive.FLOAT: _FLOAT,
    Primitive.DOUBLE: _FLOAT,
    Primitive.BYTES: "translate(encode({0}, 'base64'), E'\\n', '')",
    Primitive.TIMESTAMP: """to_char({0}, 'YYYY-MM-DD"T"HH24:MI:SS.US')""",
    Primitive.TIMESTAMP_TZ: """to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    Primitive.JSON: "{0}::jsonb",
}
"""SQL that writes a value as JSON, for those types whose JSON would otherwise differ between PostgreSQL and messages.
The results are the same as those of `changelog.spark_jobs.views.copy_rows.renderer`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTables:
    """The tables for the rows of one array. `names` has their names in the database, by the words `rows`, `deleted`,
    `batch` and `values`.

    `values` exists only within the transaction that applies a batch. For each row that the batch may change, it has the
    values of the columns `on`, before and after the batch.
    """

    array: ViewPart
    names: Mapping[str, sql.Identifier]

    @property
    def columns(self) -> list[Column]:
        """The columns of `rows`, without columns for arrays.

        If the values of a column are text in Spark, documents show them as they were published. So they are stored as
        text, unless PostgreSQL has a type that it prints in the same way.
        """
        return [replace(column, type=_stored_type(column.type)) for column in self.array.columns]


Arrays = Mapping[Path, ArrayTables]
"""The tables of all arrays of a view. Outer arrays come before inner ones."""


def mark_of(table: ClaimedName) -> str:
    """Returns the comment that marks the tables for the arrays of a view. No table of another view has this comment."""
    return f"changelog maintained arrays of the view {table.name}."


def table_of(table: ClaimedName, path: Path) -> ClaimedName:
    """Returns the name of the table for the rows of an array."""
    return replace(table, name="__".join((table.name, *path)))


def refuse_names(
    table: ClaimedName, own_suffixes: Sequence[str], paths: Sequence[Path], suffixes: Sequence[str]
) -> None:
    """Raises ChangelogError (USAGE) if two tables of a view would have the same name, or if a name would be too long.

    `own_suffixes` are the suffixes of the tables for the view's own rows, and `suffixes` those of the tables for the
    rows of each array.
    """
    taken_names = {table.name + suffix for suffix in own_suffixes}
    for path in paths:
        names = {table_of(table, path).name + suffix for suffix in suffixes}
        array = ".".join(path)
        for name in sorted(names):
            if len(name.encode()) > _NAME_BYTES_MAX:
                message = f"the array {array} needs the table {name}, whose name is longer than {_NAME_BYTES_MAX} bytes"
                raise ChangelogError(Kind.USAGE, message, hint="use a shorter --to, or rename the array")
            if name in taken_names:
                message = f"the array {array} needs the table {name}, which the view already uses"
                raise ChangelogError(Kind.USAGE, message, hint="rename the array")
        taken_names |= names


def _stored_type(type_: ColumnType) -> ColumnType:
    is_text = type_ is Primitive.TIME or (isinstance(type_, Decimal) and type_.precision > DIGITS_MAX)
    return Primitive.STRING if is_text else type_


def declared(path: Path, arrays: Arrays) -> list[tuple[str, str]]:
    """Returns the columns that hold the arrays of the rows at `path`: their names and their PostgreSQL types."""
    return [(member, "jsonb NOT NULL DEFAULT '[]'") for member in _members(path, arrays)]


def _members(path: Path, arrays: Arrays) -> list[str]:
    return [inner_path[-1] for inner_path in arrays if inner_path[:-1] == path]


@dataclass(frozen=True, slots=True)
class NestedArrays:
    """Implements `Derivation` for the arrays of documents. `own_names` has the tables for the view's own rows."""

    arrays: Arrays
    own_names: Mapping[str, sql.Identifier]

    def indexes(self) -> Iterator[ViewIndex]:
        """Yields the indexes that find the rows of an array for an enclosing row, and the enclosing rows for a row of
        an array.
        """
        columns: set[tuple[Path, tuple[str, ...]]] = set()
        for path, tables in self.arrays.items():
            on = tables.array.on
            columns |= {(path, tuple(on)), (path[:-1], tuple(dict.fromkeys(on.values())))}
        for path, names in sorted(columns):
            rows = self.arrays[path].names["rows"] if path else self.own_names["rows"]
            yield ViewIndex(rows, names)

    def before(self, batch: StateBatch) -> Iterator[sql.Composed]:
        """Yields statements that note to which enclosing rows the batch's rows belong."""
        yield from _formatted(_SETTINGS)
        for path, tables in self.arrays.items():
            condition = affected(batch.arrays[path].truncated, tables.names)
            yield from _formatted([_BEFORE], **tables.names, on=_listed(tables.array.on), affected=condition)
        yield from _formatted(_RESETS)

    def after(self) -> Iterator[sql.Composed]:
        """Yields statements that note the enclosing rows again, and then make the arrays of all enclosing rows that
        were noted, inner arrays first.
        """
        yield from _formatted(_SETTINGS)
        for path in reversed([*self.arrays]):
            yield from _made(path, self.arrays, self.own_names)
        yield from _formatted(_RESETS)


def _made(path: Path, arrays: Arrays, own_names: Mapping[str, sql.Identifier]) -> Iterator[sql.Composed]:
    """Yields the statements that make one array of the enclosing rows again."""
    tables, outer = arrays[path], arrays.get(path[:-1])
    outer_names = own_names if outer is None else outer.names
    belongs = sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(_column("inside", name), _column("outside", outer_name))
        for name, outer_name in tables.array.on.items()
    )
    words = {
        "on": _listed(tables.array.on),
        "affected": affected(None, tables.names),
        "belongs": belongs,
        "outer": outer_names["rows"],
        "outer_batch": outer_names["batch"],
        "member": sql.Identifier(path[-1]),
        "element": _element(path, arrays),
    }
    making = _MAKING
    if outer is not None:
        making = _MAKING_AND_NOTING
        words["outer_values"] = outer_names["values"]
        words["outer_on"] = sql.SQL(", ").join(_column("outside", name) for name in outer.array.on)
    yield from _formatted([*_NOTING, making, _DROPPING], **tables.names, **words)


def _element(path: Path, arrays: Arrays) -> sql.Composed:
    """Returns the SQL expression that makes an array's element from a row `inside`."""
    tables = arrays[path]
    types = {column.name: column.type for column in tables.columns}
    values = {name: _value(_column("inside", name), types[name]) for name in tables.array.shown}
    values |= {member: _column("inside", member) for member in _members(path, arrays)}
    members = [sql.SQL("{}, {}").format(sql.Literal(name), value) for name, value in values.items()]
    objects = [
        sql.SQL("jsonb_build_object({})").format(sql.SQL(", ").join(members[start : start + _MEMBERS_AT_ONCE]))
        for start in range(0, len(members), _MEMBERS_AT_ONCE)
    ]
    return sql.SQL(" || ").join(objects)


def _value(column: sql.Composed, type_: ColumnType) -> sql.Composed:
    """Returns the SQL expression that makes JSON from a column's value."""
    return sql.SQL("{0}::text" if isinstance(type_, Decimal) else _JSON.get(type_, "{0}")).format(column)


def _column(row: str, name: str) -> sql.Composed:
    return sql.SQL("{}.{}").format(sql.SQL(row), sql.Identifier(name))


def _listed(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _formatted(texts: Iterable[str], **words: sql.Composable) -> Iterator[sql.Composed]:
    return (sql.SQL(text).format(**words) for text in texts)
