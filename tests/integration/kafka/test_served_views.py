"""Tests that views over Kafka topics have the rows that result from the messages, also after restarts and crashes. A
view holds the current rows of an entity.
"""

import json
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
import structlog

from changelog.connectors import cli
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.connectors.views.streams.java import NICENESS
from changelog.envelope import key
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op, Place, Record, position_of
from changelog.envelope.position import Position, commit_text
from changelog.envelope.versions import TableColumns, Versions
from changelog.schemas.types import Primitive, Struct
from tests.integration.kafka.served_views import VIEWS, WITHOUT_BATCH, ServedViews, served, streams_section
from tests.integration.kafka.site import Site
from tests.integration.kafka.topics import alter, entity
from tests.patience import until
from tests.servers.registry import Registry
from tests.unit.records import record
from tests.unit.views.running import Api
from tests.unit.views.story import BATCH, ENTITIES, KEYS, Story

NAME = "app"
PARTITIONS = 2
KEYS_KEPT = 3

Rows = dict[str, Any]

ORDER = entity("order", PARTITIONS)
GUEST = replace(entity("guest", PARTITIONS), partition_by=("name",))


def _place_by_key(change: Record) -> Record:
    return replace(change, place=_place(change))


def _place(change: Record) -> Place:
    """Returns the key of a change and the partition that the key chooses. Leaves the place of a truncate as it is."""
    if change.place.key == TRUNCATE_KEY:
        return change.place
    return Place(key=change.place.key, partition=key.partition(change.place.key.encode(), PARTITIONS))


@dataclass
class Changelog:
    """A changelog on a broker. `rows` has the last message of every key that has a row, by view and key."""

    settings: KafkaSettings
    story: Story
    rows: dict[str, Rows] = field(default_factory=lambda: {name: {} for name in (*ENTITIES, WITHOUT_BATCH)})

    @property
    def last(self) -> Position:
        """The position of the last change."""
        return max(map(position_of, self.story.commits[-1]))

    def more(self, count: int) -> None:
        """Stores random changes."""
        self._store(self.story.more(count), _place)

    def add(self, *commits: Sequence[Record]) -> None:
        """Stores transactions at the next positions. Each change goes to the partition that the change names."""
        first = len(self.story.commits) + 1
        numbered = [
            [_at(change, Position(1, commit, 2 * number)) for number, change in enumerate(records)]
            for commit, records in enumerate(commits, first)
        ]
        self.story.commits += numbered
        self._store(numbered, lambda change: change.place)

    def announce(self) -> None:
        """Stores a message that announces the columns and settings of orders. From the settings, readers know that the
        key of an order chooses its partition.
        """
        table = TableColumns(columns=Struct(fields=(("id", Primitive.STRING),)))
        provenance = record(Op.CREATE, "{}").envelope.provenance
        versions = Versions([], accepted={}, filled=lambda *_: ())
        self.add([versions.announce(ORDER, table, provenance).record])

    def _store(self, commits: Sequence[Sequence[Record]], place: Callable[[Record], Place]) -> None:
        shapes = {served.name: served.shape() for served in (ORDER, GUEST)}
        with writing(self.settings) as sink:
            for records in commits:
                placed = [replace(change, place=place(change)) for change in records]
                last = max(map(position_of, records))
                sink.add([batch.from_records(placed)])
                sink.commit(Checkpoint(position=last, through=commit_text(last.commit), epoch=1, settings=shapes))
                for change in placed:
                    self._fold(change)

    def _fold(self, change: Record) -> None:
        """Applies a change to the expected rows of the views in which it counts."""
        self._fold_into(self.rows.get(change.entity, {}), change)
        if change.entity == "order" and change.envelope.provenance.stamp.service_name != BATCH:
            self._fold_into(self.rows[WITHOUT_BATCH], change)

    def _fold_into(self, rows: Rows, change: Record) -> None:
        """Applies a change to the expected rows of one view."""
        source = change.envelope.provenance.source
        if source.op is Op.TRUNCATE:
            rows.clear()
        elif change.envelope.current is None:
            rows.pop(change.place.key, None)
        else:
            current = json.loads(bytes(change.envelope.current))
            rows[change.place.key] = {
                "current": current,
                "unavailable": sorted(source.unavailable),
                "position": str(source.position),
            }


