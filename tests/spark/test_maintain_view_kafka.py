"""Tests that the job `maintain_view` keeps a table equal to the changes in topics, although runs are killed."""

import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.connectors.servers.kafka import Broker
from changelog.envelope.model import Op
from changelog.spark_jobs.maintain_view import JOB
from changelog.spark_jobs.maintaining.progress import ViewProgress, with_topics
from changelog.spark_jobs.maintaining.target import FAIL_POINTS
from changelog.spark_jobs.runner.job import main
from tests.integration.kafka.topics import delete
from tests.patience import PATIENCE_S
from tests.spark.changes import Workload
from tests.spark.derived import config, summary
from tests.spark.maintained import query, table
from tests.spark.test_derive_deltas_kafka import Topics, cut, settings_of, submitted
from tests.spark.test_rebuild_view import announced
from tests.unit.records import record


@dataclass(slots=True)
class ViewedTopics(Topics):
    """A growing changelog on a broker, and the job that keeps a view of it in PostgreSQL."""

    dsn: str = ""
    view: str = 'orders = { entity = "order" }'

    @property
    def arguments(self) -> list[str]:
        servers, prefix = self.settings.client.bootstrap_servers, self.settings.prefix
        sink = f'{{ kind = "kafka", bootstrap_servers = "{servers}", prefix = "{prefix}" }}'
        file = config(self.folder, f"{sink}\nviews = {{ {self.view} }}")
        return [
            "--config",
            str(file),
            "--view",
            "orders",
            "--output",
            "postgres",
            "--dsn",
            "env:VIEWS_DSN",
            "--to",
            "orders",
        ]

    def run(self, *arguments: str) -> int:
        return main(JOB, [*self.arguments, *arguments])

    def is_equal(self) -> bool:
        return table(self.dsn) == self.workload.rows["order"]


@pytest.fixture
def topics(
    broker: Broker, tmp_path: Path, own_name: str, seed: int, database: str, monkeypatch: pytest.MonkeyPatch
) -> ViewedTopics:
    monkeypatch.setenv("VIEWS_DSN", database)
    topics = ViewedTopics(
        folder=tmp_path,
        settings=settings_of(broker, own_name),
        workload=Workload(random.Random(seed)),
        records=[],
        dsn=database,
    )
    topics.grow(15, first=[announced(record(Op.CREATE, "{}", commit=0))])
    return topics


def test_a_table_equals_the_topic_although_a_run_is_killed_and_the_entity_repartitioned(
    spark: SparkSession, topics: ViewedTopics, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run is killed in its second batch. Then the entity goes on in a new topic. The second run reads both
    topics, and afterwards the old topic is deleted.
    """
    in_batches = ("--available-now", "--offsets", str(len(topics.records) // 2))
    killed = submitted("maintain_view", [*topics.arguments, *in_batches], crash_at=f"{FAIL_POINTS[0]}:2")
    assert killed.returncode == -9, killed.stderr.decode()
    assert query(topics.dsn, "SELECT to_regclass('orders__batch') IS NOT NULL") == [(True,)]
    assert query(topics.dsn, "SELECT record::json -> 'maintained' ->> 'checkpoint' <> '{}' FROM orders__progress") == [
        (True,)
    ], "the first batch must be applied, even if a truncate at its end left no row"
    assert not topics.is_equal()
    topics.repartition("order", 12)
    topics.grow(15)
    assert topics.run(*in_batches) == 0
    assert topics.is_equal()
    assert summary(capsys)["batches"] > 1
    delete(topics.settings.client, f"{topics.settings.prefix}.order")
    topics.grow(5)
    assert topics.run("--available-now") == 0
    assert topics.is_equal()
    assert topics.run("--available-now") == 0
    assert summary(capsys)["rows"] == 0


@pytest.mark.parametrize(
    ("before", "now", "continues"),
    [
        ({"b.order": "1"}, {"b.order": "1", "b.order.G2": "2"}, True),
        ({"b.order": "1", "b.order.G2": "2"}, {"b.order.G2": "2"}, True),
        ({"b.order": "1"}, {"b.order.G2": "2"}, False),  # no run has read the old topic to its end
        ({"b.order": "1"}, {"b.order": "3"}, False),
        ({"b.order": "1"}, {"b.guest": "1"}, False),
        ({"b.order": "1", "b.guest": "2"}, {"b.order": "1", "b.guest": "2", "b.guest.G2": "3"}, True),
        ({"b.order": "1", "b.guest": "2"}, {"b.order": "1", "b.guest.G2": "3"}, False),
        ({"b.order": "1"}, {"b.order": "1", "b.guest": "2"}, False),
    ],
)
def test_a_view_continues_if_it_has_followed_one_of_the_topics(
    before: dict[str, str], now: dict[str, str], *, continues: bool
) -> None:
    progress = with_topics(ViewProgress(definition={"topics": before}), {"topics": now})
    assert progress.definition == {"topics": now if continues else before}


def test_the_job_runs_until_sigterm_and_is_refused_after_history_was_lost(
    spark: SparkSession, topics: ViewedTopics, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        terminating = pool.submit(_terminate_when, finished, topics)
        try:
            assert topics.run("--every", "0") == 0
        finally:
            finished.set()
        terminating.result()
    assert topics.is_equal()
    assert summary(capsys)["verdict"] == "done"
    topics.grow(10)
    _refuse_other_topics(topics, capsys)
    cut(topics)
    assert topics.run("--available-now") == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("maintain_view: history lost: ")
    assert line.endswith("--rebuild: it builds the view again from the beginning of the changelog")


def _refuse_other_topics(topics: ViewedTopics, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that the view is not continued with topics that have other ids, such as those of another prefix."""
    prefix, workload = f"{topics.settings.prefix}-2", Workload(random.Random(1))
    others = replace(topics, settings=replace(topics.settings, prefix=prefix), workload=workload, records=[])
    others.grow(1, first=[announced(record(Op.CREATE, "{}", commit=0))])
    assert others.run("--available-now") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "orders is a view whose definition differs in: topics; use another --to, or run the job once with" in line


def _terminate_when(finished: threading.Event, topics: ViewedTopics) -> None:
    """Sends SIGTERM to this process once the table has been created and has followed the workload twice."""
    _wait_for(finished, lambda: _exists(topics.dsn) and topics.is_equal())
    topics.grow(5)
    _wait_for(finished, topics.is_equal)
    os.kill(os.getpid(), signal.SIGTERM)


def _exists(dsn: str) -> bool:
    return query(dsn, "SELECT to_regclass('orders') IS NOT NULL") == [(True,)]


def _wait_for(finished: threading.Event, condition: Callable[[], Any]) -> None:
    for _ in range(int(PATIENCE_S / 0.2)):
        if finished.wait(0.2) or condition():
            return
