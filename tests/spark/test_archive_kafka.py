"""Tests, with a real broker, that the job `archive` stores each committed message of a changelog once. It must stop if
Kafka has lost messages.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from changelog.connectors.sinks.kafka.admin.topics import TopicSettings
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Record
from changelog.envelope.position import Position
from changelog.spark_jobs.archive import JOB
from changelog.spark_jobs.reading import kafka_offsets
from changelog.spark_jobs.reading.kafka_offsets import Spans
from changelog.spark_jobs.reading.read import end_of, refuse_beyond
from changelog.spark_jobs.reading.where import Archive
from changelog.spark_jobs.runner.job import main
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.manifest import commit, newest, numbers
from tests.campaigns import archive as campaign
from tests.campaigns._pieces import run
from tests.integration.kafka.test_log import change, entity, raw, settings, store, writing
from tests.servers import fetched, kafka_lib
from tests.unit.records import record

__all__ = ["settings"]  # pytest uses this imported fixture, which gives each test its own topics

CONFIG = """
name = "app"
source = {{ kind = "postgres", dsn = "postgresql://nowhere" }}
sink = {{ kind = "kafka", bootstrap_servers = "{servers}", prefix = "{prefix}" }}
tables = {{ include = ["*"] }}
"""


KEEP_ALL = {"cleanup.policy": "delete", "retention.ms": "-1"}
COMPACT_SOON = {"min.compaction.lag.ms": "1"}


def with_topic_settings(settings: KafkaSettings, topic_settings: Mapping[str, str]) -> KafkaSettings:
    """Returns the settings of a sink that creates the topic of orders with `topic_settings`."""
    return replace(settings, entities={"order": TopicSettings(settings=topic_settings)})


class Site:
    """The path of an archive, and the job that writes it."""

    def __init__(self, settings: KafkaSettings, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.archive = folder / "archive of app"
        self._config = folder / "changelog.toml"
        text = CONFIG.format(servers=settings.client.bootstrap_servers, prefix=settings.prefix)
        self._config.write_text(text, "utf-8")
        self._capsys = capsys

    def run(self, *options: str, code: int = 0) -> dict[str, Any]:
        """Runs the job and returns its summary."""
        arguments = ["--config", str(self._config), "--archive", str(self.archive), *options]
        exit_code = main(JOB, arguments)
        output = self._capsys.readouterr()
        assert exit_code == code, output.err
        summary: dict[str, Any] = json.loads(output.out.rstrip().rpartition("\n")[2])
        return summary

    def rows(self) -> pa.Table:
        return campaign.archived(self.archive).sort_by("position")

    def offsets(self) -> dict[str, dict[str, int]]:
        manifest = newest(local(self.archive))
        return {} if manifest is None else {name: dict(parts) for name, parts in manifest.offsets.items()}


@pytest.fixture
def site(spark: SparkSession, settings: KafkaSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    fetched("jars")
    return Site(settings, tmp_path, capsys)


def table(records: Sequence[Record]) -> pa.Table:
    return pa.Table.from_batches([batch.from_records(records)])


def test_committed_messages_are_archived_once(site: Site, settings: KafkaSettings) -> None:
    """Several runs archive a topic with unfinished transactions, deletes with tombstones, and versions of columns."""
    delete = replace(record(Op.DELETE, original='{"id":"7"}', commit=20, key="7"), place=change(1, "7").place)
    records = [*(change(commit, str(commit % 9)) for commit in range(1, 20)), delete]
    assert site.run("--dry-run", code=3)["error"].startswith(f"there is no topic of the changelog {settings.prefix}")
    with writing(with_topic_settings(settings, KEEP_ALL), entity()) as sink:
        for number, one_record in enumerate(records[:12], 1):
            store(sink, number, one_record)
        raw(settings, "order", [change(90, "5")], commit=False)
        planned = site.run("--dry-run")
        assert planned["offsets"][f"{settings.prefix}.order"] > 12, "the ends of transactions have offsets, too"
        assert not site.archive.exists()

        assert site.run("--offsets", "30")["rows"] == 12
        assert site.rows().equals(table(records[:12]))
        assert site.run()["rows"] == 0
        before = site.offsets()
        for number, one_record in enumerate(records[12:], 13):
            store(sink, number, one_record)
        assert site.run("--compact", "all")["rows"] == 8
    assert site.rows().equals(table(records))
    after = site.offsets()[f"{settings.prefix}.order"]
    assert sum(after.values()) > sum(before[f"{settings.prefix}.order"].values())
    assert site.run("--dry-run")["offsets"][f"{settings.prefix}.order"] == 0


def test_the_job_stops_if_kafka_lost_history(site: Site, settings: KafkaSettings) -> None:
    with writing(with_topic_settings(settings, KEEP_ALL), entity(partitions=1)) as sink:
        for number in range(1, 4):
            store(sink, number, change(number, "1", at=0))
        site.run()
        for number in range(4, 8):
            store(sink, number, change(number, "1", at=0))
        cut = TopicPartition(f"{settings.prefix}.order", 0, site.offsets()[f"{settings.prefix}.order"]["0"] + 3)
        admin = settings.client.admin()  # a variable, because the client must exist until the answer arrives
        admin.delete_records([cut])[cut].result()
        error = site.run(code=3)["error"]
        assert error.startswith(f"history lost: topic {settings.prefix}.order, partition 0, is read up to offset ")
        assert site.rows().num_rows == 3, "nothing is written"
        assert site.run("--accept-lost")["rows"] == 2
        assert [row["position"][9:25] for row in site.rows().to_pylist()] == [f"{n:016X}" for n in (1, 2, 3, 6, 7)]
        store(sink, 8, change(8, "1", at=0))
        assert site.run()["rows"] == 1


def test_the_job_stops_if_messages_may_have_been_compacted_away(site: Site, settings: KafkaSettings) -> None:
    with writing(with_topic_settings(settings, COMPACT_SOON), entity(partitions=1)) as sink:
        store(sink, 1, yesterday(change(1, "1", at=0)))
        assert site.run()["rows"] == 1, "a new archive begins with the messages that exist"
        store(sink, 2, yesterday(change(2, "1", at=0)))
        assert "the next messages are older than min.compaction.lag.ms" in site.run(code=3)["error"]
        assert site.run("--skip", "order")["rows"] == 0
        assert site.run("--accept-lost")["rows"] == 1


def yesterday(record: Record) -> Record:
    """Returns the record as if it were committed a day ago."""
    provenance = record.envelope.provenance
    source = replace(provenance.source, committed_at=datetime.now(UTC) - timedelta(days=1))
    return replace(record, envelope=replace(record.envelope, provenance=replace(provenance, source=source)))


def test_an_archive_ends_before_the_first_row_that_a_partition_lacks(
    site: Site, settings: KafkaSettings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is killed after its first commit to the archive. Then the archive has partition 0 up to the changelog's
    commit 22, but partition 1 only up to commit 2.
    """
    archive = Archive(path=str(site.archive))
    first_commit_only = partial(_first, kafka_offsets.slices)
    with writing(with_topic_settings(settings, KEEP_ALL), entity(partitions=2)) as sink:
        for commit in range(1, 21):
            store(sink, commit, change(commit, "1", at=1))
        for commit in (21, 22):
            store(sink, commit, change(commit, "0", at=0))
        with monkeypatch.context() as killed:
            killed.setattr(kafka_offsets, "slices", first_commit_only)
            assert 0 < site.run("--offsets", "24")["rows"] < 22
        assert site.rows()["position"].to_pylist()[-1] == str(Position(1, 22, 2))
        with pytest.raises(ChangelogError, match="is not complete: no run has read all"):
            end_of(spark, archive, ["order"])
        assert site.run("--skip", "schemas")["rows"] > 0
        assert end_of(spark, archive, ["order"]) == Position(1, 22, 2)
        for commit in range(23, 43):
            store(sink, commit, change(commit, "1", at=1))
        store(sink, 43, change(43, "0", at=0))
        with monkeypatch.context() as killed:
            killed.setattr(kafka_offsets, "slices", first_commit_only)
            site.run("--offsets", "24")
        assert site.rows()["position"].to_pylist()[-1] == str(Position(1, 43, 2))
        assert end_of(spark, archive, ["order"]) == Position(1, 22, 2)
        with pytest.raises(ChangelogError, match="is beyond the end"):
            refuse_beyond(spark, archive, Position(1, 43, 2), ["order"])
        site.run()
        assert end_of(spark, archive, ["order"]) == Position(1, 43, 2)


