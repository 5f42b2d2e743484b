"""`/schemas/ENTITY`: shows the versions of an entity's columns, and what changed from one to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from starlette.requests import Request

from changelog.connectors.console.rendering import Page
from changelog.connectors.console.site import Site
from changelog.connectors.sinks import unknown_entity
from changelog.envelope.columnar import batch
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.model import Record
from changelog.envelope.versions import Version
from changelog.schemas import evolution, types
from changelog.schemas.evolution import ColumnChange
from changelog.schemas.types import ColumnType

COLUMNS_MAX = 500
"""The maximum number of columns that a page shows for a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownColumn:
    """A column of a version: its type, and what happened to it in this version."""

    name: str
    type: str
    is_key: bool
    fate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVersion:
    """A version of an entity's columns.

    `changes` says what changed from the version before this one. `breaks` says why readers of earlier versions cannot
    read this one. `more` is the number of columns that are not in `columns`. `restated` names the columns whose values
    in earlier messages are outdated.
    """

    number: int
    position: str
    committed_at: datetime
    columns: Sequence[ShownColumn]
    more: int
    changes: Sequence[str]
    breaks: Sequence[str]
    restated: Sequence[str]


def versions(site: Site, request: Request) -> Page:
    """Returns the page of an entity's versions, the newest one first."""
    entity = request.path_params["entity"]
    entities = site.entities()
    if entity not in entities:
        raise unknown_entity(site.log, entity, entities)
    records = [record for rows in site.log.read(entity=SCHEMAS, key=entity) for record in batch.records(rows)]
    shown: list[ShownVersion] = []
    before: Version | None = None
    for record in records:
        assert record.envelope.current is not None
        version = Version.parse(record.envelope.current)
        shown.append(_shown(record, version, None if version.number == 1 else before))
        before = version
    data = {"entity": entity, "versions": shown[::-1]}
    return Page(template="versions.html", title=f"Schema of {entity}", data=data)


def _shown(record: Record, version: Version, before: Version | None) -> ShownVersion:
    changes = () if before is None else evolution.changes(before.columns, version.columns)
    kinds = {change.column: str(change.kind) for change in changes}
    source = record.envelope.provenance.source
    columns = [
        ShownColumn(name=name, type=_spelt(type_), is_key=name in version.key, fate=kinds.get(name, ""))
        for name, type_ in version.columns.fields[:COLUMNS_MAX]
    ]
    return ShownVersion(
        number=version.number,
        position=str(source.position),
        committed_at=source.committed_at,
        columns=columns,
        more=max(len(version.columns.fields) - COLUMNS_MAX, 0),
        changes=[_sentence(change) for change in changes[:COLUMNS_MAX]],
        breaks=[f"{item['breaks']}: {item['text']}" for item in msgspec.json.decode(version.state).get("breaks", ())],
        restated=version.restated,
    )


def _sentence(change: ColumnChange) -> str:
    """Returns what happened to a column, in words."""
    types_ = " → ".join(_spelt(type_) for type_ in (change.old, change.new) if type_ is not None)
    subject = change.column if change.before is None else f"{change.column} (in the place of {change.before})"
    return f"{subject} {change.kind}: {types_}"


def _spelt(type_: ColumnType) -> str:
    """Returns a type as a page shows it: a name, or JSON."""
    spelling = types.to_json(type_)
    return spelling if isinstance(spelling, str) else msgspec.json.encode(spelling).decode()
