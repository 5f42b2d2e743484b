"""Reads from the catalogue which tables a server has now, for setup, for checks and for reading the tables.

The columns of streamed rows come from the table maps (the events that describe tables) in the binary log. Table maps do
not tell some types apart. The declared type of such a column comes from the catalogue (`TableColumn.declared`). MySQL
and MariaDB both call their catalogue `information_schema`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from changelog.connectors.sources import Trait
from changelog.connectors.sources.mysql.decode.transactions import SIGNAL_TABLE, STAMP_TABLE
from changelog.connectors.sources.mysql.session.flavour import Flavour, ServerVersion
from changelog.connectors.sources.mysql.session.names import quoted

Query = Callable[[str, Sequence[object]], Sequence[tuple[Any, ...]]]
"""Runs SQL with the values of its `%s` parameters, and returns the rows."""

TableName = tuple[str, str]
"""The names of a database and of a table in it."""

SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")

ENGINE = "InnoDB"
"""The storage engine that tables must have. Most other engines cannot roll back a transaction."""

_JSON = "json"

_ATTEMPTS = 5
_PRIMARY = "PRI"
"""How the catalogue marks a column of the primary key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column.

    `declared` is its type as the server prints it, such as `int(11) unsigned`. MariaDB stores a `json` column as a
    `longtext` with a constraint; `declared` is `json` for such a column too.
    """

    name: str
    not_null: bool
    declared: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueIndex:
    """A unique index on columns. `prefix` is true if the index covers only the beginning of a column."""

    name: str
    columns: tuple[str, ...]
    prefix: bool

    @property
    def primary(self) -> bool:
        """Whether this is the index of the primary key. Such an index is always named `PRIMARY`."""
        return self.name == "PRIMARY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that is not a view.

    `schema` is the name of its database. `engine` is its storage engine, such as `InnoDB`. `versioned` is true if the
    server keeps old rows in the table (MariaDB's system versioning). `cascades` names the foreign keys by which a
    change of another table changes this table. `rows_estimate` and `nbytes` are the server's estimates; `nbytes` does
    not include indexes.
    """

    schema: str
    name: str
    engine: str
    versioned: bool
    columns: tuple[TableColumn, ...]
    unique_indexes: tuple[UniqueIndex, ...]
    cascades: tuple[str, ...]
    rows_estimate: int
    nbytes: int

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key; empty if there is none."""
        return next((index.columns for index in self.unique_indexes if index.primary), ())

    @property
    def trait(self) -> Trait:
        """The storage engine. The source needs an engine whose changes can be rolled back."""
        return Trait(name="engine", value=self.engine or "none", suffices=self.engine == ENGINE)

    def usable_key(self) -> tuple[str, ...] | None:
        """Returns the columns of the primary key or of the first unique index that can serve as the key, else None."""
        indexes = sorted(self.unique_indexes, key=lambda index: (not index.primary, index.name))
        return next((index.columns for index in indexes if self.key_problem(index.columns) is None), None)

    def key_problem(self, key: Sequence[str]) -> str | None:
        """Returns why `key` cannot identify the rows in a changelog, and how to fix that; None if it can.

        The columns of the key must be NOT NULL. There must be a unique index on exactly these columns, and not only on
        the beginnings of their values.
        """
        text, key_list = f"{self.schema}.{self.name}", ", ".join(key)
        columns = {column.name.lower(): column for column in self.columns}
        for name in key:
            if name.lower() not in columns:
                return f"the table {text} has no column {name}"
            if not columns[name.lower()].not_null:
                return f"column {name} of the table {text} may be null; make it NOT NULL"
        covering = [index for index in self.unique_indexes if sorted(index.columns) == sorted(key)]
        if not covering:
            return f"the table {text} has no unique index on ({key_list}); create one, or choose another key"
        if all(index.prefix for index in covering):
            index_text = f"the unique index {covering[0].name} of the table {text}"
            return f"{index_text} covers only prefixes of columns; create another on ({key_list})"
        return None


def read_tables(
    query: Query, *, only: TableName | None = None, sized: Callable[[TableName], bool] = lambda _: False
) -> list[Table]:
    """Returns the tables that can be published, sorted by database and name. Leaves out views, system tables, and the
    tables of stamps and signals.

    If `only` is given, returns only the table with this database and name. `sized` says for which tables `nbytes` is
    read; for all others, it is 0.

    While a table is being renamed, the catalogue may show the table incompletely, for example without columns or
    indexes. Then the catalogue is read again, up to `_ATTEMPTS` times in total.
    """
    tables: list[Table] = []
    for _ in range(_ATTEMPTS):
        tables, is_whole = _read(query, only, sized)
        if is_whole:
            break
    return tables


def _read(query: Query, only: TableName | None, sized: Callable[[TableName], bool]) -> tuple[list[Table], bool]:
    """Returns the tables, and whether all queries saw the same tables."""
    condition, names = _restriction(only)
    columns = _by_table(query(_COLUMNS.format(condition), names))
    indexes = _by_table(query(_INDEXES.format(condition), names))
    cascades = _by_table(query(_CASCADES.format(condition.replace("TABLE_SCHEMA", "CONSTRAINT_SCHEMA")), names))
    [(version,)] = query("SELECT VERSION()", ())
    json = json_columns(query, ServerVersion.parse(version).flavour, only)
    rows_of_tables = query(_TABLES.format(condition), names)
    table_names = {(schema, name) for schema, name, *_ in rows_of_tables}
    has_primary_key = {name for name, rows in columns.items() if any(key == _PRIMARY for *_, key in rows)}
    is_whole = table_names <= columns.keys() and has_primary_key <= indexes.keys() <= table_names
    tables = [
        Table(
            schema=schema,
            name=name,
            engine=engine or "",
            versioned=kind != "BASE TABLE",
            columns=tuple(
                _column(row, is_json=(schema, name, row[0]) in json) for row in columns.get((schema, name), ())
            ),
            unique_indexes=tuple(_indexes_of(indexes.get((schema, name), ()))),
            cascades=tuple(constraint for (constraint,) in cascades.get((schema, name), ())),
            rows_estimate=int(rows or 0),
            nbytes=int(nbytes or 0) if sized((schema, name)) else 0,
        )
        for schema, name, kind, engine, rows, nbytes in rows_of_tables
        if name not in (SIGNAL_TABLE, STAMP_TABLE)
    ]
    return tables, is_whole


def _restriction(only: TableName | None) -> tuple[str, Sequence[str]]:
    """Returns the condition that selects the tables, and the values of its parameters."""
    if only is None:
        return f"TABLE_SCHEMA NOT IN ({', '.join(['%s'] * len(SYSTEM_DATABASES))})", SYSTEM_DATABASES
    return "TABLE_SCHEMA = %s AND TABLE_NAME = %s", only


def _by_table(rows: Iterable[tuple[Any, ...]]) -> dict[TableName, list[tuple[Any, ...]]]:
    by_table: dict[TableName, list[tuple[Any, ...]]] = defaultdict(list)
    for schema, name, *row in rows:
        by_table[schema, name].append(tuple(row))
    return by_table


def _column(row: tuple[Any, ...], *, is_json: bool) -> TableColumn:
    name, nullable, declared, _ = row
    return TableColumn(name=name, not_null=nullable == "NO", declared=_JSON if is_json else declared)


def _indexes_of(rows: Iterable[tuple[Any, ...]]) -> Iterable[UniqueIndex]:
    """Yields the indexes of one table. Leaves out indexes over expressions: these have a part without a column."""
    parts: dict[str, list[tuple[str | None, int | None]]] = defaultdict(list)
    for name, column, prefix_length in rows:
        parts[name].append((column, prefix_length))
    for name, columns in parts.items():
        names = tuple(column for column, _ in columns if column is not None)
        if len(names) == len(columns):
            yield UniqueIndex(name=name, columns=names, prefix=any(length is not None for _, length in columns))


def json_columns(query: Query, flavour: Flavour, only: TableName | None) -> Collection[tuple[str, str, str]]:
    """Returns the columns of MariaDB that were declared as `json`; none for MySQL.

    MariaDB gives such a column the constraint `json_valid` and no type of its own.
    """
    if flavour is not Flavour.MARIADB:
        return ()
    schema, table = only or (None, None)
    rows = query(_JSON_CONSTRAINTS, (schema, schema, table))
    return {(schema, table, name) for schema, table, name, clause in rows if clause == f"json_valid({quoted(name)})"}


_TABLES = """
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND {}
ORDER BY TABLE_SCHEMA, TABLE_NAME
"""

_COLUMNS = """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, IS_NULLABLE, COLUMN_TYPE, COLUMN_KEY FROM information_schema.COLUMNS
WHERE {}
ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""

_INDEXES = """
SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
WHERE NON_UNIQUE = 0 AND {}
ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX
"""

_CASCADES = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE (UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION') OR DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION')) AND {}
ORDER BY CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME
"""

# A constraint of the level Column has the name of its column.
_JSON_CONSTRAINTS = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS
WHERE LEVEL = 'Column' AND (%s IS NULL OR (CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s))
"""
