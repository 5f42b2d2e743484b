"""Tests that the job `rebuild_view` makes views of a file log as of any moment, and updates existing views. Each error
is one line.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.columnar.batch import from_records
from changelog.envelope.entity import Entity
from changelog.envelope.model import Op, Record, Stamp
from changelog.envelope.position import Position
from changelog.envelope.versions import TableColumns, Versions
from changelog.schemas import avro
from changelog.schemas.types import Struct
from changelog.spark_jobs.archiving.files import archive_log
from changelog.spark_jobs.archiving.levels import drop_days
from changelog.spark_jobs.archiving.write_files import ArchiveRun
from changelog.spark_jobs.rebuild_view import JOB
from changelog.spark_jobs.runner.job import main
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.outputs import CURRENT
from changelog.spark_jobs.views.to_parquet import newest
from changelog.spark_jobs.views.transforms import Chosen
from tests.spark.test_views import COLUMNS, positions, replay, states_of, transactions
from tests.unit.records import BEGIN, record
from tests.unit.sinks.material import checkpoint

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
tables = { include = ["*"] }
sink = { path = "log" }

[views.statuses]
entity = "order"
columns = ["id", "status"]
where = "id < 6"

[views.statuses.nested.peers]
entity = "order"
on = { status = "status" }
columns = ["id", "note"]
where = "id >= 6"

[views.statuses.nested.peers.nested.itself]
entity = "order"
on = { id = "id" }
columns = ["long"]

[views.wrong]
entity = "order"
nested.peers = { entity = "order", on = { statsu = "status" } }

[views.taken]
entity = "order"
nested.Note = { entity = "order", on = { id = "id" } }
"""
TRANSACTIONS = 60
NOTHING = {column.name: None for column in COLUMNS if column.name != "id"}
SHAPE = Struct(fields=tuple((column.name, column.type) for column in COLUMNS))

Run = Callable[..., dict[str, Any]]


def position_of(record: Record) -> Position:
    return record.envelope.provenance.source.position


def announced(first: Record, shape: Struct = SHAPE) -> Record:
    """Returns a row of the entity `schemas`. It announces the columns of the entity of `first`, just before this
    change.
    """
    entity = Entity(
        name=first.entity,
        table=("public", f"{first.entity}s"),
        key=("id",),
        partition_by=("id",),
        partitions=1,
        masks={},
        default_stamp=Stamp(api_version="", service_name="", identifier=""),
    )
    versions = Versions([], accepted={}, filled=lambda *_: ())
    return versions.announce(entity, TableColumns(columns=shape), first.envelope.provenance).record


@pytest.fixture(scope="module")
def workload() -> list[list[Record]]:
    return transactions(21, TRANSACTIONS)