def served_rows(api: Api, target: str, *, limit: int = 1000) -> Rows:
    """Returns the rows of all pages by key, in the order in which they came."""
    rows = api.rows(f"{target}?limit={limit}")
    return {row["key"]: {name: row[name] for name in ("current", "unavailable", "position")} for row in rows}


def assert_equal(api: Api, changelog: Changelog) -> None:
    """Waits until the views have reached the end of the changelog. Then compares the rows of all views with those of
    the changelog.
    """
    for name, expected in changelog.rows.items():
        until(lambda name=name: api.get(f"/{name}?min_position={changelog.last}").status == 200, "rows lag")  # type: ignore[misc]
        rows = served_rows(api, f"/{name}", limit=3)
        assert rows == expected
        assert list(rows) == sorted(expected)
        for text in list(expected)[:3]:
            assert api.get(f"/{name}/{_quoted(text)}").status == 200


def assert_some_are_equal(api: Api, changelog: Changelog) -> None:
    """Checks views that keep only the most recently used keys: each answer is the right row, or says that the row is
    unknown. The key "1" must be the last one that changed.
    """
    for name, expected in changelog.rows.items():
        target = f"/{name}/1?min_position={changelog.last}"
        until(lambda target=target: api.get(target).status == 200, "rows lag")  # type: ignore[misc]
        assert "rows cannot be listed: only the 3 keys" in api.get(f"/{name}?prefix=1").json["error"]
        assert api.get(f"/{name}").status == 400
        answers = {text: api.get(f"/{name}/{_quoted(text)}") for text in KEYS}
        known_answers = {text: answer for text, answer in answers.items() if answer.status != 504}
        assert "1" in known_answers
        assert len(known_answers) <= KEYS_KEPT * PARTITIONS < len(KEYS)
        for text, answer in known_answers.items():
            position = expected[text]["position"] if text in expected else None
            assert (answer.status, answer.json.get("position")) == (404 if position is None else 200, position)


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


@contextmanager
def writing(settings: KafkaSettings) -> Iterator[KafkaSink]:
    with closing(KafkaSink(settings, JSON)) as sink:
        sink.prepare([ORDER, GUEST])
        sink.recover()
        yield sink


def _at(change: Record, position: Position) -> Record:
    provenance = change.envelope.provenance
    source = replace(provenance.source, position=position)
    return replace(change, envelope=replace(change.envelope, provenance=replace(provenance, source=source)))


@pytest.fixture(scope="module")
def changelog(broker: Broker, seed: int) -> Changelog:
    client = Client(bootstrap_servers=broker.bootstrap_servers)
    story = Story(random.Random(seed), batch_share=0.3)
    changelog = Changelog(KafkaSettings(client=client, name=NAME, prefix="served-views"), story)
    changelog.announce()
    changelog.more(60)
    return changelog


@pytest.fixture(scope="module")
def views(changelog: Changelog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedViews]:
    """The running views of the changelog. Tests may start them again."""
    with served(configure(tmp_path_factory.mktemp("views"), changelog.settings)) as views:
        yield views


def configure(folder: Path, settings: KafkaSettings, streams: str = "") -> Path:
    file = folder / "changelog.toml"
    file.write_text(
        f"""name = "{NAME}"
source = {{ kind = "postgres", dsn = "host=127.0.0.1 port=9 dbname=app" }}
tables = {{ include = ["*"] }}
[sink]
kind = "kafka"
bootstrap_servers = "{settings.client.bootstrap_servers}"
prefix = "{settings.prefix}"
{streams_section(folder, f'application = "{settings.prefix}"{chr(10)}{streams}')}
{VIEWS}""",
        "utf-8",
    )
    return file


