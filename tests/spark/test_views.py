"""Tests that Spark and plain Python compute the same view (the last state of each key) from the same changes."""

import json
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import Raw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.codec.json_codec import provenance_json
from changelog.envelope.columnar.batch import from_records
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Place, Record, Stamp
from changelog.envelope.position import Position
from changelog.schemas.avro import Column
from changelog.schemas.types import Primitive
from changelog.spark_jobs.reading.provenance import source_text
from changelog.spark_jobs.reading.read import read_changelog
from changelog.spark_jobs.reading.read_files import ROWS
from changelog.spark_jobs.reading.where import Files
from changelog.spark_jobs.views.transforms import Chosen, chosen, followed, latest, live, until
from tests.spark.changes import Workload
from tests.unit.envelope.strategies import HOSTILE_CONTEXTS
from tests.unit.records import record
from tests.unit.sinks.material import checkpoint

ROUNDS = int(os.environ.get("CHANGELOG_TEST_ROUNDS", "0")) or 4
"""The number of positions at which the random workload is checked."""

SERVICES = ("order-api", "nightly-batch", "admin")
COLUMNS = [
    Column(name=name, type=type_, nullable=True)
    for name, type_ in {
        "id": Primitive.LONG,
        "status": Primitive.STRING,
        "note": Primitive.STRING,
        "amount": Primitive.STRING,
        "doc": Primitive.JSON,
        "long": Primitive.STRING,
    }.items()
]

State = dict[str, Any]


def transactions(seed: int, count: int) -> list[list[Record]]:
    """Returns random transactions of several services. Some records are repeated, and some updates lack `doc`."""
    chance = random.Random(seed)
    workload = []
    for records in Workload(random=chance).transactions(count):
        stamp = Stamp(
            api_version=chance.choice("12"),
            service_name=chance.choice(SERVICES),
            identifier="",
            context=chance.choice([None, *HOSTILE_CONTEXTS]),
        )
        records = [stamped(lossy(record, chance), stamp) for record in records]
        workload.append(records + [record for record in records if chance.random() < 0.1])
    return workload


def stamped(record: Record, stamp: Stamp) -> Record:
    """Returns a copy of the record with another stamp. A stamp says who made a change."""
    provenance = replace(record.envelope.provenance, stamp=stamp)
    return replace(record, envelope=replace(record.envelope, provenance=provenance))


def lossy(record: Record, chance: random.Random) -> Record:
    """Removes `doc` from half of the updates, as if the database's log lacked it."""
    envelope, source = record.envelope, record.envelope.provenance.source
    if source.op is not Op.UPDATE or chance.random() < 0.5:
        return record
    current = state_in(record)
    del current["doc"]
    source = replace(source, unavailable=(*source.unavailable, "doc"))
    provenance = replace(envelope.provenance, source=source)
    return replace(record, envelope=replace(envelope, current=Raw(json.dumps(current)), provenance=provenance))


def state_in(record: Record) -> State:
    assert record.envelope.current is not None
    return dict(json.loads(bytes(record.envelope.current)))


def replay(records: Iterable[Record], position: Position, choice: Chosen | None = None) -> dict[str, State]:
    """Applies all changes up to a position one after another, and returns the states of `order` by key."""
    states: dict[str, State] = {}
    for change in sorted(records, key=lambda record: record.envelope.provenance.source.position):
        stamp, source = change.envelope.provenance.stamp, change.envelope.provenance.source
        if change.entity != "order" or source.position > position or not counts(choice, stamp):
            continue
        match source.op:
            case Op.TRUNCATE:
                states.clear()
            case Op.DELETE:
                states.pop(change.place.key, None)
            case _:
                logged = state_in(change)
                before = states.get(change.place.key, {})
                carried = {name: before[name] for name in source.unavailable if name in before}
                states[change.place.key] = carried | logged
    return states


def counts(choice: Chosen | None, stamp: Stamp) -> bool:
    """Returns whether a change with this stamp counts in a view with this choice of services and versions."""
    if choice is None:
        return True
    service_counts = not choice.keep_services or stamp.service_name in choice.keep_services
    version_counts = not choice.api_versions or stamp.api_version in choice.api_versions
    return service_counts and version_counts and stamp.service_name not in choice.drop_services


def states_of(view: DataFrame) -> dict[str, State]:
    """Returns the states of a view by key, as `replay` does. A state lacks the columns that are unavailable in its
    row.
    """
    states = {}
    for row in view.collect():
        state = {column.name: row[column.name] for column in COLUMNS if column.name not in row["_unavailable"]}
        if "doc" in state:
            state["doc"] = json.loads(state["doc"])
        assert row["_key"] not in states
        states[row["_key"]] = state
    return states


