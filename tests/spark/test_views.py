"""Views equal what plain Python makes of the same changes, one after another."""

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
"""How many positions of the random workload are looked at."""

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
    """Of a random workload of several services; some records come twice, and some lose more of their values."""
    chance = random.Random(seed)
    made = []
    for records in Workload(random=chance).transactions(count):
        stamp = Stamp(
            api_version=chance.choice("12"),
            service_name=chance.choice(SERVICES),
            identifier="",
            context=chance.choice([None, *HOSTILE_CONTEXTS]),
        )
        records = [stamped(lossy(each, chance), stamp) for each in records]
        made.append(records + [each for each in records if chance.random() < 0.1])
    return made


def stamped(record: Record, stamp: Stamp) -> Record:
    provenance = replace(record.envelope.provenance, stamp=stamp)
    return replace(record, envelope=replace(record.envelope, provenance=provenance))


def lossy(record: Record, chance: random.Random) -> Record:
    """An update whose `doc` the log did not send, whatever it is."""
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
    """The states of `order` after all changes up to a position, one after another."""
    states: dict[str, State] = {}
    for each in sorted(records, key=lambda record: record.envelope.provenance.source.position):
        stamp, source = each.envelope.provenance.stamp, each.envelope.provenance.source
        if each.entity != "order" or source.position > position or not counts(choice, stamp):
            continue
        match source.op:
            case Op.TRUNCATE:
                states.clear()
            case Op.DELETE:
                states.pop(each.place.key, None)
            case _:
                now = state_in(each)
                before = states.get(each.place.key, {})
                kept = {name: before[name] for name in source.unavailable if name in before}
                states[each.place.key] = kept | now
    return states


def counts(choice: Chosen | None, stamp: Stamp) -> bool:
    if choice is None:
        return True
    kept = not choice.keep_services or stamp.service_name in choice.keep_services
    versions = not choice.api_versions or stamp.api_version in choice.api_versions
    return kept and versions and stamp.service_name not in choice.drop_services


def states_of(view: DataFrame) -> dict[str, State]:
    """As `replay` gives them; what a state lacks is what it says to be unavailable."""
    found = {}
    for row in view.collect():
        state = {column.name: row[column.name] for column in COLUMNS if column.name not in row["_unavailable"]}
        if "doc" in state:
            state["doc"] = json.loads(state["doc"])
        assert row["_key"] not in found
        found[row["_key"]] = state
    return found