def test_rows_are_those_of_the_messages(views: ServedViews, changelog: Changelog) -> None:
    assert_equal(views.api, changelog)
    changelog.more(20)
    assert_equal(views.api, changelog)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own only on Linux")
def test_the_threads_of_kafka_streams_have_a_lower_priority(views: ServedViews) -> None:
    """The first 15 characters of the names do not show which threads are those of Kafka Streams. So the test looks at a
    thread of Kafka's consumers, which has the same priority.
    """
    assert {niceness for name, niceness in views.niceness() if name == "kafka-coordinat"} == {NICENESS}
    assert {niceness for name, niceness in views.niceness() if name == "VM Thread"} == {0}


def test_a_key_that_moves_between_partitions_has_its_newest_row(views: ServedViews, changelog: Changelog) -> None:
    def guest(op: Op, partition: int) -> Record:
        current = None if op is Op.DELETE else f'{{"id":"moving","name":"{partition}"}}'
        return record(op, current, key="moving", entity="guest", partition=partition)

    changelog.add([guest(Op.CREATE, 0)])
    assert_equal(views.api, changelog)
    changelog.add([guest(Op.DELETE, 0), guest(Op.CREATE, 1)], [guest(Op.DELETE, 1), guest(Op.CREATE, 0)])
    assert_equal(views.api, changelog)


def test_an_aborted_transaction_does_not_delay_views(views: ServedViews, changelog: Changelog) -> None:
    with writing(changelog.settings) as sink:  # the sink sends rows, and is closed before it commits them
        sink.add([batch.from_records([record(Op.CREATE, "{}", commit=10**6, partition=n % 2) for n in range(50)])])
    changelog.add([record(Op.CREATE, '{"id":"after"}', key="after", entity="guest")])
    assert_equal(views.api, changelog)


def test_views_continue_after_a_restart_and_after_a_crash(views: ServedViews, changelog: Changelog) -> None:
    assert views.stop() == -signal.SIGTERM
    [library] = (views.folder / "libraries").iterdir()  # by default, each start would leave a copy of it in /tmp
    assert library.name.startswith("librocksdbjni")
    changelog.more(20)
    views.log.write_text("", "utf-8")
    assert_equal(views.start(), changelog)
    assert restored_messages(views) == 0
    changelog.more(5)
    views.kill()
    assert_equal(views.start(), changelog)


def restored_messages(views: ServedViews) -> int:
    """Returns how many messages were restored, as the log of the processes says. Messages of the tables that are always
    in memory do not count.
    """
    lines = [json.loads(line) for line in views.log.read_text("utf-8").splitlines() if '"restored"' in line]
    return sum(line["messages"] for line in lines if line["table"] in ENTITIES)


def test_stores_stay_when_columns_change_and_can_be_restored_from_a_copy(
    views: ServedViews, changelog: Changelog, tmp_path: Path
) -> None:
    views.stop()
    shutil.copytree(views.folder, tmp_path / "copy")
    changelog.more(5)
    changelog.add([_place_by_key(record(Op.CREATE, '{"id":"1"}', key="1"))])  # there may be no order left
    views.log.write_text("", "utf-8")
    with views.configured('entity = "order"\nserve = {}', 'entity = "order"\ncolumns = ["id"]\nserve = {}'):
        rows = served_rows(views.start(), "/order")
        assert rows.keys() == changelog.rows["order"].keys()
        assert {name for row in rows.values() for name in row["current"]} == {"id"}
        views.stop()
    assert restored_messages(views) == 0
    shutil.rmtree(views.folder)
    shutil.move(tmp_path / "copy", views.folder)
    assert_equal(views.start(), changelog)
    changes = sum(map(len, changelog.story.commits[-6:]))  # each has a message, and each delete also a tombstone
    assert 0 < restored_messages(views) <= 4 * changes  # orders are in two views


