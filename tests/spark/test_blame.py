"""Tests that the job `blame` finds the change that set each attribute of each row. An implementation in plain Python
reads the changes key by key, and must find the same changes.
"""

import contextlib
import io
import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from changelog.connectors.history.key_blame import key_blame
from changelog.connectors.sinks.files.log import FileLog
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.columnar.batch import from_records
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op, Record, position_of
from changelog.envelope.position import Position
from changelog.spark_jobs.archiving.files import archive_log
from changelog.spark_jobs.archiving.write_files import ArchiveRun
from changelog.spark_jobs.blame import JOB
from changelog.spark_jobs.blaming.write_tables import newest
from changelog.spark_jobs.runner.job import main
from changelog.spark_jobs.storage.local_store import local
from tests.spark.blame_oracle import Attributes, attributes_of, changes_of, coverage_of, row_of
from tests.spark.test_derive_deltas_kafka import Topics, topics
from tests.spark.test_views import stamped, transactions
from tests.unit.records import BEGIN, record
from tests.unit.sinks.material import checkpoint

__all__ = ["topics"]  # pytest uses this imported fixture, which gives each test its own topics

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
tables = { include = ["*"] }
sink = { path = "log" }
provenance.default = { serviceName = "admin" }
"""
SESSION = '{"session":{"user":"app","application":"psql"}}'
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A folder with a configuration, a file log and the tables of one run of the job (`blame/`).

    `records` are the records in the log.
    """

    folder: Path
    records: list[Record]
    summary: Mapping[str, Any]

    @property
    def config(self) -> Path:
        return self.folder / "changelog.toml"

    @property
    def end(self) -> Position:
        return position_of(self.records[-1])


def workload() -> list[Record]:
    """Returns a list of changes. Among them are nested JSON, TRUNCATEs, rows that move to another key, and values that
    the database's log left out.

    A stamp says who made a change. Each transaction has its own identifier in its stamp, and about a third of the
    transactions have the stamp of a session.
    """
    chance = random.Random(5)
    records = []
    for number, transaction in enumerate(transactions(17, 120)):
        stamp = transaction[0].envelope.provenance.stamp
        context = SESSION if chance.random() < 0.3 else stamp.context
        stamp = replace(stamp, identifier=f"req-{number}", context=context)
        records += [stamped(record, stamp) for record in transaction]
    return records


def publish(log: Path, records: Sequence[Record]) -> None:
    with closing(FileSink(log)) as sink:
        number = 1 if sink.recover() is None else 2
        sink.add([from_records(records)])
        last = position_of(records[-1])
        state = checkpoint(number, settings={"order": {}, "guest": {}}, through=last.commit)
        sink.commit(replace(state, position=last))


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder, records = tmp_path_factory.mktemp("blame"), workload()
    publish(folder / "log", records)
    (folder / "changelog.toml").write_text(CONFIG, "utf-8")
    return Site(folder=folder, records=records, summary=blame(folder, "--to", str(folder / "blame")))


