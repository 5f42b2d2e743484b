"""`/e/ENTITY/KEY`: shows the life of a row, and its state at any moment, with the change that set each value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from msgspec import Raw
from starlette.requests import Request

from changelog.connectors import show
from changelog.connectors.console.addresses import key_of, row_address, with_query
from changelog.connectors.console.changes import DescribedChange, change, path_of
from changelog.connectors.console.pages.moments import moment_of, not_a_moment
from changelog.connectors.console.palette import NOBODY
from changelog.connectors.console.rendering import Page, Redirect, problem
from changelog.connectors.console.site import Site
from changelog.connectors.console.values import Value, value
from changelog.connectors.history.key_blame import key_blame
from changelog.connectors.history.key_history import key_history
from changelog.connectors.history.moments import as_of
from changelog.envelope.blame import Attribute, Blame
from changelog.envelope.model import Missing, Op, Record, position_of

CHANGES_MAX = 50
"""How many changes a page has at most: those around the chosen moment."""

GAPS_MAX = 5
"""How many gaps a page names at most. It names the newest ones."""

PATIENCE_S = 1.0
"""How long a page waits for the gaps to be read, in seconds."""

ATTRIBUTES_MAX = 400
"""How many attributes of the state a page shows. The page says how many more there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAttribute:
    """An attribute of the state, with the change that set it.

    `pointer` is a JSON pointer (RFC 6901), and `path` says the same in a form for people. If `is_known` is False,
    nobody knows who set the value. Then the change is the one in which the value was first seen, for example when the
    row was read from its table. `before` is the value before the change.
    """

    pointer: str
    path: str
    value: Value
    before: Value
    is_known: bool
    service: str
    version: str
    identifier: str
    position: str
    committed_at: datetime
    colour: str


def key(site: Site, request: Request) -> Page | Redirect:
    """Returns the page of a row. It shows the state now, or at the position or time `at` in the query.

    A form on the page sends the number of a change as `change`. The answer redirects to the address with the `at` of
    this change.
    """
    entity = request.path_params["entity"]
    text = key_of(request.path_params["key"])
    if text is None:
        return problem(HTTPStatus.NOT_FOUND, "This is not the address of a row.", "Search for its key.")
    records = key_history(site.log, entity, text)
    at_text = request.query_params.get("at", "")
    if (number := request.query_params.get("change", "")) and not at_text:
        return _chosen(records, text, number)
    at = moment_of(at_text)
    if at_text and at is None:
        return not_a_moment()
    blame = key_blame(site.log, entity, text, at=at)
    data = _data(site, entity, text, records, len(as_of(records, at)), blame)
    further = {"is_past": at is not None, "gaps": _gaps(site, records[0])}
    return Page(template="key.html", title=f"{entity} {text}", data={**data, **further})


def _gaps(site: Site, first: Record) -> list[DescribedChange]:
    """Returns the newest gaps after the first change of a row. In these gaps, changes of the row may have been lost."""
    gaps = [gap for gap in site.gaps.get(PATIENCE_S).value or () if position_of(gap) > position_of(first)]
    return [change(gap, site.palette) for gap in gaps[-GAPS_MAX:]]


def _data(site: Site, entity: str, text: str, records: Sequence[Record], number: int, blame: Blame) -> dict[str, Any]:
    """Returns the data of the page that shows the state of the row after its first `number` changes."""
    address = row_address(entity, text)
    tints = site.palette.distinct(
        entity, (record.envelope.provenance.stamp for record in records if not _is_read(record))
    )
    begin = max(min(number - CHANGES_MAX // 2, len(records) - CHANGES_MAX), 0)
    shown = records[begin : begin + CHANGES_MAX]
    times = [record.envelope.provenance.source.committed_at for record in records]
    attributes = [_attribute(item, tints) for item in blame.attributes[:ATTRIBUTES_MAX]]
    return {
        "entity": entity,
        "key": text,
        "address": address,
        "exists": blame.current is not None,
        "total": len(records),
        "number": number,
        "services": tints,
        "composed_by": [service for service in blame.services if tints.get(service) != NOBODY],
        "unstamped": sum(item.is_known and item.colour == NOBODY for item in attributes),
        "unknown": sum(not item.is_known for item in attributes),
        "seconds": (times[-1] - times[0]).total_seconds(),
        "at": str(position_of(records[number - 1])),
        "at_time": times[number - 1],
        "earlier_state": _at(records, text, number - 1),
        "later_state": _at(records, text, number + 1),
        "attributes": attributes,
        "more_attributes": max(len(blame.attributes) - ATTRIBUTES_MAX, 0),
        "first_number": begin + 1,
        "changes": [change(record, site.palette, tints) for record in shown],
        "earlier_changes": _at(records, text, begin - CHANGES_MAX // 2 if begin > CHANGES_MAX // 2 else begin),
        "later_changes": _at(records, text, begin + CHANGES_MAX + CHANGES_MAX // 2)
        or (_at(records, text, len(records)) if begin + CHANGES_MAX < len(records) else None),
    }


def _at(records: Sequence[Record], key: str, number: int) -> str | None:
    """Returns the address of the state after `number` changes, None if there is no such state.

    If the row had another key then, the address is that of the other key.
    """
    if not 0 < number <= len(records):
        return None
    record = records[number - 1]
    own = key if record.envelope.provenance.source.op is Op.TRUNCATE else record.place.key
    return with_query(row_address(record.entity, own), at=str(position_of(record)))


def _chosen(records: Sequence[Record], key: str, number: str) -> Page | Redirect:
    address = _at(records, key, int(number)) if number.isascii() and number.isdecimal() and len(number) < 9 else None
    if address is None:
        return problem(HTTPStatus.BAD_REQUEST, f"The row has {len(records):,} changes, and none with this number.")
    return Redirect(address=address)


def _is_read(record: Record) -> bool:
    return record.envelope.provenance.source.op is Op.READ


def _attribute(item: Attribute, tints: Mapping[str, str]) -> ShownAttribute:
    writer, stamp = item.writer, item.writer.stamp
    return ShownAttribute(
        pointer=item.pointer,
        path=path_of(item.pointer),
        value=value(_content(item.value)),
        before=value(_content(item.before)),
        is_known=stamp is not None,
        service="" if stamp is None else stamp.service_name,
        version="" if stamp is None else show.version_of(stamp),
        identifier="" if stamp is None else stamp.identifier,
        position=str(writer.position),
        committed_at=writer.committed_at,
        colour=NOBODY if stamp is None else tints.get(stamp.service_name, NOBODY),
    )


def _content(state: Raw | Missing | None) -> str | Missing | None:
    return bytes(state).decode() if isinstance(state, Raw) else state
