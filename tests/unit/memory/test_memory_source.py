"""Tests the publish loop, windows, lookups, sweeps and repairs with a source in memory and the real file log.

- The source imports nothing of PostgreSQL. So these tests show that the shared code suits other databases.
- The changes are random. The process crashes at random fail points of the loop, the source and the sink.
- At the end, the changelog is compared with the tables and the log of the `World`, which is the database in memory.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from changelog.connectors.service.loop import Cadence, publish
from changelog.connectors.sinks.files.log import read_checkpoint, read_log, read_together
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources import Recover
from changelog.connectors.state.before_images import BeforeImages
from changelog.envelope.columnar import batch
from changelog.envelope.entity import SCHEMAS, Entity
from changelog.envelope.model import Stamp
from changelog.envelope.position import Position
from changelog.envelope.stamp import PREFIX as STAMP_PREFIX
from changelog.envelope.versions import Version
from tests.unit.memory.log_blocks import EPOCH
from tests.unit.memory.source import MemorySource
from tests.unit.memory.world import LogMessage, RowEdit, World

TABLES = ("item", "sale")
STEPS = 400
CRASHES = 0.004
"""The probability that the process crashes at a fail point that it reaches."""

ENTITIES = [
    Entity(
        name=name,
        table=("shop", name),
        key=("id",),
        partition_by=("id",),
        partitions=2,
        masks={},
        default_stamp=Stamp(api_version="", service_name="nobody", identifier=""),
    )
    for name in TABLES
]


class CrashError(Exception):
    """A simulated crash of the process."""


class NoWait(Event):
    """An event whose `wait` returns at once."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


