"""Sums up what a service, a request or a batch run wrote: how many changes of each entity, and of which keys."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.history.moments import Moment, position_before
from changelog.connectors.sinks import Log
from changelog.envelope.entity import OF_CHANGELOG, TRUNCATE_KEY
from changelog.envelope.model import Op
from changelog.envelope.position import Position

FIRST_MAX: Final = 10
"""For each entity, at most this many keys and at most this many services are listed."""

_DEPARTURE: Final = "movedTo"
_ARRIVAL: Final = "movedFrom"

_COLUMNS: Final = ("entity", "key", "op", "position", "committed_at", "service_name", "moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityWrites:
    """What a writer wrote to one entity.

    Each change counts once: a change that moved a row to another key or partition counts only in `moves`, and a
    truncate counts once for the whole entity. `keys` are the first `FIRST_MAX` keys in the order of their first change,
    and `services` the names of the first `FIRST_MAX` services. The positions and times are those of the first and the
    last change.
    """

    entity: str
    creates: int
    updates: int
    moves: int
    deletes: int
    truncates: int
    keys: tuple[str, ...]
    services: tuple[str, ...]
    first_position: Position
    last_position: Position
    first_time: datetime
    last_time: datetime

    @property
    def changes(self) -> int:
        """The number of all changes."""
        return self.creates + self.updates + self.moves + self.deletes + self.truncates


def writes(
    log: Log,
    *,
    service: str | None = None,
    identifier: str | None = None,
    since: Moment | None = None,
    entity: str | None = None,
) -> list[EntityWrites]:
    """Returns what was written to each entity, sorted by name. Entities to which nothing was written are left out.

    Changes are selected by the service and by the identifier of their stamps, by the moment `since`, and by `entity`.
    Rows that were read from their tables are left out, because nobody wrote them when they were read. Only the result
    is held in memory. If an `identifier` is given, only the changes that have it are read. Otherwise all changes are
    read; but if `since` is a position, reading begins there. Raises the errors of `Log.read_together`.
    """
    tallies: dict[str, _Tally] = {}
    entities = None if entity is None else [entity]
    for rows in log.read_together(entities, after=position_before(since), identifier=identifier):
        selected = rows.select(_COLUMNS).filter(_mask(rows, service, since))
        for name in selected.column("entity").unique().to_pylist():
            if name not in OF_CHANGELOG:
                of_entity = selected.filter(pc.equal(selected.column("entity"), name))
                tallies.setdefault(name, _Tally()).add(of_entity)
    return [tally.result(name) for name, tally in sorted(tallies.items())]


def _mask(rows: pa.RecordBatch, service: str | None, since: Moment | None) -> pa.BooleanArray:
    mask = pc.not_equal(rows.column("op"), Op.READ.value)
    if service is not None:
        mask = pc.and_(mask, pc.equal(rows.column("service_name"), service))
    if isinstance(since, datetime):
        mask = pc.and_(mask, pc.greater_equal(rows.column("committed_at"), pa.scalar(since)))
    return mask


@dataclass(slots=True)
class _First:
    """The `FIRST_MAX` values of a column that appear first, each with its lowest position. Rows may come in any order,
    as from Kafka's partitions.
    """

    positions: dict[str, str] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch, column: str) -> None:
        """Takes the values of a column."""
        all_firsts = pa.Table.from_batches([rows]).group_by(column).aggregate([("position", "min")])
        firsts = all_firsts.sort_by([("position_min", "ascending"), (column, "ascending")]).slice(0, FIRST_MAX)
        for value, position in zip(
            *(firsts.column(name).to_pylist() for name in (column, "position_min")), strict=True
        ):
            self.positions[value] = min(position, self.positions.get(value, position))
        ordered = sorted(self.positions, key=lambda value: (self.positions[value], value))
        self.positions = {value: self.positions[value] for value in ordered[:FIRST_MAX]}


@dataclass(slots=True)
class _Tally:
    """Counts the changes of one entity."""

    counts: dict[str, int] = field(default_factory=dict)
    truncates: set[str] = field(default_factory=set)
    keys: _First = field(default_factory=_First)
    services: _First = field(default_factory=_First)
    ends: list[tuple[str, datetime]] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        """Takes rows of the entity."""
        ends = pc.min_max(rows.column("position"))
        self.ends = _outermost([*self.ends, *(_change_at(rows, ends[end]) for end in ("min", "max"))])
        self.services.add(rows, "service_name")
        is_truncate = pc.equal(rows.column("key"), TRUNCATE_KEY)
        self.truncates.update(rows.filter(is_truncate).column("position").to_pylist())
        of_keys = rows.filter(pc.invert(is_truncate))
        self.keys.add(of_keys, "key")
        for kind in pc.value_counts(_kinds(of_keys)).to_pylist():
            self.counts[kind["values"]] = self.counts.get(kind["values"], 0) + kind["counts"]

    def result(self, entity: str) -> EntityWrites:
        """Returns the counts."""
        (first_position, first_time), (last_position, last_time) = self.ends
        return EntityWrites(
            entity=entity,
            creates=self.counts.get(Op.CREATE, 0),
            updates=self.counts.get(Op.UPDATE, 0),
            moves=self.counts.get(_ARRIVAL, 0),
            deletes=self.counts.get(Op.DELETE, 0),
            truncates=len(self.truncates),
            keys=tuple(self.keys.positions),
            services=tuple(self.services.positions),
            first_position=Position.parse(first_position),
            last_position=Position.parse(last_position),
            first_time=first_time,
            last_time=last_time,
        )


def _outermost(changes: Sequence[tuple[str, datetime]]) -> list[tuple[str, datetime]]:
    return [min(changes), max(changes)]


def _change_at(rows: pa.RecordBatch, position: pa.StringScalar) -> tuple[str, datetime]:
    """Returns a position and the commit time of its change."""
    index = pc.index(rows.column("position"), position).as_py()
    return position.as_py(), rows.column("committed_at")[index].as_py()


def _kinds(rows: pa.RecordBatch) -> pa.StringArray:
    """Returns the op of each row, or `_DEPARTURE` or `_ARRIVAL` for the two records of a move."""
    moved = rows.column("moved")
    departs, arrives = (
        pc.fill_null(pc.starts_with(moved, f'{{"{member}"'), False) for member in (_DEPARTURE, _ARRIVAL)
    )
    return pc.if_else(departs, _DEPARTURE, pc.if_else(arrives, _ARRIVAL, rows.column("op")))
