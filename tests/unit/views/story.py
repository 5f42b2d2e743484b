"""Makes random changelogs, and archives of their first commits.

Also computes the rows that result from the changes. This computation shares no code with the product.
"""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

from changelog.connectors.sinks.files.layout import log_file, sequences
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import MISSING, Op, Place, Record, position_of
from changelog.envelope.position import commit_text
from tests.unit.records import record
from tests.unit.sinks.material import write_archive

KEYS = ("", "1", "10", "2", "~", "é", "\U0001f600", "\uffff", '["a","b"]', *(f"key {n}" for n in range(2)))
ENTITIES = ("order", "guest")
COLUMNS = ("id", "name", "note")
BATCH = "nightly-batch"
"""A service. In some tests, views leave out its changes."""
SETTINGS = {"order": {"key": ["id"]}, "guest": {"key": ["id"]}}

Commit = Sequence[Record]


@dataclass(slots=True)
class Row:
    """A row: its values by column, the columns whose values are unknown, and the position of its last change."""

    values: dict[str, object]
    unavailable: set[str]
    position: str


@dataclass(slots=True)
class Story:
    """Makes random commits. `rows` has the rows that result from them, by entity and key.

    The service `BATCH` makes the share `batch_share` of the changes. `rows` is as if these changes had never been made.
    """

    randoms: random.Random
    batch_share: float = 0.0
    rows: dict[str, dict[str, Row]] = field(default_factory=lambda: {entity: {} for entity in ENTITIES})
    commits: list[Commit] = field(default_factory=list)

    def more(self, count: int) -> Sequence[Commit]:
        """Makes further commits, and returns them."""
        new = [self._commit(len(self.commits) + number) for number in range(1, count + 1)]
        self.commits += new
        return new

    def _commit(self, number: int) -> Commit:
        records: list[Record] = []
        for place in range(self.randoms.randint(1, 5)):
            if self.randoms.random() < self.batch_share:
                before = deepcopy(self.rows)
                records += [_by_batch(change) for change in self._change(number, 2 * place)]
                self.rows = before
            else:
                records += self._change(number, 2 * place)
        return records

    def _change(self, commit: int, ordinal: int) -> Iterable[Record]:
        entity, key = self.randoms.choice(ENTITIES), self.randoms.choice(KEYS)
        rows = self.rows[entity]
        kind = self.randoms.random()
        if kind < 0.04:
            rows.clear()
            for partition in (0, 1):
                yield record(
                    Op.TRUNCATE, None, None, commit=commit, ordinal=ordinal, key=TRUNCATE_KEY, entity=entity,
                    partition=partition,
                )  # fmt: skip
        elif kind < 0.25:
            rows.pop(key, None)
            yield record(Op.DELETE, None, MISSING, commit=commit, ordinal=ordinal, key=key, entity=entity)
        elif kind < 0.35 and key in rows:
            yield from self._move(entity, key, commit, ordinal)
        else:
            op = self.randoms.choice((Op.CREATE, Op.READ, Op.UPDATE, Op.UPDATE))
            unavailable = tuple(name for name in COLUMNS[1:] if op is Op.UPDATE and self.randoms.random() < 0.4)
            values = {name: self._value() for name in COLUMNS if name not in unavailable}
            self._put(entity, key, values, unavailable, commit, ordinal)
            yield record(
                op, json.dumps(values), MISSING, commit=commit, ordinal=ordinal, key=key, entity=entity,
                unavailable=unavailable,
            )  # fmt: skip

    def _move(self, entity: str, key: str, commit: int, ordinal: int) -> Iterable[Record]:
        there = self.randoms.choice(KEYS)
        values = {name: self._value() for name in COLUMNS}
        del self.rows[entity][key]
        self._put(entity, there, values, (), commit, ordinal + 1)
        yield record(
            Op.DELETE, None, MISSING, commit=commit, ordinal=ordinal, key=key, entity=entity,
            moved_to=Place(key=there, partition=1),
        )  # fmt: skip
        yield record(
            Op.CREATE, json.dumps(values), MISSING, commit=commit, ordinal=ordinal + 1, key=there, entity=entity,
            partition=1, moved_from=Place(key=key, partition=0),
        )  # fmt: skip

    def _put(
        self, entity: str, key: str, values: Mapping[str, object], unavailable: Iterable[str], commit: int, ordinal: int
    ) -> None:
        earlier = self.rows[entity].get(key)
        recovered = {name: earlier.values[name] for name in unavailable if earlier and name in earlier.values}
        self.rows[entity][key] = Row(
            values={**values, **recovered},
            unavailable=set(unavailable) - recovered.keys(),
            position=f"00000001/{commit:016X}/{ordinal:08X}",
        )

    def _value(self) -> object:
        return self.randoms.choice((None, 12345678901234567890, "Zoë", self.randoms.randrange(1000)))


def _by_batch(change: Record) -> Record:
    provenance = change.envelope.provenance
    stamped = replace(provenance, stamp=replace(provenance.stamp, service_name=BATCH))
    return replace(change, envelope=replace(change.envelope, provenance=stamped))


def store(path: Path, commits: Iterable[Commit]) -> None:
    """Stores commits at the end of the file log at `path`, each in a file of its own."""
    sink = FileSink(path)
    sink.recover()
    for records in commits:
        last = max(map(position_of, records))
        sink.add([batch.from_records(records)])
        sink.commit(Checkpoint(position=last, through=commit_text(last.commit), epoch=1, settings=SETTINGS))
    sink.close()


def archive(
    path: Path, commits: Sequence[Commit], randoms: random.Random, *, number: int, settings: Mapping[str, object]
) -> None:
    """Moves `commits`, the first commits of the file log at `path`, into archive files of a month and of two days.

    `settings` are arguments of `write_archive`. As the job `spark_jobs/archive.py` does, removes the archived
    files from the log, except the log's newest file.
    """
    cut = randoms.randint(0, len(commits))
    parts: dict[str, list[Commit]] = {"from=2026-10-01/day=2026-10-31": list(commits[:cut])}
    for records in commits[cut:]:  # clocks may step back, so a later commit may have an earlier day
        parts.setdefault(f"day=2026-11-0{randoms.randint(1, 2)}", []).append(records)
    files: dict[str, list[dict[str, object]]] = {}
    for folder, part in parts.items():
        for entity in ENTITIES:
            rows = batch.from_records([change for records in part for change in records if change.entity == entity])
            ordered = sorted(rows.to_pylist(), key=lambda row: (row["key"], row["position"], row["partition"]))
            middle = next((n for n, row in enumerate(ordered) if row["key"] > "10"), len(ordered))
            for name, half in (("0", ordered[:middle]), ("1", ordered[middle:])):
                if half:
                    files[f"entity={entity}/{folder}/run{number}-{name}.parquet"] = half
    write_archive(path, number, files, len(commits), **settings)  # type: ignore[arg-type]
    for sequence in sequences(path)[:-1]:
        if sequence <= len(commits):
            log_file(path, sequence).unlink()
