"""Makes HTTP answers: rows or an error as JSON, with headers that say how new the rows are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from msgspec import Raw
from starlette.responses import Response

from changelog.connectors.views.served import Completeness, StateRow
from changelog.envelope.codec.json_codec import time_text

POSITION = "x-position"
STALENESS = "x-staleness"


class RefusalError(Exception):
    """Raised to refuse a request. It has the `status` of the answer, what is wrong (`message`), what to do about it
    (`hint`), and further `headers` for the answer.
    """

    def __init__(
        self, status: HTTPStatus, message: str, hint: str | None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.hint, self.headers = status, message, hint, headers


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPage:
    """A part of a view's rows. `next_address` is the address of the next part, None if this is the last one."""

    rows: Sequence[StateRow]
    next_address: str | None


def row_answer(row: StateRow, reached: Completeness, *, now_s: float, definition: int, known_tag: str) -> Response:
    """Returns the answer with one row. `definition` is `ShownView.definition`. `known_tag` is the header If-None-Match:
    with it, the client names the state that it already has. If the row still has this state, the answer has no content.
    """
    tag = f'"{row.position}-{definition:08x}"'
    headers = {**headers_of(reached, now_s), "etag": tag, "cache-control": "private, no-cache"}
    if tag in known_tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return _json(HTTPStatus.OK, _row(row), headers)


def page_answer(page: RowPage, reached: Completeness, *, now_s: float) -> Response:
    """Returns the answer with a page of rows."""
    content = {"rows": [_row(row) for row in page.rows], "next": page.next_address}
    return _json(HTTPStatus.OK, content, headers_of(reached, now_s))


def error_answer(
    status: HTTPStatus, message: str, hint: str | None, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns the answer with an error."""
    retry = {"retry-after": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
    return _json(status, {"status": int(status), "error": message, "hint": hint}, {**retry, **(headers or {})})


def headers_of(reached: Completeness, now_s: float) -> dict[str, str]:
    """Returns the headers that say up to which position the states are complete, and how stale they are. A header whose
    value is unknown is left out. `now_s` is the present time, in seconds since 1970.
    """
    headers = {}
    if reached.position is not None:
        headers[POSITION] = str(reached.position)
    if reached.at_s is not None:
        headers[STALENESS] = f"{staleness(reached.at_s, now_s):.3f}"
    return headers


def staleness(at_s: float, now_s: float) -> float:
    """Returns how many seconds have passed since `at_s`; 0 if the clock was set back, so that `now_s` is earlier."""
    return max(now_s - at_s, 0.0)


def _row(row: StateRow) -> Mapping[str, object]:
    return {
        "key": row.key,
        "position": str(row.position),
        "committedAt": time_text(row.committed_at),
        "current": Raw(row.current),
        "unavailable": row.unavailable,
    }


def _json(status: HTTPStatus, content: object, headers: Mapping[str, str]) -> Response:
    return Response(msgspec.json.encode(content) + b"\n", status, headers, media_type="application/json")
