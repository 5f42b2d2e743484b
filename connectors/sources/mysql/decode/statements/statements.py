"""Finds out what the statement of a QUERY event does to tables and transactions, without a parser of SQL.

It reads only the part of a statement that shows which tables the statement names. If it does not recognise a statement,
it reports `Unsure`. The statements come from the server's log, so the server has executed them and their syntax is
valid.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from changelog.connectors.sources.mysql.decode.statements.alterations import altered
from changelog.connectors.sources.mysql.decode.statements.effects import (
    Altered,
    Created,
    DatabaseDropped,
    Dml,
    Dropped,
    Effect,
    Renamed,
    TableName,
    Transactional,
    Truncated,
    Unsure,
    Verb,
)
from changelog.connectors.sources.mysql.decode.statements.sql_tokens import UnclearStatementError, tokens
from changelog.connectors.sources.mysql.decode.statements.statement_reader import StatementReader
from changelog.connectors.sources.mysql.decode.statements.transaction_steps import (
    released,
    rolled_back,
    saved,
    xa,
)

Effects = Sequence[Effect]
RowChange = Callable[[StatementReader], frozenset[TableName]]
"""Returns the tables whose rows a statement can have changed. Raises UnclearStatementError if it may have changed any
table.
"""


def effects(
    sql: bytes,
    database: str,
    *,
    ansi_quotes: bool,
    no_backslash_escapes: bool,
    lower_case_table_names: int,
) -> Effects:
    """Returns the effects of a statement on tables and transactions, in the order in which they happen.

    `sql` is in UTF-8. If the client used another character set, the caller converts the statement first, because in
    some character sets the bytes of a letter can look like quotes. `database` is the session's current database, and
    `ansi_quotes` and `no_backslash_escapes` are modes of the session's `sql_mode`. If `lower_case_table_names` is not
    0, all names are returned in lower case. If a name is not valid UTF-8, nobody knows which table it means; then the
    effect is an `Unsure` or a `Dml` without a table.
    """
    if sql in _FREQUENT:
        return _FREQUENT[sql]
    text = sql.decode("utf-8", "replace")
    pieces = tokens(text, ansi_quotes=ansi_quotes, no_backslash_escapes=no_backslash_escapes)
    reader = StatementReader(pieces, database, fold_names=lower_case_table_names != 0)
    if reader.at_end and reader.complete:
        return ()
    try:
        return _effects(reader)
    except UnclearStatementError:
        return (Unsure(table=None),)


def _effects(reader: StatementReader) -> Effects:
    if reader.accept("SET", "STATEMENT"):  # MariaDB: SET STATEMENT max_statement_time = 1 FOR …
        reader.find(frozenset({"FOR"}))
    keyword = reader.take().keyword
    if keyword in _CONSTANT:
        return _CONSTANT[keyword]
    if keyword in _ROW_CHANGES:
        tables = _changed_tables(_ROW_CHANGES[keyword], reader)
        return () if tables == frozenset() else (Dml(tables=tables),)
    if keyword not in _HANDLERS:
        raise UnclearStatementError
    result = _HANDLERS[keyword](reader)
    if not reader.complete and keyword != "CREATE":  # only the beginning of a CREATE matters
        raise UnclearStatementError
    return result


def _changed_tables(handler: RowChange, reader: StatementReader) -> frozenset[TableName] | None:
    try:
        return handler(reader)
    except UnclearStatementError:
        return None


def _alter(reader: StatementReader) -> Effects:
    reader.skip_any(frozenset({"ONLINE", "IGNORE"}))
    return altered(reader) if reader.accept("TABLE") else _other_object(reader)


def _create(reader: StatementReader) -> Effects:
    replaces = reader.accept("OR", "REPLACE")
    temporary = reader.accept("TEMPORARY")
    if not reader.accept("TABLE"):
        return _other_object(reader)
    if_missing = reader.accept("IF", "NOT", "EXISTS")
    table = reader.table()
    if temporary:
        return ()
    creation = Created(table=table, if_missing=if_missing)
    return (Dropped(table=table), creation) if replaces else (creation,)


def _drop(reader: StatementReader) -> Effects:
    temporary = reader.accept("TEMPORARY")
    if reader.accept("DATABASE") or reader.accept("SCHEMA"):
        reader.accept("IF", "EXISTS")
        return (DatabaseDropped(schema=reader.database()),)
    if not (reader.accept("TABLE") or reader.accept("TABLES")):
        return _other_object(reader)
    reader.accept("IF", "EXISTS")
    tables = [reader.table()]
    while reader.accept_symbol(","):
        tables.append(reader.table())
    return () if temporary else tuple(Dropped(table=table) for table in tables)


def _other_object(reader: StatementReader) -> Effects:
    """Returns the effects of a CREATE, ALTER or DROP of an object that is not a table.

    Only an index matters: it belongs to a table, which is altered. Words like `DEFINER = …` can stand before the kind
    of the object.
    """
    kind = reader.find(_OBJECTS | {"INDEX"})
    if not kind:
        raise UnclearStatementError
    if kind != "INDEX":
        return ()
    if not reader.find(frozenset({"ON"})):
        raise UnclearStatementError
    return (Altered(table=reader.table()),)


def _rename(reader: StatementReader) -> Effects:
    if reader.accept("USER"):
        return ()
    if not (reader.accept("TABLE") or reader.accept("TABLES")):
        raise UnclearStatementError
    reader.accept("IF", "EXISTS")
    renames: list[Renamed] = []
    while not renames or reader.accept_symbol(","):
        table = reader.table()
        if not reader.find(frozenset({"TO"})):  # MariaDB allows WAIT or NOWAIT before it
            raise UnclearStatementError
        renames.append(Renamed(table=table, new=reader.table()))
    return renames


def _truncate(reader: StatementReader) -> Effects:
    reader.accept("TABLE")
    return (Truncated(table=reader.table()),)


def _insert(reader: StatementReader) -> frozenset[TableName]:
    reader.skip_any(frozenset({"LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO"}))
    return frozenset({reader.table()})


def _update(reader: StatementReader) -> frozenset[TableName]:
    return reader.all_tables(frozenset({"SET"}))


def _delete(reader: StatementReader) -> frozenset[TableName]:
    return reader.all_tables(frozenset({"WHERE", "ORDER", "LIMIT", "RETURNING"}))


def _with(reader: StatementReader) -> frozenset[TableName]:
    return reader.all_tables()


def _load(reader: StatementReader) -> frozenset[TableName]:
    if reader.keyword == "INDEX":
        return frozenset()
    while not reader.accept("TABLE"):
        if not reader.find(frozenset({"INTO"})):
            raise UnclearStatementError
    return frozenset({reader.table()})


def _analyze(reader: StatementReader) -> Effects:
    """Returns the effects of ANALYZE TABLE, or of ANALYZE before another statement, which MariaDB then executes."""
    return () if reader.keyword in ("LOCAL", "NO_WRITE_TO_BINLOG", "TABLE", "TABLES") else _ANY_ROWS


def _start(reader: StatementReader) -> Effects:
    """Returns the effects of START TRANSACTION, or of a statement that starts replication."""
    return _BEGUN if reader.accept("TRANSACTION") else ()


_BEGUN: Final[Effects] = (Transactional(verb=Verb.BEGIN),)
_COMMITTED: Final[Effects] = (Transactional(verb=Verb.COMMIT),)
_ANY_ROWS: Final[Effects] = (Dml(tables=None),)
_FREQUENT: Final[Mapping[bytes, Effects]] = {b"BEGIN": _BEGUN, b"COMMIT": _COMMITTED}
_ROW_CHANGES: Final[Mapping[str, RowChange]] = {
    "DELETE": _delete,
    "INSERT": _insert,
    "LOAD": _load,
    "REPLACE": _insert,
    "UPDATE": _update,
    "WITH": _with,
}
_HANDLERS: Final[Mapping[str, Callable[[StatementReader], Effects]]] = {
    "ALTER": _alter,
    "ANALYZE": _analyze,
    "CREATE": _create,
    "DROP": _drop,
    "RELEASE": released,
    "RENAME": _rename,
    "ROLLBACK": rolled_back,
    "SAVEPOINT": saved,
    "START": _start,
    "TRUNCATE": _truncate,
    "XA": xa,
}
_WITHOUT_EFFECT: Final = [
    "BACKUP", "BINLOG", "CACHE", "CHANGE", "CHECK", "CHECKSUM", "CLONE", "DEALLOCATE", "DESC", "DESCRIBE", "EXPLAIN",
    "FLUSH", "GRANT", "HANDLER", "HELP", "INSTALL", "KILL", "LOCK", "OPTIMIZE", "PREPARE", "PURGE", "REPAIR",
    "RESET", "RESIGNAL", "RESTART", "REVOKE", "SET", "SHOW", "SHUTDOWN", "SIGNAL", "STOP", "UNINSTALL", "UNLOCK",
    "USE",
]  # fmt: skip
"""The first words of statements that change no rows, tables or transactions. Accounts and settings do not matter."""
_FUNCTION_CALLS: Final = ["CALL", "DO", "SELECT", "VALUES"]
"""The first words of statements that the server logs only because they call a function, which can change any rows."""
_CONSTANT: Final[Mapping[str, Effects]] = {
    "BEGIN": _BEGUN,
    "COMMIT": _COMMITTED,
    **dict.fromkeys(_WITHOUT_EFFECT, ()),
    **dict.fromkeys(_FUNCTION_CALLS, _ANY_ROWS),
}
_OBJECTS: Final = frozenset({
    "CATALOG", "DATABASE", "EVENT", "FUNCTION", "INSTANCE", "LIBRARY", "LOGFILE", "PACKAGE", "PREPARE", "PROCEDURE",
    "REFERENCE", "RESOURCE", "ROLE", "SCHEMA", "SEQUENCE", "SERVER", "TABLESPACE", "TRIGGER", "USER", "VIEW",
})  # fmt: skip
"""Words for kinds of objects that are neither a table nor a part of one (REFERENCE: SPATIAL REFERENCE SYSTEM)."""
