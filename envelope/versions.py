"""Keeps the versions of each entity's columns, and decides whether a new version may be published.

A version says which columns an entity has from a certain row on. It is published as an envelope of the reserved entity
`schemas`. The message's key is the name of the entity that the version describes; `current` is the version, and
`original` is the entity's previous version. The envelope has the position of the first row with these columns, and is
published just before that row.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec
from msgspec import Raw

from changelog.envelope.entity import SCHEMAS, Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source, Stamp
from changelog.envelope.position import Position
from changelog.schemas import avro, evolution, types
from changelog.schemas.compatibility import Problem, problems
from changelog.schemas.types import Struct

PUBLISHER = Stamp(api_version="", service_name="changelog", identifier="")
"""The stamp of the rows of the entities `schemas` and `gaps`. It names this program, because the database's log does
not say who altered a table.
"""

Filled = Callable[[Entity, Sequence[str]], Collection[str]]
"""Takes an entity, and those of its columns that are new. Returns the new columns that may have a value in rows from
before the column was added.
"""

_NAMESPACE = "changelog"

_STORED_BESIDES = frozenset({"codec", "mask_id"})
"""Settings that a checkpoint stores for an entity in addition to those in `Entity.shape`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The columns that a table has from a certain position on. `relation` is the table's number in its database."""

    columns: Struct
    relation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The columns of an entity, and which of them are its key. The first version has the `number` 1.

    `relation` is the table's number in the database cluster `cluster`. `restated` are columns whose published values
    may differ from those in the table, because the change of columns may also have changed stored rows. `broke` says
    that the version was published although it is not compatible with some readers. `settings` is a hash of the entity's
    configuration. `state` is the whole version as JSON.
    """

    entity: str
    number: int
    columns: Struct
    relation: int | None
    cluster: str
    key: tuple[str, ...]
    settings: str
    restated: tuple[str, ...]
    broke: bool
    state: bytes = field(repr=False)

    @classmethod
    def parse(cls, state: bytes | Raw) -> Self:
        """Parses a version from the `current` of a row. Raises ChangelogError (MALFORMED) if it is not a version."""
        try:
            value = msgspec.json.decode(state)
            columns = types.from_json({"struct": value["columns"]})
            assert isinstance(columns, Struct)
            return cls(
                entity=value["entity"],
                number=value["version"],
                columns=columns,
                relation=value["relation"],
                cluster=value["cluster"],
                key=tuple(value["key"]),
                settings=value["settings"],
                restated=tuple(value["restated"]),
                broke=bool(value["breaks"]),
                state=bytes(state),
            )
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise ChangelogError(Kind.MALFORMED, "a row of the entity `schemas` is not a version") from error

    def schema(self) -> avro.Schema:
        """Returns the Avro schema of messages with these columns."""
        return _schema(self.entity, self.columns, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A new version, the changes of columns since the previous version, and the row that publishes the new version."""

    version: Version
    changes: Sequence[evolution.ColumnChange]
    record: Record


def settings_id(shape: Mapping[str, Any]) -> str:
    """Returns a hash of the settings on which the content of an entity's messages depends.

    `shape` is the result of `Entity.shape`, or what a checkpoint stores as the entity's settings. Both give the same
    hash.
    """
    settings = {name: value for name, value in shape.items() if name not in _STORED_BESIDES}
    return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:16]


