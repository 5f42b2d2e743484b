"""Tests views that throttle a service. Such a view applies at most a fixed number of the service's changes per second,
and the rest waits. The changes of all other services are applied at once.

Each row of a view names a position. Even while changes wait, the row must have the values that it had in the database
at this position. In the end, it must have its last values.
"""

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.connectors.config import ThrottleConfig, ViewConfig
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.servers.kafka import Broker
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Record, Stamp
from changelog.envelope.position import Position
from changelog.spark_jobs.maintain_view import JOB
from changelog.spark_jobs.maintaining import in_postgres
from changelog.spark_jobs.maintaining.apply_changes import MaintainedView
from changelog.spark_jobs.maintaining.following import file_ranges, follow_files, follow_topics, topic_ranges
from changelog.spark_jobs.maintaining.following.file_ranges import FileRanges
from changelog.spark_jobs.maintaining.following.rate import BURST_S, ChangeRate
from changelog.spark_jobs.maintaining.following.throttle import Throttle, apply_earlier
from changelog.spark_jobs.maintaining.following.topic_ranges import TopicRanges
from changelog.spark_jobs.maintaining.parts import ViewPart
from changelog.spark_jobs.maintaining.progress import FORMAT, FORMAT_WAITING, ViewProgress, WaitingChanges, parse
from changelog.spark_jobs.maintaining.target import FAIL_POINTS, TargetSettings
from changelog.spark_jobs.reading.where import Files, Kafka
from tests.patience import until
from tests.spark.changes import Workload
from tests.spark.documented import ENTITIES, JOINED, Guests, announcements, documents, expected_documents, guest_parts
from tests.spark.maintained import SUMMED, TOTALS, CrashError, CrashOnce, check_totals, maintained_parts, query, table
from tests.spark.ran import Run
from tests.spark.test_derive_deltas_kafka import Topics, cut, settings_of
from tests.spark.test_maintain_documents import CLAIMS
from tests.spark.test_rebuild_view import announced, flat, grow, position_of
from tests.spark.test_views import replay, stamped, transactions
from tests.unit.records import record

BATCH = "nightly-batch"
END = Position(9, 0, 0)
ORDERS = [ViewPart(entity="order", columns=SUMMED)]


@dataclass(slots=True)
class Clock:
    """A clock that only the test moves."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def opened(dsn: str, to: str, parts: Sequence[ViewPart], reach: Reach = nowhere) -> Iterator[MaintainedView]:
    """Opens a view, which continues where its last run stopped. Creates the view if there is none."""
    until(lambda: query(dsn, CLAIMS) == [(0,)], "the server keeps the claim of a session that has ended")
    totals = TOTALS if to == "orders" else None
    settings = TargetSettings(to=to, dsn=dsn, totals=totals, arrays=parts[1:], reach=reach)
    with in_postgres.opened(settings) as target:
        keep_deleted = timedelta(0)  # each marker of a delete is removed as soon as nothing waits
        yield maintained_parts(target, parts, keep_deleted=keep_deleted, reach=reach)


def _waiting(view: MaintainedView) -> int:
    waiting = view.progress.waiting
    return 0 if waiting is None else waiting.changes


def by(service: str, change: Record) -> Record:
    return stamped(change, Stamp(api_version="1", service_name=service, identifier=""))


# The rate


def test_a_rate_allows_no_more_than_its_changes_a_second() -> None:
    clock = Clock()
    rate = ChangeRate(10, clock)
    assert rate.allowed() == 10
    rate.spend(10)
    assert rate.allowed() == 0
    clock.now_s += 0.55
    assert rate.allowed() == 5
    rate.spend(3)
    assert rate.allowed() == 2
    clock.now_s += 1000
    assert rate.allowed() == 10 * BURST_S
    rate.rest()
    assert rate.allowed() == 10


def test_an_older_program_refuses_a_view_only_while_changes_wait() -> None:
    waiting = WaitingChanges(service=BATCH, changes=3, after={"position": "P"})
    for progress, format_ in (
        (ViewProgress(definition={}), FORMAT),
        (ViewProgress(definition={}, waiting=waiting), FORMAT_WAITING),
    ):
        stored = parse(progress.to_json(), "orders")
        assert stored == replace(progress, format=format_)


# What waits, and what does not


def _change(op: Op, key: int, commit: int, *, service: str = "shop", lacks: str | None = None, **values: str) -> Record:
    """Returns a change of a row by a service. `lacks` is a column whose value the database's log lacks."""
    fields = ",".join([f'"id":{key}', *(f'"{name}":"{value}"' for name, value in values.items())])
    state = None if op is Op.DELETE else f"{{{fields}}}"
    unavailable = () if lacks is None else (lacks,)
    return by(service, record(op, state, key=str(key), commit=commit, unavailable=unavailable))


