"""Tests that the job `derive_deltas` writes one delta for each change of a file log, even if runs stop or are repeated.
Bad input must be reported in one line.

A *delta* describes, as a patch, what one change did to its row.
"""

import json
import os
import random
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.columnar import batch
from changelog.envelope.delta import delta_codec, delta_of
from changelog.envelope.model import Record
from changelog.spark_jobs.deltas.files import DELTAS, FAIL_POINTS, GRACE, newest, read_deltas, write
from changelog.spark_jobs.derive_deltas import JOB
from changelog.spark_jobs.reading.read import read_changelog
from changelog.spark_jobs.reading.where import Files
from changelog.spark_jobs.runner.job import main
from changelog.spark_jobs.storage.local_store import local
from tests.spark.changes import Workload
from tests.spark.derived import checkpoint, config, position, same, summary, tables


@dataclass(slots=True)
class Log:
    """A file log that grows, and the job that reads it."""

    folder: Path
    workload: Workload
    records: list[Record]

    def grow(self, transactions: int) -> None:
        """Publishes the next transactions of the workload to the log."""
        with closing(FileSink(self.folder / "log")) as sink:
            sink.recover()
            for transaction in self.workload.transactions(transactions):
                sink.add([batch.from_records(transaction)])
                sink.commit(checkpoint(transaction))
                self.records += transaction

    @property
    def config(self) -> Path:
        return config(self.folder, '{ path = "log" }')

    def run(self, *arguments: str, output: str = "out") -> int:
        return main(JOB, ["--config", str(self.config), "--output", str(self.folder / output), *arguments])

    def deltas(self, spark: SparkSession, output: str = "out") -> list[dict[str, Any]]:
        rows = read_deltas(spark, str(self.folder / output)).orderBy("position", "partition").collect()
        return [row.asDict() for row in rows]


@pytest.fixture
def log(tmp_path: Path, seed: int) -> Log:
    new_log = Log(folder=tmp_path, workload=Workload(random.Random(seed)), records=[])
    new_log.grow(15)
    return new_log


def test_each_change_of_a_log_has_its_delta_once(
    spark: SparkSession, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log.run() == 0
    first = summary(capsys)
    assert first["verdict"] == "done"
    assert first["deltas"] == len(log.records)
    log.grow(10)
    assert log.run("--entity", "order") == 0
    log.grow(5)
    assert log.run() == 0
    assert log.run() == 0
    assert summary(capsys)["deltas"] == 0
    rows = log.deltas(spark)
    records = {
        (record.entity, record.place.partition, str(position(delta_of(record.envelope)))): record
        for record in log.records
    }
    assert len(rows) == len(records) == len(log.records)
    for row in rows:
        record = records[row["entity"], row["partition"], row["position"]]
        assert same(delta_codec.decode(row["delta"].encode()).patch, delta_of(record.envelope).patch)
        assert row["key"] == record.place.key
    decoded = ((row["entity"], row["key"], delta_codec.decode(row["delta"].encode())) for row in rows)
    assert same(tables(decoded), log.workload.rows)


class Stopped(Exception):  # noqa: N818  # this is not an error
    pass


def test_a_run_that_stops_before_its_commit_is_repeated(spark: SparkSession, log: Log) -> None:
    def stop(name: str) -> None:
        assert name in FAIL_POINTS
        raise Stopped

    store, changes = local(log.folder / "out"), read_changelog(spark, Files(path=log.folder / "log"))
    with pytest.raises(Stopped):
        write(store, newest(store), changes, form="parquet", ordered=True, at=datetime.now(UTC), reach=stop)
    assert not newest(store).runs
    assert list(store.files("deltas")), "the stopped run must have written files, which no manifest lists"
    assert log.run() == 0
    assert len(log.deltas(spark)) == len(log.records)


def test_a_folder_that_no_manifest_lists_is_deleted_a_day_after_its_newest_file(spark: SparkSession, log: Log) -> None:
    """The oldest file does not count, because a run may write for longer than a day."""
    long_ago_s = (datetime.now(UTC) - 2 * GRACE).timestamp()
    deltas = log.folder / "out" / DELTAS
    for path in ("killed/a", "killed/b", "writing/a", "writing/b"):
        (deltas / path).parent.mkdir(parents=True, exist_ok=True)
        (deltas / path).touch()
        if path != "writing/b":
            os.utime(deltas / path, (long_ago_s, long_ago_s))
    assert log.run() == 0
    assert not (deltas / "killed").exists()
    assert sorted(file.name for file in (deltas / "writing").iterdir()) == ["a", "b"]


def test_deltas_can_be_written_as_lines_of_json(spark: SparkSession, log: Log) -> None:
    assert log.run("--format", "jsonl") == 0
    lines = [
        json.loads(line)
        for file in (log.folder / "out" / "deltas").rglob("part-*")
        for line in file.read_text().splitlines()
    ]
    assert len(lines) == len(log.records)
    first = min(lines, key=lambda line: line["position"])
    expected = log.records[0]
    assert [*first] == ["entity", "partition", "key", "kind", "position", "provenance", "patch"]
    assert (first["entity"], first["key"]) == (expected.entity, expected.place.key)
    assert first["patch"] == json.loads(delta_codec.encode(delta_of(expected.envelope)))["patch"]


def test_a_run_can_be_limited_to_a_span_of_positions(
    spark: SparkSession, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    positions = sorted({str(position(delta_of(record.envelope))) for record in log.records})
    first, last = positions[3], positions[-4]
    assert log.run("--from", first, "--to", last, output="span") == 0
    derived = {row["position"] for row in log.deltas(spark, "span")}
    assert derived == {text for text in positions if first <= text <= last}
    assert log.run(output="span") == 0
    assert {row["position"] for row in log.deltas(spark, "span")} == {text for text in positions if first <= text}
    capsys.readouterr()
    assert log.run("--from", first, output="span") == 2
    assert "has deltas already, up to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--entity", "room"], 2, "has no entity room"),
        (["--to", "00000009/0000000000000001/00000000"], 2, "is beyond the end"),
        (["--from", "00000009/0000000000000001/00000000"], 2, "is beyond the end"),
        (["--archive", "nowhere"], 3, "has no manifest"),
        (["--checkpoint", "x"], 2, "--checkpoint is not for a file log or an archive"),
        (
            ["--from", "00000001/0000000000000002/00000000", "--to", "00000001/0000000000000001/00000000"],
            2,
            "--from is after --to",
        ),
    ],
)
def test_bad_input_is_reported_in_one_line_and_writes_nothing(
    spark: SparkSession, log: Log, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert log.run(*arguments) == code
    output = capsys.readouterr()
    assert message in output.err
    assert len(output.err.splitlines()) == 1
    assert not (log.folder / "out").exists()


def test_a_damaged_file_of_the_log_is_reported_in_one_line(
    spark: SparkSession, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    file = log.folder / "log" / "log" / f"{3:020d}.parquet"
    content = bytearray(file.read_bytes())
    content[20:60] = bytes(40)
    file.write_bytes(content)
    assert log.run() == 3
    output = capsys.readouterr()
    assert file.name in output.err
    assert len(output.err.splitlines()) == 1
    assert not newest(local(log.folder / "out")).runs


def test_a_dry_run_writes_nothing(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    assert log.run("--dry-run") == 0
    plan = summary(capsys)
    assert (plan["verdict"], plan["behind"]) == ("planned", None)
    assert plan["writes"] == str(log.folder / "out")
    assert not (log.folder / "out").exists()
