"""`/search` and `/e/ENTITY`: finds the key of a row."""

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request

from changelog.connectors.console.addresses import row_address
from changelog.connectors.console.palette import Palette
from changelog.connectors.console.rendering import Page, Redirect
from changelog.connectors.console.site import Site, selected
from changelog.connectors.sinks import unknown_entity
from changelog.envelope.entity import GAPS, TRUNCATE_KEY
from changelog.envelope.key import key_text
from changelog.envelope.model import Stamp

BUDGET_S = 2.0
"""A search for a prefix reads the changelog from its beginning, but only for this many seconds."""

NEWEST_ROWS = 50_000
"""If a search does not reach the end of the changelog within `BUDGET_S`, it also reads this many of the newest changes.
"""

HITS_MAX = 50
"""The maximum number of keys that a search shows. If it finds more, it shows those that changed last."""

EXACT_ENTITIES_MAX = 50
"""A search that names no entity looks for the exact key in at most this many entities."""

_COLUMNS = ("entity", "key", "op", "position", "committed_at", "api_version", "service_name", "identifier", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A key that a search found.

    `changes` is the number of changes of this key in the part of the changelog that was searched. The other members
    describe the last of these changes.
    """

    entity: str
    key: str
    address: str
    changes: int
    op: str
    service: str
    colour: str
    committed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """What a search found. If `is_complete` is False, it has not searched all changes."""

    rows: Sequence[Hit]
    is_complete: bool


def search(site: Site, request: Request) -> Page | Redirect:
    """Finds what a person typed: a key, the beginning of a key, or an entity and a key, such as `order 42`.

    If exactly one row has this key, sends the browser to the page of this row. If only an entity is named, sends the
    browser to the page of the entity.
    """
    words = request.query_params.get("q", "").strip()
    entity_name = request.query_params.get("entity", "")
    entities = site.entities()
    first, _, rest = words.partition(" ")
    if not entity_name and first in entities:
        entity_name, words = first, rest.strip()
    if entity_name and entity_name not in entities:
        raise unknown_entity(site.log, entity_name, entities)
    if entity_name and not words:
        return Redirect(address=f"/e/{entity_name}")
    candidates = [entity_name] if entity_name else list(entities)[:EXACT_ENTITIES_MAX]
    exact = [entity for entity in candidates if words and _exists(site, entity, words)]
    if len(exact) == 1:
        return Redirect(address=row_address(exact[0], words))
    data = _data(site, entity_name or None, words, entities)
    data["exact"] = [{"entity": entity, "key": words, "address": row_address(entity, words)} for entity in exact]
    return Page(template="search.html", title="Search", data=data)


def entity(site: Site, request: Request) -> Page | Redirect:
    """Shows those rows of an entity that changed last, or whose keys begin with `prefix`.

    If the query has a `key` for each column of the key, redirects the browser to the page of the row with this key.
    """
    name = request.path_params["entity"]
    values = request.query_params.getlist("key")
    entities = site.entities()
    if name not in entities and name != GAPS:
        raise unknown_entity(site.log, name, entities)
    if any(values):
        return Redirect(address=row_address(name, key_text(values)))
    data = _data(site, name, request.query_params.get("prefix", ""), entities)
    data["key_columns"] = list(entities.get(name, ()))
    return Page(template="search.html", title=name, data=data)


def _data(site: Site, entity: str | None, prefix: str, entities: Iterable[str]) -> dict[str, Any]:
    """Returns the data of a page with the keys that begin with `prefix`."""
    hits = find(site, entity, prefix)
    return {
        "entity": entity,
        "key_columns": [],
        "prefix": prefix,
        "exact": [],
        "hits": hits.rows,
        "is_complete": hits.is_complete,
        "entities": list(entities),
    }


def find(site: Site, entity: str | None, prefix: str) -> Hits:
    """Returns the keys that begin with `prefix`; the key that changed last comes first.

    Reads the changelog from its beginning for `BUDGET_S` seconds. If it has not reached the end by then, it
    also reads the newest `NEWEST_ROWS` changes, but none from an archive. The changes in between are not searched.
    """
    deadline_s = time.monotonic() + BUDGET_S
    batches: list[pa.RecordBatch] = []
    is_complete = True
    with closing(_closable(site.log.read(entity=entity))) as all_rows:
        for rows in all_rows:
            batches.append(_matching(rows, entity, prefix))
            if time.monotonic() > deadline_s:
                is_complete = False
                break
    if not is_complete:
        batches += [_matching(rows, entity, prefix) for rows in site.log.recent(NEWEST_ROWS)]
    return Hits(rows=_last_changed(site, batches), is_complete=is_complete)


def _closable(rows: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    yield from rows


def _last_changed(site: Site, batches: Sequence[pa.RecordBatch]) -> list[Hit]:
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    keys = table.group_by(["entity", "key"]).aggregate([("position", "max"), ("position", "count_distinct")])
    keys = keys.sort_by([("position_max", "descending")]).slice(0, HITS_MAX)
    last = table.filter(pc.is_in(table["position"], keys["position_max"])).to_pylist()
    rows = {(row["entity"], row["key"], row["position"]): row for row in last}
    groups = ((rows[group["entity"], group["key"], group["position_max"]], group) for group in keys.to_pylist())
    return [_hit(site.palette, row, group) for row, group in groups]


def _matching(batch: pa.RecordBatch, entity: str | None, prefix: str) -> pa.RecordBatch:
    """Returns the rows of an entity whose keys begin with `prefix`."""
    rows = batch.select(_COLUMNS)
    keys = rows.column("key")
    mask = pc.and_(pc.starts_with(keys, prefix), pc.not_equal(keys, TRUNCATE_KEY))
    for beginning in _beginnings(prefix):
        mask = pc.or_(mask, pc.starts_with(keys, beginning))
    return rows.filter(pc.and_(mask, selected(rows, entity, None)))


def _beginnings(prefix: str) -> Sequence[str]:
    """Returns how the text of a key with several columns begins if its first column begins with `prefix`."""
    return [msgspec.json.encode([prefix]).decode().removesuffix('"]')] if prefix else []


def _exists(site: Site, entity: str, key: str) -> bool:
    return next(iter(site.log.read(entity=entity, key=key)), None) is not None


def _hit(palette: Palette, row: dict[str, Any], group: dict[str, Any]) -> Hit:
    stamp = Stamp(
        api_version=row["api_version"],
        service_name=row["service_name"],
        identifier=row["identifier"],
        context=row["context"],
    )
    return Hit(
        entity=row["entity"],
        key=row["key"],
        address=row_address(row["entity"], row["key"]),
        changes=group["position_count_distinct"],
        op=row["op"],
        service=stamp.service_name,
        colour=palette.colour(row["entity"], stamp),
        committed_at=row["committed_at"],
    )