def test_a_row_with_a_waiting_and_a_later_change_ends_as_if_they_were_applied_in_order(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    """Each of the keys 1 to 6 is a case. Key 1 gets the note of its waiting change at once, because the next change of
    the row lacks the note.
    """
    created = [_change(Op.CREATE, key, 1, note="new", status="1") for key in range(1, 6)]
    changes = [
        _change(Op.UPDATE, 1, 2, service=BATCH, note="batch", status="2"),
        _change(Op.UPDATE, 1, 3, lacks="note", status="3"),
        _change(Op.UPDATE, 2, 2, service=BATCH, note="batch", status="2"),
        _change(Op.UPDATE, 2, 3, note="shop", status="3"),
        _change(Op.UPDATE, 3, 2, service=BATCH, note="batch", status="2"),
        _change(Op.UPDATE, 4, 2, service=BATCH, note="batch", status="2"),
        _change(Op.UPDATE, 4, 3, note="shop", status="3"),
        _change(Op.UPDATE, 4, 4, service=BATCH, lacks="note", status="4"),
        _change(Op.DELETE, 5, 2, service=BATCH),
        _change(Op.CREATE, 6, 2, service=BATCH, note="batch", status="2"),
        _change(Op.DELETE, 6, 3),
    ]
    grow(tmp_path, [created, sorted(changes, key=lambda change: change.envelope.provenance.source.position)])
    clock, where = Clock(), Files(path=tmp_path / "log")
    clock.now_s = -1.0
    rate = ChangeRate(1, clock)
    rate.spend(1)  # a new rate allows one change at once, so now it allows none
    with opened(database, "orders", ORDERS) as view:
        ranges = FileRanges(where=where, entities=["order"])
        with closing(Throttle(spark, view, ranges, BATCH, rate)) as throttle:
            follow_files.apply_new(spark, where, view, throttle)
            throttle.step()
            assert _notes(database) == {1: "batch3", 2: "shop3", 3: "new1", 4: "shop3", 5: "new1"}
            assert view.progress.waiting is not None
            assert view.progress.waiting.changes == 7
            clock.now_s += 10
            throttle.step()
            assert _notes(database) == {1: "batch3", 2: "shop3", 3: "batch2", 4: "shop4"}
            assert _waiting(view) == 0
    check_totals(database, TOTALS)


def _notes(dsn: str) -> dict[int, str]:
    return dict(query(dsn, "SELECT id, note || status FROM orders"))


def test_rows_show_states_that_they_really_had_and_end_at_their_last_state(
    spark: SparkSession, database: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run may crash before a batch is applied, and the second run after a batch is applied. The waiting
    changes are read in windows. These are so small here that there are several. Repeated changes are sorted by
    position, too, because the log ends at the position of the last change.
    """
    monkeypatch.setattr(file_ranges, "WINDOW_CHANGES", 8)
    chance, clock = random.Random(seed), Clock()
    workload = [sorted(records, key=position_of) for records in transactions(seed, 48)]
    crashes = iter([CrashOnce(FAIL_POINTS[0], 2), CrashOnce(FAIL_POINTS[1], 3)])
    where = Files(path=tmp_path / "log")
    remaining, waited = [[announced(workload[0][0])], *workload], False
    while remaining or _waits(database):
        share = chance.choice([10, 20])
        if remaining:
            grow(tmp_path, remaining[:share])
            del remaining[:share]
        with opened(database, "orders", ORDERS, next(crashes, nowhere)) as view:
            ranges = FileRanges(where=where, entities=["order"])
            try:
                with closing(Throttle(spark, view, ranges, BATCH, ChangeRate(1, clock))) as throttle:
                    follow_files.apply_new(spark, where, view, throttle)
                    for _ in range(2):
                        waited = waited or _waiting(view) > 0
                        clock.now_s += chance.choice([1, 5, 20])
                        throttle.step()
                        _check_count(view, flat(workload[: len(workload) - len(remaining)]))
                        _check_history(database, flat(workload))
                        check_totals(database, TOTALS)
            except CrashError:
                continue
    assert waited
    assert table(database) == replay(flat(workload), END)


def _waits(dsn: str) -> bool:
    return query(dsn, "SELECT record::jsonb #> '{maintained,waiting}' <> 'null' FROM orders__progress") == [(True,)]


def _check_count(view: MaintainedView, records: Sequence[Record]) -> None:
    """Checks that the view counts as waiting all changes of the service that come after those that were applied."""
    waiting = view.progress.waiting
    if waiting is not None:
        applied = max(waiting.position, waiting.after.get("position", ""))
        sources = [change.envelope.provenance for change in records if change.entity == "order"]
        late = [origin for origin in sources if str(origin.source.position) > applied]
        assert waiting.changes == sum(origin.stamp.service_name == BATCH for origin in late)


def _check_history(dsn: str, records: Sequence[Record]) -> None:
    """Checks that each row is the state that its key had at the row's position."""
    positions = dict(query(dsn, "SELECT _key, _position FROM orders"))
    for key, state in table(dsn).items():
        assert state == replay(records, Position.parse(positions[key]))[key]


@dataclass(slots=True)
class StampedGuests(Guests):
    """Generates the changes that `Guests` generates. The throttled service makes most of the transactions."""

    def transactions(self, count: int) -> Iterator[list[Record]]:
        for records in Guests.transactions(self, count):
            service = self.random.choice(["shop", BATCH, BATCH])
            yield [by(service, change) for change in records]


def test_documents_of_throttled_entities_are_those_of_their_rows(
    spark: SparkSession, database: str, tmp_path: Path, seed: int
) -> None:
    workload, parts, clock = StampedGuests(random.Random(seed)), guest_parts(), Clock()
    where = Files(path=tmp_path / "log")
    first = [announcements()]
    with opened(database, "guests", parts) as view:
        ranges = FileRanges(where=where, entities=ENTITIES)
        with closing(Throttle(spark, view, ranges, BATCH, ChangeRate(1, clock))) as throttle:
            for _ in range(2):
                grow(tmp_path, [*first, *workload.transactions(15)], ENTITIES)
                follow_files.apply_new(spark, where, view, throttle)
                first = []
                clock.now_s += 8
                throttle.step()
                assert documents(database) == query(database, JOINED)
            assert _waiting(view) > 0
        stopping = threading.Event()
        stopping.set()
        apply_earlier(spark, view, ranges, None, stopping)
        assert _waiting(view) > 0, "a stopping run applies nothing more"
        stopping.clear()
        apply_earlier(spark, view, ranges, None, stopping)
        assert _waiting(view) == 0, "a view that is no longer throttled catches up at once"
    assert documents(database) == expected_documents(workload.rows)


# Topics


@dataclass(slots=True)
class StampedWorkload(Workload):
    """Generates the changes that `Workload` generates. The throttled service makes about half of the transactions."""

    def transactions(self, count: int) -> Iterator[list[Record]]:
        for records in Workload.transactions(self, count):
            service = self.random.choice(["shop", BATCH])
            yield [by(service, change) for change in records]


def _ticking(per_second: int) -> ChangeRate:
    """Returns a rate whose clock advances by one second whenever the rate reads it."""
    clock = itertools.count()
    return ChangeRate(per_second, lambda: float(next(clock)))


def test_throttled_topics_are_followed_although_a_run_crashes(
    spark: SparkSession,
    broker: Broker,
    database: str,
    tmp_path: Path,
    own_name: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_ranges, "WINDOW_CHANGES", 60)
    workload = StampedWorkload(random.Random(seed))
    topics = Topics(folder=tmp_path, settings=settings_of(broker, own_name), workload=workload, records=[])
    topics.grow(30, first=[announced(record(Op.CREATE, "{}", commit=0))])
    where = Kafka(bootstrap_servers=topics.settings.client.bootstrap_servers, prefix=topics.settings.prefix)
    arguments: dict[str, Any] = {"offsets_max": 1_000_000, "every_s": None, "stopping": threading.Event()}
    for reach in (CrashOnce(FAIL_POINTS[0], 2), nowhere):
        with opened(database, "orders", ORDERS, reach) as view:
            ranges = TopicRanges(where=where, entities=["order"])
            with closing(Throttle(spark, view, ranges, BATCH, _ticking(20))) as throttle:
                if reach is nowhere:
                    topics.grow(5)
                    follow_topics.follow(spark, where, view, throttle=throttle, **arguments)
                    assert _waiting(view) == 0
                    continue
                with pytest.raises(CrashError):
                    follow_topics.follow(spark, where, view, throttle=throttle, **arguments)
        assert _waits(database)
    assert table(database) == workload.rows["order"]
    check_totals(database, TOTALS)
    cut(topics)
    topic = f"{topics.settings.prefix}.order"
    with pytest.raises(
        ChangelogError, match=f"history lost: topic {topic}, partition 0, is read up to offset 0, and Kafka"
    ):
        ranges.read(spark, {topic: {"0": 0}}, view.progress.checkpoint)


# The job


CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
tables = { include = ["*"] }
sink = { path = "log" }
[views.orders]
entity = "order"
throttle = { service = "nightly-batch", rate = 2 }
"""

ARGUMENTS = ("--available-now", "--view", "orders", "--output", "postgres", "--dsn", "env:VIEWS_DSN", "--to", "orders")


def test_a_run_ends_once_the_waiting_changes_are_applied(
    spark: SparkSession, database: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEWS_DSN", database)
    config = tmp_path / "changelog.toml"
    config.write_text(CONFIG, "utf-8")
    changes = [_change(Op.CREATE, key, key, service=BATCH) for key in range(1, 5)]
    grow(tmp_path, [[announced(changes[0])], changes])
    ran = run(JOB, config, *ARGUMENTS)
    assert (ran.summary["rows"], ran.summary["waiting"]) == (4, 0)
    assert ran.summary["batches"] >= 2, "in the first batch, all changes must wait"
    assert ran.lines == ["maintain_view: 4 changes of nightly-batch wait"]
    assert len(table(database)) == 4
    for ignored in (("--drop-service", BATCH), ("--keep-service", "shop")):
        (line,) = run(JOB, config, *ARGUMENTS, *ignored, code=2).lines
        assert "throttles the service nightly-batch, whose changes do not count; leave out `throttle`" in line


def test_the_configuration_of_a_throttle() -> None:
    view = ViewConfig.model_validate({"entity": "order", "throttle": {"service": BATCH, "rate": 5}})
    assert view.throttle == ThrottleConfig(service=BATCH, rate=5)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        ThrottleConfig(service=BATCH, rate=0)
