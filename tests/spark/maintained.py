"""Helps to test the job `maintain_view`: distributes changes over batches, and reads tables of PostgreSQL."""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal as Number
from typing import Any

import psycopg

from changelog.connectors.config import TotalsConfig
from changelog.connectors.failpoints import Reach, nowhere
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op, Record
from changelog.envelope.position import Position
from changelog.schemas.avro import Column
from changelog.schemas.types import Decimal
from changelog.spark_jobs.maintaining.apply_changes import MaintainedView
from changelog.spark_jobs.maintaining.parts import ViewPart
from changelog.spark_jobs.maintaining.progress import ViewProgress, parse
from changelog.spark_jobs.maintaining.target import ViewTarget
from changelog.spark_jobs.views.transforms import EVERYTHING
from tests.spark.changes import PARTITIONS
from tests.spark.test_rebuild_view import position_of
from tests.spark.test_views import COLUMNS, State

NAMES = [column.name for column in COLUMNS]

SUMMED = [
    Column(
        name=column.name, type=Decimal(precision=10, scale=2) if column.name == "amount" else column.type, nullable=True
    )
    for column in COLUMNS
]
"""The columns of `order`. `amount` has a type that can be summed."""

TOTALS = TotalsConfig(by=("status", "note"), sums=("amount", "id"))
"""Some rows have no status, so groups with null are compared, too."""


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def table(dsn: str, name: str = "orders") -> dict[str, State]:
    """Returns the states in a table by key, in the form that `replay` in `test_views` returns."""
    columns = ", ".join(f'"{column}"' for column in NAMES)
    return {
        key: {
            column: str(value) if isinstance(value, Number) else value
            for column, value in zip(NAMES, values, strict=True)
            if column not in unavailable
        }
        for key, unavailable, *values in query(dsn, f"SELECT _key, _unavailable, {columns} FROM {name}")
    }


def check_totals(dsn: str, totals: TotalsConfig) -> None:
    """Compares the totals of the table `orders` with the groups of its rows."""
    by, sums = ", ".join(totals.by), totals.sums
    stored = ", ".join(f"count_{name}, sum_{name}" for name in sums)
    counted = ", ".join(f"count({name}), sum({name})" for name in sums)
    rows = query(dsn, f"SELECT {by}, _count, {stored} FROM orders__totals")
    expected = query(dsn, f"SELECT {by}, count(*), {counted} FROM orders GROUP BY {by}")
    assert sorted(rows, key=str) == sorted(expected, key=str)


def scattered(
    records: Sequence[Record],
    chance: random.Random,
    shares: Sequence[float] = (0, 0.5, 1),
    entities: Collection[str] = ("order",),
) -> list[list[Record]]:
    """Distributes the changes of these entities over batches, as if partitions were read at different speeds.

    From each partition, a batch takes a random share of the remaining changes: one of `shares`. Some batches are
    applied again later. A row that is created again may get another partition.
    """
    queues: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    live: dict[str, dict[str, int]] = {entity: {} for entity in entities}
    places: dict[tuple[Position, str, str], int] = {}
    for change in records:
        entity, key, op = change.entity, change.place.key, change.envelope.provenance.source.op
        if entity not in entities:
            continue
        if key == TRUNCATE_KEY:
            live[entity].clear()
            queues[change.place.partition].append(change)
            continue
        place = places.get((position_of(change), entity, key))
        if place is None:
            place = live[entity][key] = live[entity].get(key, chance.randrange(PARTITIONS))
            places[position_of(change), entity, key] = place
            if op is Op.DELETE:
                del live[entity][key]
        queues[place].append(replace(change, place=replace(change.place, partition=place)))
    batches: list[list[Record]] = []
    while any(queues):
        batch = []
        for queue in queues:
            count = math.ceil(len(queue) * chance.choice(shares))
            batch += queue[:count]
            del queue[:count]
        batches.append(batch)
        if chance.random() < 0.3:
            batches.append(chance.choice(batches))
    return [batch for batch in batches if batch]


def maintained(target: ViewTarget, columns: Sequence[Column] = COLUMNS) -> MaintainedView:
    """Opens the view of `order` in the target. Creates the view if there is none."""
    return maintained_parts(target, [ViewPart(entity="order", columns=columns)])


def maintained_parts(
    target: ViewTarget,
    parts: Sequence[ViewPart],
    *,
    keep_deleted: timedelta = timedelta(days=7),
    reach: Reach = nowhere,
) -> MaintainedView:
    """Opens a view of these parts in the target. The view continues where its last run stopped. Creates the view if
    there is none.
    """
    text = target.progress()
    progress = ViewProgress(definition={}) if text is None else parse(text, "the view")
    if text is None:
        target.create(parts[0].columns, progress.to_json())
    return MaintainedView(
        parts=parts,
        choice=EVERYTHING,
        target=target,
        progress=progress,
        read_parts=lambda: parts,
        keep_deleted=keep_deleted,
        reach=reach,
    )


class CrashError(Exception):
    pass


class CrashOnce:
    """Raises an error when a fail point is reached for the `count`-th time."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._remaining = name, count

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._remaining -= 1
            if self._remaining == 0:
                raise CrashError
