"""Makes small changelogs of a shop in file logs, for tests of the Python API."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

import changelog
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.columnar.batch import from_records
from changelog.envelope.entity import Entity
from changelog.envelope.model import Op, Record, Stamp, position_of
from changelog.envelope.position import Position
from changelog.envelope.versions import TableColumns, Versions
from changelog.schemas.types import ColumnType, Decimal, Primitive, Struct
from tests.spark.changes import Workload
from tests.unit.envelope.strategies import HOSTILE_CONTEXTS
from tests.unit.records import record
from tests.unit.sinks.material import checkpoint

ORDER: Mapping[str, ColumnType] = {
    "id": Primitive.INT,
    "status": Primitive.STRING,
    "note": Primitive.STRING,
    "amount": Decimal(precision=12, scale=2),
    "doc": Primitive.JSON,
    "long": Primitive.STRING,
}
"""The columns of the rows that `tests.spark.changes.Workload` makes."""

SERVICES = ("order-api", "nightly-batch", "admin")

State = dict[str, Any]


def version_of(entity: str, columns: Mapping[str, ColumnType], first: Record) -> Record:
    """Returns a row of the entity `schemas`. It announces the columns of `entity`, just before the change `first`."""
    of = Entity(
        name=entity,
        table=("public", entity),
        key=(next(iter(columns)),),
        partition_by=(next(iter(columns)),),
        partitions=1,
        masks={},
        default_stamp=Stamp(api_version="", service_name="unknown", identifier=""),
    )
    table = TableColumns(columns=Struct(fields=tuple(columns.items())))
    versions = Versions([], accepted={}, filled=lambda *_: ())
    return versions.announce(of, table, first.envelope.provenance).record


def shop(
    path: Path, commits: Iterable[Sequence[Record]], **columns: Mapping[str, ColumnType]
) -> changelog.ChangelogReader:
    """Stores the commits in a file log, and opens it. Announces an entity's columns before its first change."""
    sink = FileSink(path)
    sink.recover()
    announced: set[str] = set()
    for number, records in enumerate(commits, 1):
        rows: list[Record] = []
        for change in records:
            if change.entity in columns and change.entity not in announced:
                rows.append(version_of(change.entity, columns[change.entity], change))
                announced.add(change.entity)
            rows.append(change)
        sink.add([from_records(rows)])
        last = position_of(records[-1])
        state = checkpoint(number, settings={name: {"key": [next(iter(columns[name]))]} for name in columns})
        sink.commit(replace(state, position=last, through=f"{last.commit:016X}"))
    sink.close()
    return changelog.open(path)


def workload(seed: int, transactions: int) -> list[list[Record]]:
    """Returns random transactions by several services, with every kind of change. Some updates lack values."""
    chance = random.Random(seed)
    return [
        [_stamped(_lossy(change, chance), chance) for change in changes]
        for changes in Workload(random=chance).transactions(transactions)
    ]


def replay(commits: Iterable[Iterable[Record]], entity: str, position: Position) -> dict[str, State]:
    """Applies the changes one after another, up to a position. Returns the states by key. A state lacks values that are
    unknown.
    """
    states: dict[str, State] = {}
    for change in (change for changes in commits for change in changes):
        source, key = change.envelope.provenance.source, change.place.key
        if change.entity != entity or source.position > position:
            continue
        if source.op is Op.TRUNCATE:
            states.clear()
        elif change.envelope.current is None:
            states.pop(key, None)
        else:
            before = states.get(key, {})
            carried = {name: before[name] for name in source.unavailable if name in before}
            states[key] = carried | json.loads(bytes(change.envelope.current))
    return states


def created(entity: str, state: str, **options: Any) -> Record:
    """Returns a change that creates a row with this state."""
    return record(Op.CREATE, state, entity=entity, **options)


def _stamped(change: Record, chance: random.Random) -> Record:
    stamp = Stamp(
        api_version=chance.choice("12"),
        service_name=chance.choice(SERVICES),
        identifier=f"req-{chance.randrange(9)}",
        context=chance.choice([None, *HOSTILE_CONTEXTS]),
    )
    provenance = replace(change.envelope.provenance, stamp=stamp)
    return replace(change, envelope=replace(change.envelope, provenance=provenance))


def _lossy(change: Record, chance: random.Random) -> Record:
    """Removes `doc` from half of the updates, as if the database's log lacked it."""
    source, current = change.envelope.provenance.source, change.envelope.current
    if source.op is not Op.UPDATE or current is None or chance.random() < 0.5:
        return change
    state = json.loads(bytes(current))
    del state["doc"]
    provenance = replace(change.envelope.provenance, source=replace(source, unavailable=(*source.unavailable, "doc")))
    envelope = replace(change.envelope, current=msgspec.Raw(json.dumps(state)), provenance=provenance)
    return replace(change, envelope=envelope)
