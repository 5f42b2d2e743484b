"""Writes stamps as comments at the beginning of statements, for MySQL and MariaDB.

The binary logs of these databases can contain the text of each statement, with its comment. PostgreSQL's write-ahead
log cannot. The comments have the form that https://google.github.io/sqlcommenter/spec defines.
"""

from __future__ import annotations

from urllib.parse import quote

from changelog_stamps.current import current
from changelog_stamps.members import Stamp
from changelog_stamps.warned import warn

NBYTES_MAX = 4096
"""The most bytes that a comment may have."""


def comment(stamp: Stamp) -> str:
    """Returns a stamp as a comment with a space after it; an empty string if the stamp names no service.

    Values are percent-encoded, so that they cannot end the comment. The stamp's context is left out. If the comment is
    still too long, the identifier is left out, too, then the version, and then the service.
    """
    if not stamp.service:
        return ""
    pairs = [("serviceName", stamp.service), ("apiVersion", stamp.version), ("identifier", stamp.identifier)]
    members = [f"{name}='{quote(value, safe='')}'" for name, value in pairs if value]
    while members:
        text = f"/*{','.join(members)}*/ "
        if len(text) <= NBYTES_MAX:
            return text
        members.pop()
        warn(f"the comment of a stamp has more than {NBYTES_MAX} bytes; its last member is left out")
    return ""


def commented(statement: str, *, formatted: bool = False, stamp: Stamp | None = None) -> str:
    """Returns a statement with a stamp as a comment before it. If `stamp` is None, the current stamp is used.

    Set `formatted` if the driver reads `%s` in the statement as a placeholder. Then the percent signs in the comment
    are doubled; those in the statement do not change.
    """
    text = comment(current() if stamp is None else stamp)
    return (text.replace("%", "%%") if formatted else text) + statement