def test_a_second_process_with_the_same_application_takes_over(
    tmp_path: Path, views: ServedViews, changelog: Changelog
) -> None:
    """The first process that takes over keeps only some rows. The next process that takes over must still find all
    rows.
    """
    with served(configure(tmp_path, changelog.settings, f'store = "lru:{KEYS_KEPT}"')) as recent:
        changelog.more(20)
        changelog.add([_place_by_key(record(Op.CREATE, '{"id":"1"}', key="1", entity=name)) for name in ENTITIES])
        assert_some_are_equal(recent.api, changelog)
    file = configure(tmp_path, changelog.settings, 'store = "in-memory"')
    with served(file) as second:
        assert_equal(second.api, changelog)
        until(lambda: views.api.get("/ready").status == 503, "the first process still serves")
        assert "another process took over" in views.api.get("/order/1").json["error"]
        assert second.stop(signal.SIGINT) == 0


def test_a_changelog_that_cannot_be_served_is_refused(
    tmp_path: Path, settings: KafkaSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["views", "serve", "--config", str(configure(tmp_path, replace(settings, name=NAME)))]

    def refused() -> str:
        assert cli.main(command) == 3
        structlog.reset_defaults()  # so that events of the sink below are not among the lines of the next error
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        return error

    assert "is empty; start the service: `changelog run`" in refused()
    changelog = Changelog(settings, Story(random.Random(1)))
    changelog.add([record(Op.CREATE, '{"id":"1"}', key="1")])
    for name in ENTITIES:
        changes = {"cleanup.policy": "delete", "retention.ms": "86400000"}
        alter(settings.client, f"{settings.prefix}.{name}", changes)
    assert "deletes messages (retention.ms = 86400000), so it lacks rows that have not changed lately" in refused()


def test_a_writer_reads_its_own_writes_in_avro(
    database: str, broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    rest = f'on_truncate = "publish"\n{streams_section(tmp_path)}'
    site = Site(database, broker, tmp_path, tables={"thing": PARTITIONS}, registry=registry, rest=rest)
    site.sql(
        "CREATE TABLE thing (id bigint PRIMARY KEY, name text, amount numeric, large text)",
        "ALTER TABLE thing ALTER large SET STORAGE EXTERNAL",
        "INSERT INTO thing SELECT n, 'read', 12345678901234567890.5, repeat('x', 9000) FROM generate_series(1, 20) n",
    )
    with site.running() as service:
        service.until(site.is_read)
        with served(site.config) as views, psycopg.connect(database, autocommit=True) as connection:

            def after(statement: LiteralString, target: str = "/thing/7") -> Any:
                connection.execute(statement)
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                reached = f"{target}?min_position={row[0]}"
                until(lambda: views.api.get(reached).status != 503, "the write does not arrive")
                return views.api.get(reached).json

            row = after("UPDATE thing SET name = 'again' WHERE id = 9", "/thing/9")
            assert (row["current"]["name"], row["current"]["amount"]) == ("again", "12345678901234567890.5")
            row = after("UPDATE thing SET name = 'changed' WHERE id = 7")
            assert (row["current"]["name"], row["unavailable"]) == ("changed", ["large"])
            assert after("DELETE FROM thing WHERE id = 7")["status"] == 404
            assert after("UPDATE thing SET id = 70 WHERE id = 8", "/thing/70")["current"]["id"] == 70
            assert views.api.get("/thing/8").status == 404
            assert len(served_rows(views.api, "/thing")) == 19
            assert after("TRUNCATE thing", "/thing/1")["status"] == 404
            assert served_rows(views.api, "/thing") == {}
            assert after("INSERT INTO thing (id) VALUES (1)", "/thing/1")["current"]["name"] is None