@pytest.fixture
def folder(tmp_path: Path, workload: list[list[Record]]) -> Path:
    """A configuration, and a log with the first half of the transactions. `grow` adds more transactions."""
    (tmp_path / "changelog.toml").write_text(CONFIG, "utf-8")
    first = next(record for records in workload for record in records if record.entity == "order")
    grow(tmp_path, [[announced(first)], *workload[: TRANSACTIONS // 2]])
    return tmp_path


def grow(folder: Path, transactions: list[list[Record]], entities: Sequence[str] = ("order", "guest")) -> None:
    with closing(FileSink(folder / "log")) as sink:
        recovered = sink.recover()
        flat_records = [record for records in transactions for record in records]
        sink.add([from_records(flat_records)])
        last = position_of(flat_records[-1])
        number = 1 if recovered is None else 2
        state = checkpoint(number, settings={entity: {} for entity in entities}, through=last.commit)
        sink.commit(replace(state, position=last))


def with_schema(folder: Path) -> Path:
    """Writes the schema of the entity `order`. Returns the folder of the schema."""
    schemas = folder / "schemas"
    schemas.mkdir()
    (schemas / "order.avsc").write_text(json.dumps(avro.state_schema("order", SHAPE, ("id",), "booking")), "utf-8")
    return schemas


@pytest.fixture
def run(spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        config = ("--config", str(folder / "changelog.toml"))
        entity = () if {"--view", "--entity"} & {*arguments} else ("--entity", "order")
        exit_code = main(JOB, [*config, *entity, "--to", str(folder / "view"), *arguments])
        output = capsys.readouterr()
        summary: dict[str, Any] = json.loads(output.out.splitlines()[-1])
        assert exit_code == code, output.err
        assert output.err.count("\n") == (code > 0), output.err
        return {**summary, "stderr": output.err}

    return run


def flat(transactions: list[list[Record]]) -> list[Record]:
    return [record for records in transactions for record in records]


def view(spark: SparkSession, folder: Path) -> dict[str, Any]:
    return states_of(spark.read.parquet(str(folder / "view" / CURRENT)))


def test_a_view_of_the_present_is_updated_by_the_next_run(
    spark: SparkSession, folder: Path, run: Run, workload: list[list[Record]]
) -> None:
    half = workload[: TRANSACTIONS // 2]
    first = run()
    assert (first["verdict"], first["after"], first["position"]) == ("done", None, str(position_of(half[-1][-1])))
    assert view(spark, folder) == replay(flat(half), position_of(half[-1][-1]))
    grow(folder, workload[TRANSACTIONS // 2 :])
    second = run()
    expected = replay(flat(workload), position_of(workload[-1][-1]))
    assert (second["after"], second["rows"]) == (first["position"], len(expected))
    assert view(spark, folder) == expected
    assert len(list((folder / "view" / "views").iterdir())) == 2
    assert run("--drop-service", "nightly-batch")["after"] is None
    choice = Chosen(drop_services=("nightly-batch",))
    assert view(spark, folder) == replay(flat(workload), position_of(workload[-1][-1]), choice) != expected
    assert len(list((folder / "view" / "views").iterdir())) == 2


def test_a_view_as_of_a_time_ends_before_the_first_later_transaction(
    spark: SparkSession, folder: Path, run: Run, workload: list[list[Record]]
) -> None:
    half = workload[: TRANSACTIONS // 2]
    at = half[10][0].envelope.provenance.source.committed_at
    for time in (at, at + timedelta(milliseconds=500)):
        assert run("--as-of", time.isoformat())["position"] == str(max(map(position_of, half[10])))
    assert view(spark, folder) == replay(flat(half), position_of(half[10][-1]))
    assert run("--as-of", datetime.now(UTC).isoformat())["position"] == str(position_of(half[-1][-1]))


def test_where_selects_rows_and_raw_keeps_the_texts_of_values(
    spark: SparkSession, folder: Path, run: Run, workload: list[list[Record]]
) -> None:
    position = positions(flat(workload[: TRANSACTIONS // 2]), random.Random(3), 1)[0]
    arguments = ("--as-of", str(position), "--where", "status = 'PAID'", "--raw", "--schemas", str(with_schema(folder)))
    rows = run(*arguments)["rows"]
    paid = {key: state for key, state in replay(flat(workload), position).items() if state["status"] == "PAID"}
    rows_ = spark.read.parquet(str(folder / "view" / CURRENT)).collect()
    assert {row["_key"]: row["id"] for row in rows_} == {key: str(state["id"]) for key, state in paid.items()}
    assert rows == len(paid) > 0


def test_documents_nest_the_rows_that_belong_to_them(
    spark: SparkSession, folder: Path, run: Run, workload: list[list[Record]]
) -> None:
    half = flat(workload[: TRANSACTIONS // 2])
    states = {int(key): state for key, state in replay(half, position_of(half[-1])).items()}
    assert run("--view", "statuses")["rows"] == sum(id_ < 6 for id_ in states) > 0
    documents = spark.read.parquet(str(folder / "view" / CURRENT)).collect()
    for row in documents:
        state = states[row["id"]]
        peers = [
            (peer["id"], peer["note"], [(peer.get("long"),)])
            for id_, peer in sorted(states.items(), key=lambda item: str(item[0]))
            if id_ >= 6 and peer["status"] is not None and peer["status"] == state["status"]
        ]
        assert row["status"] == state["status"]
        assert [
            (peer["id"], peer["note"], [tuple(nested) for nested in peer["itself"]]) for peer in row["peers"]
        ] == peers
    assert any(len(row["peers"]) > 1 for row in documents)
    assert documents[0].__fields__[:3] == ["id", "status", "peers"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--entity", "ordre"), 2, "has no entity ordre; it has: guest, order"),
        (
            ("--entity", "guest"),
            3,
            "has no columns of the entity guest at .*; name a folder with its schema: --schemas DIR",
        ),
        (("--as-of", "00000001/00000000000FFFFF/00000000"), 2, "is beyond the end"),
        (("--as-of", "1999-01-01T00:00:00Z"), 2, "1999-01-01T00:00:00.* is before the first transaction"),
        (("--schemas", "nowhere"), 2, "nowhere/order.avsc cannot be read"),
        (("--where", "statsu = 1"), 2, "the condition does not fit the view .*the view has the columns: id, status,"),
        (("--where", "status = = 1"), 2, "the condition does not fit the view"),
        (("--archive", "nothing"), 3, "has no manifest"),
        (("--keep-service", "a", "--drop-service", "a"), 2, "a service is both kept and dropped"),
        (("--view", "nothing"), 2, "the configuration has no view nothing; add .* has: statuses, taken, wrong"),
        (("--view", "wrong"), 2, "view.nested.peers.on: the entity order has no column statsu; it has: id, status"),
        (("--view", "taken"), 2, "view.nested.Note: the entity order has a column of this name"),
    ],
)
def test_a_view_that_cannot_be_made_is_reported_in_one_line(
    folder: Path, run: Run, arguments: tuple[str, ...], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    summary = run(*arguments, code=code)
    assert summary["verdict"] == "failed"
    assert re.search(message, summary["stderr"]), summary["stderr"]
    assert not (folder / "view").exists()


def test_a_dry_run_says_what_it_would_do(folder: Path, run: Run) -> None:
    planned = run("--dry-run", "--drop-service", "nightly-batch")
    assert (planned["verdict"], planned["as_of"], planned["drop_services"]) == ("planned", "now", ["nightly-batch"])
    assert planned["reads"] == str(folder / "log")
    assert not (folder / "view").exists()


def test_files_of_a_killed_run_are_ignored(folder: Path, run: Run) -> None:
    run()
    before = newest(local(folder / "view"))
    (folder / "view" / "views" / "left").mkdir()
    (folder / "view" / "views" / "left" / "part").write_text("half")
    (folder / "view" / "manifest" / "2.json").write_text('{"format":1,')
    assert newest(local(folder / "view")) == before
    run("--full")
    assert not (folder / "view" / "views" / "left").exists()


def test_a_view_that_is_older_than_the_retained_changes_is_not_updated(
    spark: SparkSession, folder: Path, run: Run, workload: list[list[Record]]
) -> None:
    run()
    before = newest(local(folder / "view"))
    for days in (2, 4, 6):
        grow(folder, [[record(Op.CREATE, '{"id":1,"doc":{}}', key="1", commit=days * 86_400)]])
    archive = ArchiveRun(spark=spark, store=local(folder / "log"), at=BEGIN + timedelta(days=7))
    archive_log(archive, folder / "log")
    run("--archive", str(folder / "log"), "--to", str(folder / "archived"))
    archived = states_of(spark.read.parquet(str(folder / "archived" / CURRENT)))
    assert archived == {
        **replay(flat(workload[: TRANSACTIONS // 2]), position_of(workload[-1][-1])),
        "1": NOTHING | {"id": 1, "doc": {}},
    }
    assert drop_days(archive, keep_days=5) == ["2026-11-21"]
    error_line = run(code=3)["stderr"]
    assert re.search("history may be lost: the existing view goes up to .* begins at .*; start again", error_line)
    assert newest(local(folder / "view")) == before
    assert len(list((folder / "view" / "views").iterdir())) == 1
    assert run("--full")["rows"] == 1
