"""Decodes events that contain a statement.

Source: MySQL's `statement_events.h`, class `Query_event`, and MariaDB's `log_event.h`, class `Query_log_event`.
"""

from dataclasses import dataclass
from functools import lru_cache

from changelog.connectors.sources.mysql.decode.events.compressed import inflate
from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.events import Query, RowsQuery
from changelog.connectors.sources.mysql.decode.events.header import Header


def query(cursor: Cursor, header: Header) -> Query:
    """Decodes a QUERY."""
    return _query(cursor, header, compressed=False)


def compressed_query(cursor: Cursor, header: Header) -> Query:
    """Decodes a QUERY_COMPRESSED of MariaDB."""
    return _query(cursor, header, compressed=True)


def rows_query(cursor: Cursor, header: Header) -> RowsQuery:
    """Decodes a ROWS_QUERY of MySQL. Its first byte, the statement's size modulo 256, is not needed."""
    cursor.skip(1)
    return RowsQuery(header=header, sql=cursor.rest())


def annotate_rows(cursor: Cursor, header: Header) -> RowsQuery:
    """Decodes an ANNOTATE_ROWS of MariaDB."""
    return RowsQuery(header=header, sql=cursor.rest())


def _query(cursor: Cursor, header: Header, *, compressed: bool) -> Query:
    thread_id, _, database_bytes = cursor.number(4), cursor.number(4), cursor.number(1)
    error_code, variables_bytes = cursor.number(2), cursor.number(2)
    context = _context(cursor, variables_bytes, database_bytes)
    return Query(
        header=header,
        thread_id=thread_id,
        error_code=error_code,
        database=context.database,
        sql=inflate(cursor) if compressed else cursor.rest(),
        sql_mode=context.sql_mode,
        client_collation=context.client_collation,
        microseconds=context.microseconds,
    )


@dataclass(slots=True)
class QueryContext:
    """The database of a statement's session, and the status variables that matter to us: see `Query`."""

    database: str = ""
    sql_mode: int | None = None
    client_collation: int | None = None
    microseconds: int | None = None


@lru_cache(maxsize=256)
def context_of(content: bytes, variables_bytes: int) -> QueryContext:
    """Decodes what stands between the fixed fields of a QUERY and the statement: status variables and the database.

    The results are cached, because the statements of a session repeat these bytes. Raises ChangelogError (MALFORMED)
    with the offset in the event.
    """
    cursor = Cursor(content, base=_CONTEXT_OFFSET)
    return _context(cursor, variables_bytes, len(content) - variables_bytes - 1)


def _context(cursor: Cursor, variables_bytes: int, database_bytes: int) -> QueryContext:
    context = _variables(cursor.part(variables_bytes))
    context.database = cursor.terminated(database_bytes)
    return context


_CONTEXT_OFFSET = 32
_SQL_MODE, _CATALOG, _CHARSET, _TIME_ZONE, _CATALOG_WITHOUT_ZERO = 1, 2, 4, 5, 6
_INVOKER, _DATABASES, _MICROSECONDS, _MARIADB_MICROSECONDS = 11, 12, 13, 128
_ALTER_FLAGS, _COLLATIONS = 130, 131
_TOO_MANY_DATABASES = 254
_SECOND_ALTER_PHASES = 4 | 8

_FIXED = {0: 4, 3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1, 129: 8}
"""The size in bytes of each skipped status variable that has a fixed size, by the variable's code."""


def _variables(cursor: Cursor) -> QueryContext:
    """Reads the status variables. Stops at the first unknown one, because its size is unknown; servers do the same."""
    variables = QueryContext()
    while cursor.left:
        code = cursor.number(1)
        if code == _SQL_MODE:
            variables.sql_mode = cursor.number(8)
        elif code == _CHARSET:
            variables.client_collation = cursor.number(2)
            cursor.skip(4)
        elif code in (_MICROSECONDS, _MARIADB_MICROSECONDS):
            variables.microseconds = cursor.number(3)
        elif code in _FIXED:
            cursor.skip(_FIXED[code])
        elif not _skip_variable(cursor, code):
            break
    return variables


def _skip_variable(cursor: Cursor, code: int) -> bool:
    """Skips the value of a status variable without a fixed size. Returns False if the variable is not known."""
    if code in (_TIME_ZONE, _CATALOG_WITHOUT_ZERO):
        cursor.skip(cursor.number(1))
    elif code == _CATALOG:
        cursor.skip(cursor.number(1) + 1)
    elif code == _INVOKER:
        cursor.skip(cursor.number(1))
        cursor.skip(cursor.number(1))
    elif code == _DATABASES:
        _skip_databases(cursor)
    elif code == _ALTER_FLAGS:
        cursor.skip(8 if cursor.number(1) & _SECOND_ALTER_PHASES else 0)
    elif code == _COLLATIONS:
        cursor.skip(4 * cursor.number(1))
    else:
        return False
    return True


def _skip_databases(cursor: Cursor) -> None:
    """Skips the names of the databases that a statement changes; each name ends with a zero byte.

    If there are too many databases, the server writes `_TOO_MANY_DATABASES` in place of their count, and no names.
    """
    count = cursor.number(1)
    if count == _TOO_MANY_DATABASES:
        return
    for _ in range(count):
        while cursor.number(1):
            pass