def stored(path: Path, made: Sequence[Sequence[Record]]) -> Path:
    """A file log of three commits."""
    sink = FileSink(path)
    sink.recover()
    third = -(-len(made) // 3)
    for number in range(3):
        records = [each for transaction in made[number * third : (number + 1) * third] for each in transaction]
        sink.add([from_records(records)])
        last = records[-1].envelope.provenance.source.position
        stored = checkpoint(number + 1, settings={"order": {}}, through=last.commit)
        sink.commit(replace(stored, position=last))
    sink.close()
    return path


def positions(records: Sequence[Record], chance: random.Random, count: int) -> list[Position]:
    """Of records, and between them."""
    found = [each.envelope.provenance.source.position for each in chance.choices(records, k=count)]
    return [replace(each, ordinal=each.ordinal + chance.randrange(2)) for each in found]


@pytest.fixture(scope="module")
def made() -> list[Record]:
    return [each for transaction in transactions(7, 150) for each in transaction]


@pytest.fixture(scope="module")
def changes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = stored(tmp_path_factory.mktemp("views") / "log", transactions(7, 150))
    return read_changelog(spark, Files(path=path), entities=["order"])


def test_as_of_equals_a_replay(changes: DataFrame, made: list[Record]) -> None:
    chance = random.Random(11)
    for position in [*positions(made, chance, ROUNDS - 1), made[-1].envelope.provenance.source.position]:
        expected = replay(made, position)
        assert states_of(live(latest(until(changes, position), COLUMNS))) == expected, str(position)


def test_the_workload_is_of_all_kinds(made: list[Record]) -> None:
    ops = {each.envelope.provenance.source.op for each in made}
    lacking = [each.envelope.provenance.source.unavailable for each in made]
    assert ops == set(Op)
    assert any(each.moved_to for each in made)
    assert {("long",), ("doc",), ("long", "doc")} <= set(lacking)
    assert len({(each.entity, each.place, each.envelope.provenance.source.position) for each in made}) < len(made)


@pytest.mark.parametrize(
    "choice",
    [
        Chosen(drop_services=("nightly-batch",)),
        Chosen(keep_services=("order-api", "admin"), api_versions=("2",)),
        Chosen(keep_services=("nobody",)),
    ],
)
def test_changes_that_do_not_count_were_never_made(changes: DataFrame, made: list[Record], choice: Chosen) -> None:
    end = made[-1].envelope.provenance.source.position
    expected = replay(made, end, choice)
    assert states_of(live(latest(chosen(changes, choice), COLUMNS))) == expected
    assert expected != replay(made, end)


def test_a_state_has_the_context_of_its_last_change(changes: DataFrame, made: list[Record]) -> None:
    last = {
        (each.place.key, str(each.envelope.provenance.source.position)): each.envelope.provenance.stamp.context
        for each in made
        if each.entity == "order"
    }
    rows = live(latest(changes, COLUMNS)).collect()
    assert [row["_context"] for row in rows] == [last[row["_key"], row["_position"]] for row in rows]
    assert len({row["_context"] for row in rows}) > 2


def test_a_view_of_an_older_version_is_followed(
    spark: SparkSession, changes: DataFrame, made: list[Record], tmp_path: Path
) -> None:
    first, second = sorted(positions(made, random.Random(17), 2))
    live(latest(until(changes, first), COLUMNS)).drop("_context").write.parquet(str(tmp_path / "view"))
    behind = until(changes, second).where(F.col("position") > str(first))
    found = followed(spark.read.parquet(str(tmp_path / "view")), behind, COLUMNS)
    assert found.schema == live(latest(changes, COLUMNS)).schema
    assert states_of(found) == replay(made, second)


def test_a_context_is_not_taken_for_what_the_source_says(spark: SparkSession, tmp_path: Path) -> None:
    def said(context: str | None, **source: Any) -> Record:
        made = record(Op.UPDATE, '{"id":1}', commit=1)
        told = made.envelope.provenance
        told = replace(told, stamp=replace(told.stamp, context=context), source=replace(told.source, **source))
        return replace(made, envelope=replace(made.envelope, provenance=told))

    records = [said(context, **source) for context in [None, *HOSTILE_CONTEXTS] for source in ({}, {"mask": "m"})]
    records += [said(HOSTILE_CONTEXTS[-2], json_null=("a",)), said("{}", unavailable=("b",))]
    rows = frame(spark, tmp_path, records).select(source_text().alias("text")).collect()
    for each, row in zip(records, rows, strict=True):
        told = each.envelope.provenance
        plain = provenance_json(replace(told, stamp=replace(told.stamp, context=None))).decode()
        assert row["text"] == (plain if told.stamp.context is None else plain[plain.index(',"source":{') :])


def test_a_view_follows(spark: SparkSession, changes: DataFrame, made: list[Record], tmp_path: Path) -> None:
    chance = random.Random(13)
    for number in range(ROUNDS // 2):
        first, second = sorted(positions(made, chance, 2))
        before = str(tmp_path / str(number))
        live(latest(until(changes, first), COLUMNS)).write.parquet(before)
        behind = until(changes, second).where(F.col("position") > str(first))
        found = followed(spark.read.parquet(before), behind, COLUMNS)
        assert states_of(found) == replay(made, second)
        assert found.schema == live(latest(changes, COLUMNS)).schema
        rest = live(latest(until(changes, second), COLUMNS))
        assert sorted(map(str, found.collect())) == sorted(map(str, rest.collect()))


def frame(spark: SparkSession, folder: Path, records: Sequence[Record]) -> DataFrame:
    pq.write_table(pa.Table.from_batches([from_records(records)]), folder / "changes.parquet")
    return spark.read.schema(ROWS).parquet(str(folder / "changes.parquet"))


def test_one_key_on_two_partitions_goes_by_position(spark: SparkSession, tmp_path: Path) -> None:
    at = [Place(key="1", partition=n) for n in (0, 1)]
    records = [
        replace(record(Op.CREATE, '{"id":1,"status":"A"}', commit=1, key="1"), place=at[0]),
        replace(record(Op.DELETE, commit=2, ordinal=2, key="1"), place=at[0], moved_to=at[1]),
        replace(record(Op.CREATE, '{"id":1,"status":"B"}', commit=2, ordinal=3, key="1"), place=at[1]),
    ]
    (row,) = live(latest(frame(spark, tmp_path, records[::-1]), COLUMNS)).collect()
    assert (row["status"], row["_position"], row["_op"]) == ("B", str(Position(1, 2, 3)), "create")
    assert live(latest(frame(spark, tmp_path, records[:2]), COLUMNS)).collect() == []


def test_what_is_unavailable_is_not_taken_from_before_a_delete(spark: SparkSession, tmp_path: Path) -> None:
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
def test_a_column_that_another_hides_is_refused(changes: DataFrame, name: str) -> None:
    with pytest.raises(ChangelogError, match=f"cannot have the column {name}"):
        latest(changes, [*COLUMNS, Column(name=name, type=Primitive.INT, nullable=True)])