class Versions:
    """Holds the versions that the changelog has of each entity's columns, oldest first, and adds new versions.

    `accepted` maps an entity to the position of a change of columns that an operator accepted. Each such position is
    used once. `cluster` identifies the database cluster. It is needed because a table's number is valid only within one
    cluster.
    """

    def __init__(
        self, versions: Iterable[Version], *, accepted: dict[str, Position], filled: Filled, cluster: str = ""
    ) -> None:
        self._versions: dict[str, list[Version]] = {}
        for version in versions:
            if version.number == 1:  # The changelog was begun anew, and its topics still hold the former changelog.
                self._versions[version.entity] = []
            self._versions.setdefault(version.entity, []).append(version)
        self._accepted, self._filled, self._cluster = dict(accepted), filled, cluster

    def has(self, entity: Entity, table: TableColumns) -> bool:
        """Returns whether the entity's last version has the columns and the relation of `table`, and the entity's
        present settings.
        """
        last = self._last(entity)
        if last is None:
            return False
        present = (table.columns, table.relation or last.relation, settings_id(entity.shape()))
        return (last.columns, last.relation, last.settings) == present

    def announce(self, entity: Entity, table: TableColumns, first: Provenance) -> Announced:
        """Adds a version of an entity's columns. `first` is the provenance of the first row with these columns.

        If the entity's mode (`changelog.schemas.compatibility.Mode`) does not allow the change from earlier versions,
        this raises ChangelogError (STOP, at the row's position), except in three cases: the entity's policy is to
        publish incompatible versions, an operator accepted this version, or the entity's configuration changed, too.
        """
        before, breaks = self._last(entity), self._breaks(entity, table.columns)
        configured = before is not None and before.settings != settings_id(entity.shape())
        stops = entity.evolution.on_incompatible == "stop" and not configured
        if breaks and stops and not self._passes(entity, first.source):
            raise _incompatible(entity, breaks, first.source.position)
        changes = () if before is None else evolution.changes(before.columns, table.columns)
        state = {
            "entity": entity.name,
            "version": 1 if before is None else before.number + 1,
            "key": entity.key,
            "columns": [[name, types.to_json(type_)] for name, type_ in table.columns.fields],
            "relation": table.relation,
            "cluster": self._cluster,
            "settings": settings_id(entity.shape()),
            "changes": [_change(change) for change in changes],
            "mode": entity.evolution.mode.value,
            "breaks": [_problem(problem) for problem in breaks],
            "restated": self._restated(entity, before, table, changes),
        }
        version = Version.parse(msgspec.json.encode(state))
        self._versions.setdefault(entity.name, []).append(version)
        return Announced(version=version, changes=changes, record=_record(first, before, version))

    def _last(self, entity: Entity) -> Version | None:
        versions = self._versions.get(entity.name)
        return versions[-1] if versions else None

    def _breaks(self, entity: Entity, columns: Struct) -> list[Problem]:
        """Returns why the columns are not compatible with earlier versions.

        If earlier versions were published although they were incompatible, the columns are compared only with the last
        of these, and with the versions after it.
        """
        versions = self._versions.get(entity.name, [])
        begin = max((index for index, version in enumerate(versions) if version.broke), default=0)
        schemas = [(f"version {version.number}", version.schema()) for version in versions[begin:]]
        return problems(_schema(entity.name, columns, entity.key), schemas, entity.evolution.mode)

    def _passes(self, entity: Entity, first: Source) -> bool:
        """Returns whether an operator accepted the change of columns at this row.

        An operator accepts a position. If the row is a change from the log, this must be its position, or that of a
        later change of the same transaction. If the row was read from its table, it must be its position or an earlier
        one: after a stop, the table is read again, and its rows get later positions.
        """
        accepted, position = self._accepted.get(entity.name), first.position
        if accepted is None:
            return False
        if accepted <= position:
            del self._accepted[entity.name]
        if first.op is Op.READ:
            return accepted <= position
        return (accepted.epoch, accepted.commit) == (position.epoch, position.commit) and position <= accepted

    def _restated(
        self, entity: Entity, before: Version | None, table: TableColumns, changes: Sequence[evolution.ColumnChange]
    ) -> Sequence[str]:
        """Returns the restated columns.

        All columns are restated in two cases: another table, whose rows are unknown, replaced the previous one; or the
        key now has other columns.
        """
        if before is not None and (self._replaces(before, table) or before.key != entity.key):
            return [name for name, _ in table.columns.fields]
        added = [change.column for change in changes if change.kind is evolution.ChangeKind.ADDED]
        return evolution.restated(changes, self._filled(entity, added) if added else ())

    def _replaces(self, before: Version, table: TableColumns) -> bool:
        """Returns whether another table certainly replaced the previous one.

        The numbers of the tables show this, if both are from the same database cluster.
        """
        comparable = table.relation is not None and before.relation is not None and before.cluster == self._cluster
        return comparable and table.relation != before.relation


def _schema(entity: str, columns: Struct, key: Sequence[str]) -> avro.Schema:
    """Returns the Avro schema of these columns, in a namespace that all versions share."""
    return avro.value_schema(entity, columns, key, _NAMESPACE)


def _incompatible(entity: Entity, breaks: Sequence[Problem], position: Position) -> ChangelogError:
    first, more = breaks[0], len(breaks) - 1
    others = f" (and {more} more problem{'s' * (more > 1)})" if more else ""
    return ChangelogError(
        Kind.STOP,
        f"the columns of entity {entity.name} changed in a way that is not compatible ({entity.evolution.mode}): "
        f"{first.path}: {first.text}{others}",
        hint=f"`changelog schemas accept {entity.name} {position}` publishes the new columns anyway",
        position=position,
        altered=entity.name,
    )


def _record(first: Provenance, before: Version | None, version: Version) -> Record:
    """Returns the row that publishes `version`. `first` is the provenance of the first row with the version's columns.

    `before` is the entity's previous version; None if there is none.
    """
    op = Op.CREATE if before is None else Op.UPDATE
    source = replace(
        first.source, op=op, mask=None, unavailable=(), unavailable_original=(), json_null=(), json_null_original=()
    )
    return Record(
        entity=SCHEMAS,
        place=Place(key=version.entity, partition=0),
        envelope=Envelope(
            provenance=Provenance(stamp=PUBLISHER, source=source),
            current=Raw(version.state),
            original=MISSING if before is None else Raw(before.state),
        ),
    )


def _change(change: evolution.ColumnChange) -> dict[str, Any]:
    return {
        "kind": change.kind.value,
        "column": change.column,
        **({} if change.before is None else {"before": change.before}),
        **({} if change.old is None else {"oldType": types.to_json(change.old)}),
        **({} if change.new is None else {"newType": types.to_json(change.new)}),
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "rule": problem.rule.value,
        "path": problem.path,
        "breaks": problem.breaks,
        "against": problem.against,
        "text": problem.text,
    }
