"""Reads stamps, which say who made changes, from the comments of statements and the tags of GTIDs.

Applications that send such a stamp need not insert a row into `changelog_stamp`.

A statement can begin with a comment as sqlcommenter writes it: names and values are percent-encoded, and a value is in
single quotes. https://google.github.io/sqlcommenter/spec describes the form.

    /*serviceName='till',apiVersion='v2',identifier='7'*/ UPDATE …
"""

import re
from typing import Final
from urllib.parse import unquote

from changelog.envelope.model import Stamp
from changelog.envelope.stamp import NBYTES_MAX

_COMMENT: Final = re.compile(rb"\s*/\*(?![!+])(.*?)\*/", re.DOTALL)
_PAIR: Final = re.compile(rb"([\w%.-]+)='((?:[^'\\]|\\.)*)'")


def comment_stamp(sql: bytes) -> Stamp | None:
    """Returns the stamp in the comment at the beginning of a statement; None if there is none.

    A comment is a stamp if it contains the name `serviceName` with a value that is not empty. Of the other names, only
    `apiVersion` and `identifier` are read, because tools write comments, too. A comment of more than `NBYTES_MAX` bytes
    is not a stamp. `sql` may be in any character set in which ASCII characters have one byte.
    """
    comment = _COMMENT.match(sql, 0, NBYTES_MAX)
    if comment is None:
        return None
    values = {_text(name): _text(value) for name, value in _PAIR.findall(comment[1])}
    if not values.get("serviceName"):
        return None
    return Stamp(
        service_name=values["serviceName"],
        api_version=values.get("apiVersion", ""),
        identifier=values.get("identifier", ""),
    )


def tag_stamp(tag: str) -> Stamp | None:
    """Returns a stamp whose service has the name `tag`, the tag of a GTID; None if the tag is empty."""
    return Stamp(service_name=tag, api_version="", identifier="") if tag else None


def _text(encoded: bytes) -> str:
    return unquote(re.sub(rb"\\(.)", rb"\1", encoded).decode("ascii", "replace"))
