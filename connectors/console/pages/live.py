"""`/tail`: shows new changes as they are published: those of all entities or of one, by all services or by one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from changelog.connectors.console.changes import DescribedChange, change
from changelog.connectors.console.rendering import Page, fragment, wants_json
from changelog.connectors.console.site import RECENT, Site, newest_records, selected
from changelog.connectors.sinks import unknown_entity
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Record, position_of
from changelog.envelope.position import Position

SHOWN = 30
"""How many changes the page has at first."""

WAITING_MAX = 200
"""How many changes wait for a slow browser. Further changes are left out, and the browser is told how many."""

POLL_S = 0.3
HEARTBEAT_S = 15.0
"""After so many seconds without a change, the stream sends a comment, so that a lost connection is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChoice:
    """Which changes a live view shows: those of `entity` and by `service`; None means any entity, or any service."""

    entity: str | None
    service: str | None

    @classmethod
    def of(cls, site: Site, request: Request) -> "LiveChoice":
        """Reads the choice from the query. Raises ChangelogError (USAGE) if there is no such entity."""
        entity = request.query_params.get("entity") or None
        if entity is not None and entity not in (entities := site.entities()):
            raise unknown_entity(site.log, entity, entities)
        return cls(entity=entity, service=request.query_params.get("service") or None)


def tail(site: Site, request: Request) -> Page:
    """Returns the page with the newest changes. Its script adds new ones."""
    choice = LiveChoice.of(site, request)
    newest = newest_records(site.log, 1)
    records = newest_records(site.log, SHOWN, entity=choice.entity, service=choice.service)
    after = max(map(position_of, [*newest, *records]), default=None)  # a change may be stored between the two reads
    data = {
        "entity": choice.entity,
        "service": choice.service,
        "changes": [change(record, site.palette) for record in records],
        "after": "" if after is None else str(after),
        "searched": RECENT,
        "entities": list(site.entities()),
    }
    return Page(template="tail.html", title="Live changes", data=data)


def events(site: Site, request: Request) -> Response:
    """Returns the stream of new changes, as server-sent events.

    The stream begins after the position in the header `Last-Event-ID`, which a browser sends when it connects again.
    Without this header, it begins after the position in the parameter `after`. An event `change` has the change as
    HTML, or as JSON if the request accepts it. An event `skipped` has the number of changes that were left out. An
    event `problem` has an error, and is the last.
    """
    choice = LiveChoice.of(site, request)
    after = _position(request.headers.get("last-event-id") or request.query_params.get("after", ""))
    stream = _Stream(site, choice, after, as_json=wants_json(request))
    return StreamingResponse(stream.events(), media_type="text/event-stream")


class _Stream:
    """Reads new changes in a thread, and hands them to the event loop, which sends them."""

    def __init__(self, site: Site, choice: LiveChoice, after: Position | None, *, as_json: bool) -> None:
        self._site, self._choice, self._after, self._as_json = site, choice, after, as_json
        self._closed = threading.Event()
        self._skipped = 0

    async def events(self) -> AsyncIterator[str]:
        """Yields the text of events until the browser leaves or the console ends."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(event: str) -> None:
            if queue.qsize() < WAITING_MAX:
                queue.put_nowait(event)
            else:
                self._skipped += 1

        thread = threading.Thread(target=self._read, args=(lambda event: loop.call_soon_threadsafe(put, event),))
        thread.daemon = True
        thread.start()
        yield "retry: 3000\n\n"
        quiet_s = 0.0
        try:
            while not self._site.stopping():
                try:
                    event = await asyncio.wait_for(queue.get(), POLL_S)
                except TimeoutError:
                    quiet_s += POLL_S
                    if quiet_s >= HEARTBEAT_S or not thread.is_alive():
                        quiet_s = 0.0
                        yield ": nothing new\n\n"
                    if not thread.is_alive() and queue.empty():
                        return
                    continue
                quiet_s = 0.0
                yield event
                if self._skipped and queue.empty():
                    skipped, self._skipped = self._skipped, 0
                    yield _event("skipped", str(skipped))
        finally:
            self._closed.set()

    def _read(self, send: Callable[[str], object]) -> None:
        log, choice = self._site.log, self._choice
        try:
            new_rows = log.follow(entity=choice.entity, last=0, wait=self._wait)  # the rows that are stored from now on
            if self._after is not None:
                self._send(send, newest_records(log, RECENT, entity=choice.entity, service=choice.service)[::-1])
            for rows in new_rows:
                self._send(send, batch.records(rows.filter(selected(rows, None, choice.service))))
        except ChangelogError as error:
            send(_event("problem", str(error)))
        except RuntimeError:
            if not self._closed.is_set():  # after the view was closed, the event loop may have ended
                raise

    def _send(self, send: Callable[[str], object], records: Iterable[Record]) -> None:
        """Sends the changes after the last one that was sent."""
        for record in records:
            if self._after is None or position_of(record) > self._after:
                self._after = position_of(record)
                send(self._text(change(record, self._site.palette)))

    def _wait(self) -> bool:
        return not self._closed.wait(POLL_S)

    def _text(self, described: DescribedChange) -> str:
        if self._as_json:
            return _event("change", msgspec.json.encode(described).decode(), id=described.position)
        return _event("change", fragment("live_change.html", {"change": described}), id=described.position)


def _event(name: str, data: str, *, id: str | None = None) -> str:  # noqa: A002 - the field has this name
    # A carriage return would end a line of the stream, too, so a line feed replaces it. In HTML, and between the tokens
    # of JSON, both are only white space.
    lines = "".join(f"data: {line}\n" for line in data.replace("\r", "\n").split("\n"))
    return f"event: {name}\n{'' if id is None else f'id: {id}{chr(10)}'}{lines}\n"


def _position(text: str) -> Position | None:
    try:
        return Position.parse(text)
    except ValueError:
        return None