def test_an_archive_of_an_older_version_is_complete_after_the_next_run(
    site: Site, settings: KafkaSettings, spark: SparkSession
) -> None:
    archive = Archive(path=str(site.archive))
    with writing(with_topic_settings(settings, KEEP_ALL), entity()) as sink:
        store(sink, 1, change(1, "1"))
        site.run()
        store_of_archive = local(site.archive)
        commit(store_of_archive, lambda manifest: replace(manifest, complete={}), at=datetime.now(UTC))
        with pytest.raises(ChangelogError, match="is not complete"):
            end_of(spark, archive)
        assert site.run()["rows"] == 0
        assert end_of(spark, archive) == Position(1, 1, 2)
        runs = len(numbers(store_of_archive))
        site.run()
        assert len(numbers(store_of_archive)) == runs, "a run without new messages commits nothing"


def _first(slices: Callable[[Spans, int], Iterable[Spans]], spans: Spans, rows_max: int) -> Iterator[Spans]:
    """Yields only the first slice, as in a run that is killed after its first commit."""
    return islice(iter(slices(spans, rows_max)), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-days", "0"], "--keep-days: '0' is not a whole number from 1 to "),
        (["--once", "--continuous"], "not allowed with"),
    ],
)
def test_bad_options_are_refused(
    site: Site, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        site.run(*options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.campaign
def test_campaign_archive(seed: int) -> None:
    fetched("jars")
    kafka_lib()
    figures = run(campaign.campaign(), 1, seed)
    assert sum(figures["runs"].values()) == 1
    assert figures["reads"]
