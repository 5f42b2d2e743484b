"""Collects one page of the rows whose keys are in a range, and makes the URL of the next page."""

from collections.abc import Sequence
from urllib.parse import urlencode

from changelog.connectors.views.http.answers import RowPage
from changelog.connectors.views.http.questions import AskedKeys, Parameters
from changelog.connectors.views.served import StateRow
from changelog.connectors.views.shown import ShownMoment

PAGE_BYTES = 4 << 20
"""A page ends as soon as the states of its rows have at least this many bytes together."""

KEYS_MAX = 10_000
"""A page ends after this many keys, even if few of them have a row that the view shows."""


def page_of(moment: ShownMoment, keys: AskedKeys, path: str, parameters: Parameters) -> RowPage:
    """Returns the rows of a range, in the order of their keys. Another page may follow a page that has fewer rows than
    the limit, or none (see `PAGE_BYTES` and `KEYS_MAX`). `path` and `parameters` are those of the request.
    """
    rows: list[StateRow] = []
    size = count = 0
    for key, row in moment.rows(keys.begin):
        if keys.is_past(key):
            break
        if key == keys.after:
            continue
        count += 1
        if row is not None:
            rows.append(row)
            size += len(row.current)
        if len(rows) == keys.limit or size >= PAGE_BYTES or count == KEYS_MAX:
            return RowPage(rows=rows, next_address=_after(path, parameters, key))
    return RowPage(rows=rows, next_address=None)


def _after(path: str, parameters: Parameters, key: str) -> str:
    """Returns the URL of the page that begins after a key. The URL repeats the request's parameters, except
    `min_position`, and sets `after` to this key. `min_position` is left out because the changelog has already reached
    that position, so the next request need not wait for it.
    """
    repeated: dict[str, Sequence[str]] = {
        name: values for name, values in parameters.items() if name not in ("after", "min_position")
    }
    return f"{path}?{urlencode({**repeated, 'after': [key]}, doseq=True)}"
