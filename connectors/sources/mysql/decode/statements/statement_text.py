"""Converts logged statements to UTF-8. A server logs a statement in the character set of its session."""

from collections.abc import Mapping
from typing import Final

from changelog.connectors.sources.mysql.decode.events.events import Query
from changelog.connectors.sources.mysql.values.text.charsets import to_utf8
from changelog.connectors.sources.mysql.values.text.collations import charset_name
from changelog.envelope.errors import ChangelogError

_UTF8: Final = frozenset({None, "binary", "utf8", "utf8mb3", "utf8mb4"})
"""The character sets of statements that need no conversion. In a session with `binary`, names are in UTF-8, too."""


def statement_text(event: Query, charsets: Mapping[int, str]) -> bytes:
    """Returns the statement in UTF-8. `charsets` maps the ids of collations to the names of their character sets.

    If the statement has bytes that are not valid in its character set, every character that is not ASCII is replaced,
    so that no name in the statement is taken for another one.
    """
    collation = event.client_collation
    if collation is None or event.sql.isascii() or charset_name(collation, charsets) in _UTF8:
        return event.sql
    try:
        return to_utf8(collation, charsets)(event.sql)
    except ChangelogError:
        return event.sql.decode("ascii", "replace").encode()