def blame(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Runs the job with the configuration in a folder. Returns the job's summary, and under `stderr` its standard
    error.
    """
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        exit_code = main(JOB, ["--config", str(folder / "changelog.toml"), *arguments])
    assert exit_code == code, errors.getvalue()
    assert errors.getvalue().count("\n") == (code > 0), errors.getvalue()
    summary: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
    return {**summary, "stderr": errors.getvalue()}


def rows_of(query: str) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        table: pa.Table = connection.sql(query).to_arrow_table()
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


def attributes(output: Path) -> Attributes:
    rows = rows_of(f"SELECT * FROM '{output}/current/attributes/**/*.parquet'")
    by_path = {(row.pop("entity"), row.pop("key"), row.pop("path")): row for row in rows}
    assert len(by_path) == len(rows)
    return by_path


def test_every_attribute_has_the_change_that_set_it(site: Site) -> None:
    expected = attributes_of(site.records, site.end)
    assert attributes(site.folder / "blame") == expected
    assert (site.summary["verdict"], site.summary["position"]) == ("done", str(site.end))
    assert site.summary["attributes"] == len(expected)
    counts = Counter(row["stamp"] for row in expected.values())
    assert {kind: site.summary[f"attributes_{kind}"] for kind in counts} == counts
    assert set(counts) == {"application", "session", "none", "unknown"}
    assert any(path.startswith("/doc/tags/") for *_, path in expected)


def test_the_table_equals_the_blame_of_each_key(site: Site, tmp_path: Path) -> None:
    publish(tmp_path, changes_of(site.records, site.end))  # without repeats, because a file log has none
    log = FileLog(tmp_path)
    addresses = {(record.entity, record.place.key) for record in site.records} - {
        (entity, TRUNCATE_KEY) for entity in ("order", "guest")
    }
    expected = {
        (*address, attribute.pointer): row_of(attribute)
        for address in addresses
        for attribute in key_blame(log, *address).attributes
    }
    assert attributes(site.folder / "blame") == expected


def test_blame_as_of_a_position_ignores_later_changes(site: Site, tmp_path: Path) -> None:
    """The position is between the two messages of a move: the row has left its old key, but not reached the new one."""
    moves = [record for record in site.records if record.moved_to and record.moved_to.key != record.place.key]
    position = position_of(moves[len(moves) // 2])
    summary = blame(site.folder, "--to", str(tmp_path), "--as-of", str(position))
    assert summary["position"] == str(position)
    assert attributes(tmp_path) == attributes_of(site.records, position) != attributes_of(site.records, site.end)


def test_coverage_counts_changes_and_attributes_by_day(site: Site) -> None:
    changes = coverage_of(site.records, site.end)
    attribute_counts = Counter(
        (entity, row["committed_at"].date(), row["service_name"], row["stamp"])
        for (entity, *_), row in attributes_of(site.records, site.end).items()
    )
    rows = rows_of(f"SELECT * FROM '{site.folder}/blame/current/coverage/*.parquet'")
    by_group = {(row["entity"], row["day"], row["service_name"], row["stamp"]): row for row in rows}
    assert len(by_group) == len(rows)
    assert {group: row["changes"] for group, row in by_group.items() if row["changes"]} == changes
    assert {group: row["attributes"] for group, row in by_group.items() if row["attributes"]} == attribute_counts
    assert site.summary["changes"] == sum(changes.values())
    kinds = ("application", "session", "none")
    assert [site.summary[f"changes_{kind}"] for kind in kinds] == [
        sum(count for (*_, kind_of_group), count in changes.items() if kind_of_group == kind) for kind in kinds
    ]


def test_an_archive_is_read_like_its_log_and_the_output_is_replaced(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    publish(log, site.records)
    for day in (2, 4, 6):
        publish(log, [record(Op.CREATE, f'{{"id":{day}}}', key=str(day), commit=day * 86_400)])
    (tmp_path / "changelog.toml").write_text(CONFIG, "utf-8")
    archive_log(ArchiveRun(spark=spark, store=local(log), at=BEGIN + timedelta(days=7)), log)
    arguments = ("--archive", str(log), "--to", str(out), "--entity")
    first = blame(tmp_path, *arguments, "order", "--as-of", str(site.end))
    orders, guests = ([record for record in site.records if record.entity == entity] for entity in ("order", "guest"))
    assert attributes(out) == attributes_of(orders, site.end)
    (out / "tables" / "killed").mkdir()
    (out / "tables" / "killed" / "part").write_text("half")
    second = blame(tmp_path, *arguments, "guest")
    assert attributes(out) == attributes_of(guests, site.end)
    run = newest(local(out))
    assert run is not None
    assert (run.before, run.path) == (first["tables"][-len(run.before) :], second["tables"][-len(run.path) :])
    assert {f"tables/{path.name}" for path in (out / "tables").iterdir()} == {run.before, run.path}
    assert (run.entities, run.changes) == (("guest",), {kind: second[f"changes_{kind}"] for kind in run.changes})


def test_topics_are_read_like_a_file_log(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topics.grow(20)
    config = topics.arguments[1]
    assert main(JOB, ["--config", config, "--to", str(tmp_path / "out")]) == 0
    expected = attributes_of(topics.records, position_of(topics.records[-1]))
    assert attributes(tmp_path / "out") == expected
    assert expected


# The queries of the documentation

QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def answers(site: Site, query: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.chdir(site.folder)
    return rows_of(query)


def attribute_list(site: Site) -> list[dict[str, Any]]:
    expected = attributes_of(site.records, site.end)
    return [
        {"entity": entity, "key": key, "path": path, **row} for (entity, key, path), row in sorted(expected.items())
    ]


def test_the_query_for_what_a_service_wrote_is_correct(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = answers(site, QUERIES[0], monkeypatch)
    rows = [row for row in attribute_list(site) if (row["service_name"], row["api_version"]) == ("nightly-batch", "2")]
    assert answer == [{name: row[name] for name in answer[0]} for row in rows]


def test_the_query_for_rows_of_several_services_is_correct(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = answers(site, QUERIES[1], monkeypatch)
    services: dict[tuple[str, str], dict[str | None, list[str]]] = {}
    for row in attribute_list(site):
        of_row = services.setdefault((row["entity"], row["key"]), {})
        of_row.setdefault(row["service_name"], []).append(row["path"])
    composed = {address: paths for address, paths in services.items() if len({*paths} - {None}) > 1}
    assert 0 < len(composed) < len(services)
    expected = {(*address, service): paths for address, of in composed.items() for service, paths in of.items()}
    assert {(row["entity"], row["key"], row["service_name"]): row["paths"] for row in answer} == expected
    assert all(row["attributes"] == len(row["paths"]) for row in answer)


def test_the_query_for_what_a_request_set_is_correct(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    last = site.records[-1].envelope.provenance.stamp.identifier
    answer = answers(site, QUERIES[2].replace("req-42", last), monkeypatch)
    rows = [row for row in attribute_list(site) if row["identifier"] == last]
    assert answer == [{name: row[name] for name in answer[0]} for row in rows]


def test_the_queries_for_shares_are_correct(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = coverage_of(site.records, site.end)
    for row in answers(site, QUERIES[3], monkeypatch):
        of_day = {group: count for group, count in changes.items() if group[:2] == (row["entity"], row["day"])}
        shares = [
            sum(count for (*_, kind), count in of_day.items() if kind == name) for name in ("application", "session")
        ]
        assert row["changes"] == sum(of_day.values())
        assert [row["by_application"], row["by_session_only"]] == pytest.approx(
            [share / sum(of_day.values()) for share in shares]
        )
    answer = answers(site, QUERIES[4], monkeypatch)
    rows = attribute_list(site)
    for row in answer:
        of_group = [
            other for other in rows if all(other[name] == row[name] for name in ("entity", "service_name", "stamp"))
        ]
        assert row["attributes"] == len(of_group)
        assert row["share"] == pytest.approx(len(of_group) / sum(other["entity"] == row["entity"] for other in rows))
    assert sum(row["attributes"] for row in answer) == len(rows)
    assert len(QUERIES) == 5