def stored(path: Path, transactions: Sequence[Sequence[Record]]) -> Path:
    """Writes a file log of three commits."""
    sink = FileSink(path)
    sink.recover()
    third = -(-len(transactions) // 3)
    for number in range(3):
        records = [
            record for transaction in transactions[number * third : (number + 1) * third] for record in transaction
        ]
        sink.add([from_records(records)])
        last = records[-1].envelope.provenance.source.position
        state = checkpoint(number + 1, settings={"order": {}}, through=last.commit)
        sink.commit(replace(state, position=last))
    sink.close()
    return path


def positions(records: Sequence[Record], chance: random.Random, count: int) -> list[Position]:
    """Returns random positions. Some are positions of records, and some lie between the positions of two records."""
    record_positions = [choice.envelope.provenance.source.position for choice in chance.choices(records, k=count)]
    return [replace(position, ordinal=position.ordinal + chance.randrange(2)) for position in record_positions]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [record for transaction in transactions(7, 150) for record in transaction]


@pytest.fixture(scope="module")
def changes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = stored(tmp_path_factory.mktemp("views") / "log", transactions(7, 150))
    return read_changelog(spark, Files(path=path), entities=["order"])


def test_a_view_as_of_a_position_equals_a_replay(changes: DataFrame, records: list[Record]) -> None:
    chance = random.Random(11)
    for position in [*positions(records, chance, ROUNDS - 1), records[-1].envelope.provenance.source.position]:
        expected = replay(records, position)
        assert states_of(live(latest(until(changes, position), COLUMNS))) == expected, str(position)


def test_the_workload_has_all_kinds_of_changes(records: list[Record]) -> None:
    ops = {record.envelope.provenance.source.op for record in records}
    unavailable = [record.envelope.provenance.source.unavailable for record in records]
    assert ops == set(Op)
    assert any(record.moved_to for record in records)
    assert {("long",), ("doc",), ("long", "doc")} <= set(unavailable)
    assert len({(record.entity, record.place, record.envelope.provenance.source.position) for record in records}) < len(
        records
    )


@pytest.mark.parametrize(
    "choice",
    [
        Chosen(drop_services=("nightly-batch",)),
        Chosen(keep_services=("order-api", "admin"), api_versions=("2",)),
        Chosen(keep_services=("nobody",)),
    ],
)
def test_changes_that_are_not_chosen_have_no_effect(changes: DataFrame, records: list[Record], choice: Chosen) -> None:
    end = records[-1].envelope.provenance.source.position
    expected = replay(records, end, choice)
    assert states_of(live(latest(chosen(changes, choice), COLUMNS))) == expected
    assert expected != replay(records, end)


def test_a_state_has_the_context_of_its_last_change(changes: DataFrame, records: list[Record]) -> None:
    last = {
        (record.place.key, str(record.envelope.provenance.source.position)): record.envelope.provenance.stamp.context
        for record in records
        if record.entity == "order"
    }
    rows = live(latest(changes, COLUMNS)).collect()
    assert [row["_context"] for row in rows] == [last[row["_key"], row["_position"]] for row in rows]
    assert len({row["_context"] for row in rows}) > 2


def test_a_view_that_an_older_version_wrote_is_updated(
    spark: SparkSession, changes: DataFrame, records: list[Record], tmp_path: Path
) -> None:
    first, second = sorted(positions(records, random.Random(17), 2))
    live(latest(until(changes, first), COLUMNS)).drop("_context").write.parquet(str(tmp_path / "view"))
    later = until(changes, second).where(F.col("position") > str(first))
    view = followed(spark.read.parquet(str(tmp_path / "view")), later, COLUMNS)
    assert view.schema == live(latest(changes, COLUMNS)).schema
    assert states_of(view) == replay(records, second)


def test_a_context_is_not_taken_for_the_source(spark: SparkSession, tmp_path: Path) -> None:
    """Applications write the context of a stamp, so it may contain text that looks like the member `source`."""

    def with_context(context: str | None, **source: Any) -> Record:
        template = record(Op.UPDATE, '{"id":1}', commit=1)
        provenance = template.envelope.provenance
        provenance = replace(
            provenance, stamp=replace(provenance.stamp, context=context), source=replace(provenance.source, **source)
        )
        return replace(template, envelope=replace(template.envelope, provenance=provenance))

    records = [
        with_context(context, **source) for context in [None, *HOSTILE_CONTEXTS] for source in ({}, {"mask": "m"})
    ]
    records += [with_context(HOSTILE_CONTEXTS[-2], json_null=("a",)), with_context("{}", unavailable=("b",))]
    rows = frame(spark, tmp_path, records).select(source_text().alias("text")).collect()
    for expected, row in zip(records, rows, strict=True):
        expected_provenance = expected.envelope.provenance
        plain = provenance_json(
            replace(expected_provenance, stamp=replace(expected_provenance.stamp, context=None))
        ).decode()
        assert row["text"] == (
            plain if expected_provenance.stamp.context is None else plain[plain.index(',"source":{') :]
        )


def test_an_updated_view_equals_a_rebuilt_one(
    spark: SparkSession, changes: DataFrame, records: list[Record], tmp_path: Path
) -> None:
    chance = random.Random(13)
    for number in range(ROUNDS // 2):
        first, second = sorted(positions(records, chance, 2))
        before = str(tmp_path / str(number))
        live(latest(until(changes, first), COLUMNS)).write.parquet(before)
        later = until(changes, second).where(F.col("position") > str(first))
        view = followed(spark.read.parquet(before), later, COLUMNS)
        assert states_of(view) == replay(records, second)
        assert view.schema == live(latest(changes, COLUMNS)).schema
        rebuilt = live(latest(until(changes, second), COLUMNS))
        assert sorted(map(str, view.collect())) == sorted(map(str, rebuilt.collect()))


def frame(spark: SparkSession, folder: Path, records: Sequence[Record]) -> DataFrame:
    pq.write_table(pa.Table.from_batches([from_records(records)]), folder / "changes.parquet")
    return spark.read.schema(ROWS).parquet(str(folder / "changes.parquet"))


def test_changes_of_a_key_in_two_partitions_are_ordered_by_position(spark: SparkSession, tmp_path: Path) -> None:
    at = [Place(key="1", partition=n) for n in (0, 1)]
    records = [
        replace(record(Op.CREATE, '{"id":1,"status":"A"}', commit=1, key="1"), place=at[0]),
        replace(record(Op.DELETE, commit=2, ordinal=2, key="1"), place=at[0], moved_to=at[1]),
        replace(record(Op.CREATE, '{"id":1,"status":"B"}', commit=2, ordinal=3, key="1"), place=at[1]),
    ]
    (row,) = live(latest(frame(spark, tmp_path, records[::-1]), COLUMNS)).collect()
    assert (row["status"], row["_position"], row["_op"]) == ("B", str(Position(1, 2, 3)), "create")
    assert live(latest(frame(spark, tmp_path, records[:2]), COLUMNS)).collect() == []


def test_an_unavailable_value_is_not_taken_from_before_a_delete(spark: SparkSession, tmp_path: Path) -> None:
    records = [
        record(Op.CREATE, '{"id":1,"status":"A"}', commit=1),
        record(Op.DELETE, commit=2),
        record(Op.UPDATE, '{"id":1}', commit=3, unavailable=("status",)),
        record(Op.UPDATE, '{"id":2}', commit=4, unavailable=("status",)),
    ]
    (row,) = live(latest(frame(spark, tmp_path, records), COLUMNS)).collect()
    assert (row["id"], row["status"], row["_unavailable"]) == (2, None, ["status"])


def test_values_are_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
    state = (
        '{"id":9007199254740993,"note":"\\u00e9","amount":"123456789012345678901234567890.10","doc":{"n":1e+20,"m":-0}}'
    )
    changes = frame(spark, tmp_path, [record(Op.READ, state)])
    for raw in (False, True):
        (row,) = live(latest(changes, COLUMNS, raw=raw)).collect()
        assert row["id"] == ("9007199254740993" if raw else 9007199254740993)
        assert (row["note"], row["doc"]) == ("é", '{"n":1e+20,"m":-0}')
        assert row["amount"] == "123456789012345678901234567890.10"
        assert (row["status"], row["_unavailable"]) == (None, [])


@pytest.mark.parametrize("name", ["_key", "_Position", "ID"])
def test_a_column_whose_name_clashes_is_refused(changes: DataFrame, name: str) -> None:
    with pytest.raises(ChangelogError, match=f"cannot have the column {name}"):
        latest(changes, [*COLUMNS, Column(name=name, type=Primitive.INT, nullable=True)])
