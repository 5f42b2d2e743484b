"""Reads the rows of requested keys from a table.

The keys are in canonical form, as messages have them. The server may treat different keys as equal, such as `a` and
`A`. So each returned row is matched with the requested keys by the key that our encoder produces for the row.
"""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.chunk_rows import KeyedRows
from changelog.connectors.capture.tables.key_lookup import LookupKeys
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.snapshot.key_columns import KeyColumn, Literals, keys_condition
from changelog.connectors.sources.mysql.snapshot.read_table import ReadTable


def read_keys(connection: Connection, origin: Origin, table: ReadTable, part: LookupKeys, *, read_at: int) -> KeyedRows:
    """Reads the rows of the keys in `part`, under the snapshot of the connection's transaction.

    Raises ChangelogError and ResultTooLargeError.
    """
    rows = table.rows(connection, origin, _condition(table.key, part.keys), read_at=read_at)
    requested = pa.array(part.keys, pa.utf8())
    return KeyedRows(origin=origin, rows=rows, requested=requested, ghosts=part.ghosts)


def _condition(key: Sequence[KeyColumn], keys: Sequence[str]) -> str:
    """Returns a condition that all rows with these keys fulfil. Rows with other keys may fulfil it, too."""
    rows = [literals for text in keys if (literals := _literals(key, text)) is not None]
    return keys_condition(key, rows) if rows else "FALSE"


def _literals(key: Sequence[KeyColumn], text: str) -> Literals | None:
    """Returns the literals of a key; None if no row of the table can have it."""
    texts = _texts(text, len(key))
    if texts is None:
        return None
    literals = [column.from_canonical(part) for column, part in zip(key, texts, strict=True)]
    return None if None in literals else tuple(literal for literal in literals if literal is not None)


def _texts(key: str, width: int) -> list[str] | None:
    """Returns the text of each column of a key; None if the key cannot be in a table with `width` key columns."""
    if width == 1:
        return [key]
    try:
        texts = msgspec.json.decode(key, type=list[str])
    except msgspec.DecodeError:
        return None
    return texts if len(texts) == width else None