class FileChangelog:
    """The stored changelog, as a source reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def versions(self) -> list[Version]:
        if read_checkpoint(self._path) is None:
            return []
        rows = read_log(self._path, entity=SCHEMAS)
        return [Version.parse(record.envelope.current or b"") for part in rows for record in batch.records(part)]

    def rows(self, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        return read_together(self._path, entities, key=key)


class Shop:
    """A world, and a service that runs until everything is published. The service starts again after each crash.

    After the random changes, each table loses `lost` rows without a trace in the log, and is read again.

    If `open_state` is given, it opens the service's state at each start, and the log has only the keys of old rows.
    """

    def __init__(
        self,
        seed: int,
        path: Path,
        *,
        steps: int,
        crashes: float,
        lost: int = 0,
        messages: bool = True,
        open_state: Callable[[], BeforeImages] | None = None,
    ) -> None:
        self.path, self.passed = path, Counter[str]()
        self.world = World(Random(seed), TABLES)
        self._random = Random(seed + 1)
        self._steps, self._crashes, self._lost, self._rebuilt = steps, crashes, lost, False
        self._messages, self._open_state = messages, open_state
        self._stop = NoWait()
        self._now = 0.0

    def run(self) -> None:
        while not self._stop.is_set():
            sink = FileSink(self.path, reach=self._reach)
            try:
                publish(
                    lambda recover: self._open(recover),
                    sink,
                    stop=self._stop,
                    state=None if self._open_state is None else self._open_state(),
                    cadence=Cadence(seconds=self._random.choice([0.0, 3.0]), rows=50, idle_log_bytes=20),
                    reach=self._reach,
                    clock=self._clock,
                )
            except CrashError:
                self.passed["crash"] += 1
            finally:
                sink.close()

    def _open(self, recover: Recover) -> MemorySource:
        self.passed["opened"] += 1
        self._source = MemorySource(
            self.world,
            ENTITIES,
            recover,
            FileChangelog(self.path),
            random=self._random,
            live=self._live,
            reach=self._reach,
            messages=self._messages,
            whole=self._open_state is None,
        )
        return self._source

    def _live(self, source: MemorySource) -> None:
        if self._steps:
            self._steps -= 1
            for _ in range(self._random.choice([0, 1, 1, 3])):
                self.world.step()
            if not self._steps:
                self.world.settle()
            return
        self.world.show_all()
        if not self._rebuilt:
            for name in TABLES:
                for key in self._random.sample(list(self.world.tables[name].rows(self.world.snapshot())), self._lost):
                    self.world.edit_unlogged(name, key, None)
            self.world.rebuild()
            self._rebuilt = True
        elif source.idle:
            self._stop.set()

    def _reach(self, place: str) -> None:
        self.passed[place] += 1
        if place == "window:read" and self._lost and self._rebuilt:
            self._touch_ghosts()
        if not self._stop.is_set() and self._random.random() < self._crashes:
            raise CrashError

    def _touch_ghosts(self) -> None:
        """Inserts some ghosts (keys that the table lacks) of the chunk that was just read, and deletes some again."""
        name, keys = self._source.ghosts
        for key in keys:
            fate = self._random.choice(["left alone", "back", "back and gone"])
            self.passed[f"ghost {fate}"] += 1
            if fate != "left alone":
                self.world.change(name, {key: {"id": key, "status": fate}})
            if fate == "back and gone":
                self.world.change(name, {key: None})

    def _clock(self) -> float:
        self._now += 0.1
        return self._now


def stored_rows(path: Path) -> list[dict[str, Any]]:
    return [row for rows in read_log(path) for row in rows.to_pylist() if row["entity"] in TABLES]


def last_states(rows: list[dict[str, Any]], entity: str) -> dict[int, dict[str, Any]]:
    """Returns the last state of each key, without nulls."""
    last = {row["key"]: row["current"] for row in rows if row["entity"] == entity}
    states = [json.loads(current) for current in last.values() if current is not None]
    return {state["id"]: {name: value for name, value in state.items() if value is not None} for state in states}


def published_changes(world: World) -> list[tuple[str, str, str, str | None, str]]:
    """Returns what must be published for each edit in the log: its position, op, key and current state, and the
    identifier of its stamp.
    """
    changes = []
    for logged in world.transactions():
        identifier = ""
        for ordinal, event in enumerate(logged.events):
            if isinstance(event, LogMessage) and event.prefix == STAMP_PREFIX:
                identifier = json.loads(event.content)["identifier"]
            if isinstance(event, RowEdit):
                op = "create" if event.old is None else "delete" if event.new is None else "update"
                position = str(Position(EPOCH, logged.commit, 2 * ordinal))
                changes.append((position, op, str(event.key), _json(event), identifier))
    return changes


def _json(edit: RowEdit) -> str | None:
    return None if edit.new is None else json.dumps({name: edit.new.get(name) for name in edit.columns})


def read_errors(world: World, rows: list[dict[str, Any]]) -> list[str]:
    """Describes each row that contradicts the log, among the rows that table reads and sweeps published.

    The row must have the state that its key got from the last edit before the row's position. If that edit was not
    logged, the log does not show this state, so the row is not checked.
    """
    edits: dict[tuple[str, int], list[tuple[int, RowEdit | None]]] = {}
    for logged in world.transactions():
        for event in logged.events:
            if isinstance(event, RowEdit):
                edits.setdefault((event.table, event.key), []).append((logged.commit, event))
    for place, table, key in world.unlogged:
        edits.setdefault((table, key), []).append((place, None))
    for of_key in edits.values():  # an unlogged edit comes before a commit that has the same position
        of_key.sort(key=lambda edit: (edit[0], edit[1] is not None))
    commits = {logged.commit for logged in world.transactions()}
    errors = []
    for row in rows:
        commit = Position.parse(row["position"]).commit
        before = [edit for place, edit in edits.get((row["entity"], int(row["key"])), []) if place < commit]
        if commit in commits or not before or before[-1] is None:
            continue
        current = None if row["current"] is None else json.loads(row["current"])["status"]
        if current != (before[-1].new and before[-1].new["status"]):
            errors.append(f"{row['position']} {row['op']} {row['entity']} {row['key']}")
    return errors


def ghost_errors(world: World, rows: list[dict[str, Any]]) -> list[str]:
    """Describes each wrong deletion by a sweep. A deletion is right if the changelog had the key at that time, and if
    the key's state was the deletion's `original`.

    A comparison with the tables does not find such errors, because the tables lack the key at the end anyway.
    """
    commits = {logged.commit for logged in world.transactions()}
    last: dict[tuple[str, str], str | None] = {}
    errors = []
    for row in rows:
        place = row["entity"], row["key"]
        is_swept = row["op"] == "delete" and Position.parse(row["position"]).commit not in commits
        if is_swept and (last.get(place) is None or row["original"] != last[place]):
            errors.append(f"{row['position']} {place} was {last.get(place)}, not {row['original']}")
        last[place] = row["current"]
    return errors


def check(shop: Shop) -> None:
    rows = stored_rows(shop.path)
    assert read_errors(shop.world, rows) == []
    assert ghost_errors(shop.world, rows) == []
    positions = [row["position"] for row in rows]
    assert positions == sorted(set(positions)), "positions must be in order, and each position must be there once"
    commits = {str(Position(EPOCH, logged.commit, 0))[:25] for logged in shop.world.transactions()}
    streamed = [
        (row["position"], row["op"], row["key"], row["current"], row["identifier"])
        for row in rows
        if row["position"][:25] in commits
    ]
    assert [(*row[:3], row[3] and json.loads(row[3]), row[4]) for row in streamed] == [
        (*row[:3], row[3] and json.loads(row[3]), row[4]) for row in published_changes(shop.world)
    ], "each change must be published once, as it was made"
    for name in TABLES:
        table = shop.world.tables[name].rows(shop.world.snapshot())
        present = {
            key: {column: value for column, value in row.items() if value is not None} for key, row in table.items()
        }
        assert last_states(rows, name) == present


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_source_in_memory_publishes_its_tables(seed: int, messages: bool, tmp_path: Path) -> None:
    shop = Shop(seed, tmp_path / "log", steps=STEPS, crashes=0.0, messages=messages)
    shop.run()
    check(shop)
    assert shop.passed["window:read"] >= len(TABLES)
    assert shop.passed["signal:heard"] >= len(TABLES)


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("seed", range(100, 106))
def test_crashes_lose_nothing_and_repeat_nothing(seed: int, messages: bool, tmp_path: Path) -> None:
    shop = Shop(seed, tmp_path / "log", steps=STEPS, crashes=CRASHES, messages=messages)
    shop.run()
    check(shop)
    assert shop.passed["opened"] > shop.passed["crash"] > 0


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("seed", range(200, 203))
def test_a_sweep_deletes_no_ghost_that_came_back_before_its_deletion(seed: int, messages: bool, tmp_path: Path) -> None:
    """A sweep deletes ghosts: keys that the changelog still has and the table lacks.

    Here, the table lost its rows without a trace in the log. Some of them come back before the sweep deletes them.
    """
    shop = Shop(seed, tmp_path / "log", steps=STEPS // 4, crashes=0.0, lost=6, messages=messages)
    shop.run()
    check(shop)
    assert min(shop.passed[name] for name in ("ghost left alone", "ghost back", "ghost back and gone")) > 0
