"""The versions of each entity's columns, as rows of the changelog, and what is said of the next one.

A version is an envelope like any other: its key is the entity's name, `current` the version, `original` the one before.
It stands at the position of the first row that has these columns, and before it.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec
from msgspec import Raw

from envelope.entity import SCHEMAS, Entity
from envelope.errors import ChangelogError, Kind
from envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source, Stamp
from envelope.position import Position
from schemas import avro, evolution, types
from schemas.compatibility import Problem, problems
from schemas.types import Struct

PUBLISHER = Stamp(api_version="", service_name="changelog", identifier="")
"""Who announces a version: nobody knows who altered the table."""

Filled = Callable[[Entity, Sequence[str]], Collection[str]]
"""Which of these columns of an entity's table have a value in rows that were there before the column was."""

_NAMESPACE = "changelog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How an entity's rows look from some place on: their columns, and the number of the relation that they are of."""

    columns: Struct
    relation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The columns of an entity, and which of them are its key; the first version has the `number` 1.

    `restated` are the columns whose values in rows published before were no longer the table's; `broke` says that not
    every reader could follow. `settings` stands for what of the configuration shapes the entity. `state` is the whole
    version as JSON.
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
        """The version that the `current` of a row holds. Raises ChangelogError (MALFORMED) where it holds none."""
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
            raise ChangelogError(Kind.MALFORMED, "a row of the entity `schemas` holds no version") from error

    def schema(self) -> avro.Schema:
        """The Avro schema of values with these columns."""
        return _schema(self.entity, self.columns, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A version that is new, how it differs from the one before, and the row that tells."""

    version: Version
    changes: Sequence[evolution.Change]
    record: Record


class Versions:
    """What the changelog holds of each entity's columns, oldest first, and what comes to it.

    `accepted` is what an operator let pass: by entity, the position of the change. It is used once. `cluster` is where
    relations have their numbers.
    """

    def __init__(
        self, known: Iterable[Version], *, accepted: dict[str, Position], filled: Filled, cluster: str = ""
    ) -> None:
        self._known: dict[str, list[Version]] = {}
        for version in known:
            if version.number == 1:  # the changelog was begun anew, in topics that still hold the former one
                self._known[version.entity] = []
            self._known.setdefault(version.entity, []).append(version)
        self._accepted, self._filled, self._cluster = dict(accepted), filled, cluster

    def has(self, entity: Entity, look: Look) -> bool:
        """Whether the entity's last version looks so."""
        last = self._last(entity)
        if last is None:
            return False
        here = (look.columns, look.relation or last.relation, _settings(entity))
        return (last.columns, last.relation, last.settings) == here

    def announce(self, entity: Entity, look: Look, first: Provenance) -> Announced:
        """Makes this the entity's last version, from the row on whose provenance is `first`.

        Raises ChangelogError (STOP, at the row's position) when older or newer readers could not follow, and neither
        the entity's policy nor an operator lets it pass: at its place, or with a configuration that has other columns.
        """
        before, breaks = self._last(entity), self._breaks(entity, look.columns)
        configured = before is not None and before.settings != _settings(entity)
        stops = entity.evolution.on_incompatible == "stop" and not configured
        if breaks and stops and not self._passes(entity, first.source):
            raise _incompatible(entity, breaks, first.source.position)
        found = () if before is None else evolution.changes(before.columns, look.columns)
        state = {
            "entity": entity.name,
            "version": 1 if before is None else before.number + 1,
            "key": entity.key,
            "columns": [[name, types.to_json(type_)] for name, type_ in look.columns.fields],
            "relation": look.relation,
            "cluster": self._cluster,
            "settings": _settings(entity),
            "changes": [_change(change) for change in found],
            "mode": entity.evolution.mode.value,
            "breaks": [_problem(problem) for problem in breaks],
            "restated": self._restated(entity, before, look, found),
        }
        version = Version.parse(msgspec.json.encode(state))
        self._known.setdefault(entity.name, []).append(version)
        return Announced(version=version, changes=found, record=_record(first, before, version))

    def _last(self, entity: Entity) -> Version | None:
        known = self._known.get(entity.name)
        return known[-1] if known else None

    def _breaks(self, entity: Entity, columns: Struct) -> list[Problem]:
        """A version that was let pass although it broke readers is the first of those that later ones are judged by."""
        versions = self._known.get(entity.name, [])
        begin = max((place for place, each in enumerate(versions) if each.broke), default=0)
        known = [(f"version {each.number}", each.schema()) for each in versions[begin:]]
        return problems(_schema(entity.name, columns, entity.key), known, entity.evolution.mode)

    def _passes(self, entity: Entity, first: Source) -> bool:
        """Whether an operator let a change pass at this row, or behind it in its transaction: then at both.

        Rows of a table are read anew after a stop, and stand further behind then.
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
        self, entity: Entity, before: Version | None, look: Look, found: Sequence[evolution.Change]
    ) -> Sequence[str]:
        """All columns, where another table took the place of the one before (nobody knows what is in it), or the key is
        another.
        """
        if before is not None and (self._replaces(before, look) or before.key != entity.key):
            return [name for name, _ in look.columns.fields]
        added = [change.column for change in found if change.kind is evolution.Kind.ADDED]
        return evolution.restated(found, self._filled(entity, added) if added else ())

    def _replaces(self, before: Version, look: Look) -> bool:
        """Whether another table took the place of the one before. In another cluster, the same has another number."""
        here = look.relation is not None and before.relation is not None and before.cluster == self._cluster
        return here and look.relation != before.relation


def _schema(entity: str, columns: Struct, key: Sequence[str]) -> avro.Schema:
    """Under a namespace that is the same for all versions."""
    return avro.value_schema(entity, columns, key, _NAMESPACE)


def _settings(entity: Entity) -> str:
    """Another one, when the configuration shapes the entity in another way."""
    return hashlib.sha256(msgspec.json.encode(entity.shape())).hexdigest()[:16]


def _incompatible(entity: Entity, breaks: Sequence[Problem], position: Position) -> ChangelogError:
    first, more = breaks[0], len(breaks) - 1
    others = f" (and {more} more)" if more else ""
    return ChangelogError(
        Kind.STOP,
        f"the columns of entity {entity.name} changed in a way that is not compatible ({entity.evolution.mode}): "
        f"{first.path}: {first.text}{others}",
        hint=f"`changelog schemas accept {entity.name} {position}` publishes them all the same",
        position=position,
        altered=entity.name,
    )


def _record(first: Provenance, before: Version | None, version: Version) -> Record:
    """The row of a version; `first` is the provenance of the first row that has its columns."""
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


def _change(change: evolution.Change) -> dict[str, Any]:
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
