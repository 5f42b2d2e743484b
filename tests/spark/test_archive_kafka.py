"""The archive job over a real broker, in the session of the tests."""

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

__all__ = ["settings"]  # the fixture of a prefix of its own

CONFIG = """
name = "app"
source = {{ kind = "postgres", dsn = "postgresql://nowhere" }}
sink = {{ kind = "kafka", bootstrap_servers = "{servers}", prefix = "{prefix}" }}
tables = {{ include = ["*"] }}
"""


KEPT = {"cleanup.policy": "delete", "retention.ms": "-1"}
HASTY = {"min.compaction.lag.ms": "1"}


def keeping(settings: KafkaSettings, topic_settings: Mapping[str, str]) -> KafkaSettings:
    """The topic of orders is kept so."""
    return replace(settings, entities={"order": TopicSettings(settings=topic_settings)})


class Site:
    """An archive's place, and the job over it."""

    def __init__(self, settings: KafkaSettings, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.archive = folder / "archive of app"
        self._config = folder / "changelog.toml"
        text = CONFIG.format(servers=settings.client.bootstrap_servers, prefix=settings.prefix)
        self._config.write_text(text, "utf-8")
        self._capsys = capsys

    def run(self, *options: str, code: int = 0) -> dict[str, Any]:
        """The job's summary."""
        arguments = ["--config", str(self._config), "--archive", str(self.archive), *options]
        ended = main(JOB, arguments)
        said = self._capsys.readouterr()
        assert ended == code, said.err
        found: dict[str, Any] = json.loads(said.out.rstrip().rpartition("\n")[2])
        return found

    def rows(self) -> pa.Table:
        return campaign.archived(self.archive).sort_by("position")

    def offsets(self) -> dict[str, dict[str, int]]:
        found = newest(local(self.archive))
        return {} if found is None else {name: dict(parts) for name, parts in found.offsets.items()}


@pytest.fixture
def site(spark: SparkSession, settings: KafkaSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    fetched("jars")
    return Site(settings, tmp_path, capsys)


def table(records: Sequence[Record]) -> pa.Table:
    return pa.Table.from_batches([batch.from_records(records)])


def test_what_is_committed_is_archived_once(site: Site, settings: KafkaSettings) -> None:
    """Over several runs; aborted and open transactions, deletes with their tombstones, and versions of columns."""
    gone = replace(record(Op.DELETE, original='{"id":"7"}', commit=20, key="7"), place=change(1, "7").place)
    stored = [*(change(commit, str(commit % 9)) for commit in range(1, 20)), gone]
    assert site.run("--dry-run", code=3)["error"].startswith(f"there is no topic of the changelog {settings.prefix}")
    with writing(keeping(settings, KEPT), entity()) as made:
        for number, each in enumerate(stored[:12], 1):
            store(made, number, each)
        raw(settings, "order", [change(90, "5")], commit=False)
        planned = site.run("--dry-run")
        assert planned["offsets"][f"{settings.prefix}.order"] > 12, "ends of transactions have offsets, too"
        assert not site.archive.exists()

        assert site.run("--offsets", "30")["rows"] == 12
        assert site.rows().equals(table(stored[:12]))
        assert site.run()["rows"] == 0
        before = site.offsets()
        for number, each in enumerate(stored[12:], 13):
            store(made, number, each)
        assert site.run("--compact", "all")["rows"] == 8
    assert site.rows().equals(table(stored))
    after = site.offsets()[f"{settings.prefix}.order"]
    assert sum(after.values()) > sum(before[f"{settings.prefix}.order"].values())
    assert site.run("--dry-run")["offsets"][f"{settings.prefix}.order"] == 0


def test_history_that_kafka_lost_is_not_passed_over(site: Site, settings: KafkaSettings) -> None:
    with writing(keeping(settings, KEPT), entity(partitions=1)) as made:
        for number in range(1, 4):
            store(made, number, change(number, "1", at=0))
        site.run()
        for number in range(4, 8):
            store(made, number, change(number, "1", at=0))
        place = TopicPartition(f"{settings.prefix}.order", 0, site.offsets()[f"{settings.prefix}.order"]["0"] + 3)
        admin = settings.client.admin()  # it must outlive the answer
        admin.delete_records([place])[place].result()
        said = site.run(code=3)["error"]
        assert said.startswith(f"history lost: {settings.prefix}.order, partition 0, is read up to offset ")
        assert site.rows().num_rows == 3, "nothing is written"
        assert site.run("--accept-lost")["rows"] == 2
        assert [row["position"][9:25] for row in site.rows().to_pylist()] == [f"{n:016X}" for n in (1, 2, 3, 6, 7)]
        store(made, 8, change(8, "1", at=0))
        assert site.run()["rows"] == 1


def test_what_may_be_compacted_away_is_not_passed_over(site: Site, settings: KafkaSettings) -> None:
    with writing(keeping(settings, HASTY), entity(partitions=1)) as made:
        store(made, 1, yesterday(change(1, "1", at=0)))
        assert site.run()["rows"] == 1, "an archive begins with what there is"
        store(made, 2, yesterday(change(2, "1", at=0)))
        assert "the next messages are older than min.compaction.lag.ms" in site.run(code=3)["error"]
        assert site.run("--skip", "order")["rows"] == 0
        assert site.run("--accept-lost")["rows"] == 1


def yesterday(made: Record) -> Record:
    """The same, committed a day ago."""
    provenance = made.envelope.provenance
    source = replace(provenance.source, committed_at=datetime.now(UTC) - timedelta(days=1))
    return replace(made, envelope=replace(made.envelope, provenance=replace(provenance, source=source)))


def test_an_archive_ends_where_no_partition_lacks_a_row(
    site: Site, settings: KafkaSettings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed between two commits leaves partition 0 at commit 22, and partition 1 at commit 2."""
    archive = Archive(path=str(site.archive))
    first_commit_only = partial(_first, kafka_offsets.slices)
    with writing(keeping(settings, KEPT), entity(partitions=2)) as sink:
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
    with writing(keeping(settings, KEPT), entity()) as sink:
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
        assert len(numbers(store_of_archive)) == runs, "a run without news commits nothing"


def _first(slices: Callable[[Spans, int], Iterable[Spans]], spans: Spans, rows_max: int) -> Iterator[Spans]:
    """Only the first slice, as of a run that is killed after its first commit."""
    return islice(iter(slices(spans, rows_max)), 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--keep-days", "0"], "--keep-days: '0' is not a whole number from 1 to "),
        (["--once", "--continuous"], "not allowed with"),
    ],
)
def test_bad_usage(site: Site, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        site.run(*options)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.campaign
def test_campaign_archive(seed: int) -> None:
    fetched("jars")
    kafka_lib()
    figures = run(campaign.campaign(), 1, seed)
    assert sum(figures["runs"].values()) == 1
    assert figures["reads"]
