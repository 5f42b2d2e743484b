"""`/who`: shows what one service, request or batch run wrote, by entity: how many changes, and of which keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request

from changelog.connectors.console.addresses import row_address
from changelog.connectors.console.pages.moments import moment_of, not_a_moment
from changelog.connectors.console.rendering import Page
from changelog.connectors.console.site import Site
from changelog.connectors.history.writes import EntityWrites, writes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenKey:
    """A key that was written, with the address of its page."""

    key: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenEntity:
    """What was written to an entity: the number of changes of each kind, the first keys, and the first services."""

    entity: str
    changes: int
    ops: Sequence[tuple[str, int]]
    keys: Sequence[WrittenKey]
    services: Sequence[str]
    first_position: str
    last_position: str
    first_at: datetime
    last_at: datetime


def who(site: Site, request: Request) -> Page:
    """Returns the page that shows what the writer in the query wrote, by entity.

    If the query names no writer, the page has only the form.
    """
    query = request.query_params
    service, identifier, since_text = query.get("service"), query.get("identifier"), query.get("since", "")
    since = moment_of(since_text)
    if since_text and since is None:
        return not_a_moment()
    entity_writes: list[EntityWrites] = []
    if service or identifier:
        entity_writes = writes(site.log, service=service or None, identifier=identifier or None, since=since)
    data: dict[str, Any] = {
        "service": service or None,
        "identifier": identifier or None,
        "since": since_text or None,
        "is_asked": bool(service or identifier),
        "total": sum(item.changes for item in entity_writes),
        "entities": [_entity(item) for item in entity_writes],
    }
    return Page(template="who.html", title="Who wrote what", data=data)


def _entity(item: EntityWrites) -> WrittenEntity:
    kinds = ("creates", "updates", "moves", "deletes", "truncates")
    return WrittenEntity(
        entity=item.entity,
        changes=item.changes,
        ops=[(kind, number) for kind in kinds if (number := getattr(item, kind))],
        keys=[WrittenKey(key=key, address=row_address(item.entity, key)) for key in item.keys],
        services=item.services,
        first_position=str(item.first_position),
        last_position=str(item.last_position),
        first_at=item.first_time,
        last_at=item.last_time,
    )
