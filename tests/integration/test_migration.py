"""Alters a table ten times while rows are written, and then gives the table's entity another key.

The tests check what each alteration changes in the changelog, and that the whole changelog can be read afterwards.
"""

import json
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from changelog.connectors import cli, config
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.service.service import Service
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.connectors.wiring.sinks import open_log, read_versions
from changelog.envelope.columnar import batch
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.model import Missing
from tests.integration.site import Running
from tests.servers.registry import Registry

ROWS = 200
PAUSE_S = 0.004

TABLE = """
CREATE TYPE mood AS ENUM ('calm', 'glad');
CREATE TABLE item (id int PRIMARY KEY, code text NOT NULL, name text, amount int, mood mood, seq int NOT NULL);
ALTER TABLE item REPLICA IDENTITY FULL;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An alteration and its expected effects. The effects are the announced changes, the columns that are read again,
    and whether the service stops until an operator accepts the alteration.

    If `changes` is None, the service announces no new version. `after` is a statement that runs after the alteration.
    """

    name: str
    statements: Sequence[str]
    changes: Sequence[tuple[str, str]] | None = None
    restated: Sequence[str] = ()
    stops: bool = False
    after: str | None = None


STEPS = [
    Step(name="add", statements=["ALTER TABLE item ADD COLUMN note text"], changes=[("added", "note")]),
    Step(
        name="default on an added column",
        statements=["ALTER TABLE item ADD COLUMN stock int NOT NULL DEFAULT 7"],
        changes=[("added", "stock")],
        restated=["stock"],
    ),
    Step(name="nullable", statements=["ALTER TABLE item ALTER COLUMN stock DROP NOT NULL"]),
    Step(name="default", statements=["ALTER TABLE item ALTER COLUMN note SET DEFAULT 'none'"]),
    Step(
        name="widen",
        statements=["ALTER TABLE item ALTER COLUMN amount TYPE bigint"],
        changes=[("retyped", "amount")],
        stops=True,
    ),
    Step(
        name="narrow",
        statements=["ALTER TABLE item ALTER COLUMN amount TYPE int"],
        changes=[("retyped", "amount")],
        stops=True,
    ),
    Step(
        name="rename",
        statements=["ALTER TABLE item RENAME COLUMN name TO title"],
        changes=[("replaced", "title")],
        restated=["title"],
        stops=True,
    ),
    Step(
        name="enum value",
        statements=["ALTER TYPE mood ADD VALUE 'moody'"],
        after="UPDATE item SET mood = 'moody', seq = seq + 1 WHERE id % 7 = 0",
    ),
    Step(name="drop", statements=["ALTER TABLE item DROP COLUMN note"], changes=[("dropped", "note")]),
    Step(
        name="replace by another table",
        statements=[
            "CREATE TABLE item_new (LIKE item INCLUDING ALL)",
            "ALTER TABLE item_new REPLICA IDENTITY FULL",
            "ALTER PUBLICATION {publication} ADD TABLE item_new",
            "BEGIN",
            "LOCK TABLE item",
            "INSERT INTO item_new SELECT * FROM item",
            "UPDATE item_new SET amount = amount + 1",
            "ALTER TABLE item RENAME TO item_old",
            "ALTER TABLE item_new RENAME TO item",
            "COMMIT",
        ],
        changes=[],
        restated=["id", "code", "title", "amount", "mood", "seq", "stock"],
    ),
]


class Load:
    """Writes random rows of `item` in a thread. It uses only columns that no step alters."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn, self._random = dsn, random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._stopping.wait(PAUSE_S):
                    connection.execute(*self._statement())
        except BaseException as error:  # noqa: BLE001 - `running` raises it again
            self.failure = error

    def _statement(self) -> tuple[bytes, tuple[int, ...]]:
        number = self._random.randrange(1, ROWS)
        kind = self._random.random()
        if kind < 0.5:
            return b"UPDATE item SET seq = seq + 1 WHERE id = %s", (number,)
        if kind < 0.7:
            return b"DELETE FROM item WHERE id = %s", (number,)
        return b"INSERT INTO item (id, code, seq) VALUES (%s, 'c' || %s, 0) ON CONFLICT DO NOTHING", (number, number)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Writes while the body runs. Then raises the error of the thread, if there was one."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()
        if self.failure is not None:
            raise self.failure


@dataclass(slots=True)
class Site:
    """A database, and the configuration of the service that publishes it."""

    dsn: str
    folder: Path
    sink: str
    name: str = ""
    stops: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.name = str(psycopg.conninfo.conninfo_to_dict(self.dsn)["dbname"])

    @property
    def file(self) -> Path:
        return self.folder / "changelog.toml"

    def configure(self, key: str) -> None:
        self.file.write_text(f"""
            name = {json.dumps(self.name)}
            source = {{ kind = "postgres", dsn = {json.dumps(self.dsn)} }}
            service = {{ listen = "127.0.0.1:0" }}
            [sink]
            {self.sink}
            [entities.item]
            table = "public.item"
            key = ["{key}"]
        """)

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs the statements in one session. Returns the rows of the last statement."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.format(publication=self.name).encode())
            return cursor.fetchall() if cursor.description else []

    def service(self, *, accept: bool = False) -> Running:
        return Running(Service(config.load(self.file, os.environ), accept_settings=accept))

    def versions(self) -> list[Mapping[str, Any]]:
        return [msgspec.json.decode(version.state) for version in read_versions(open_log(self.settings))]

    @property
    def settings(self) -> config.Config:
        return config.load(self.file, os.environ)

    def table(self, key: str) -> dict[str, Any]:
        return {str(row[key]): row for (row,) in self.sql("SELECT to_json(item) FROM item")}

    def rows(self) -> list[tuple[str, str, Mapping[str, Any] | None, Mapping[str, Any] | None]]:
        """Returns the position, key, current and original of each message, in order."""
        entries = []
        for rows_batch in open_log(self.settings).read(entity="item"):
            for record in batch.records(rows_batch):
                envelope = record.envelope
                original = envelope.original
                entries.append(
                    (
                        str(envelope.provenance.source.position),
                        record.place.key,
                        None if envelope.current is None else msgspec.json.decode(envelope.current),
                        None if isinstance(original, Missing | None) else msgspec.json.decode(original),
                    )
                )
        return sorted(entries, key=lambda row: row[0])

    def state(self) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for _, key, current, _ in self.rows():
            rows.pop(key, None)
            if current is not None:
                rows[key] = current
        return rows

    def is_read(self) -> bool:
        checkpoint = open_log(self.settings).checkpoint()
        return checkpoint is not None and bool(checkpoint.windows.get("item", {}).get("complete"))

    def accept(self, service: Running) -> Running:
        """Waits until the service stops at a change of columns. Accepts the change and starts the service again."""
        error = service.ended()
        assert error.position is not None
        words = ["schemas", "accept", "item", str(error.position), "--config", str(self.file)]
        assert cli.main(words) == 0
        self.stops += 1
        return self.service()


def caught_up(site: Site) -> Callable[[], bool]:
    """Returns a function that says whether the table is completely read, and whether all commits before the call of
    `caught_up` are published.
    """
    site.sql("UPDATE item SET seq = seq + 1 WHERE id = 0")
    [(end,)] = site.sql("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")

    log = open_log(site.settings)

    def reached() -> bool:
        checkpoint = log.checkpoint()
        return (
            checkpoint is not None and through_lsn(checkpoint) >= end and bool(checkpoint.windows["item"]["complete"])
        )

    return reached


def migrate(site: Site, seed: int) -> None:
    """Makes all alterations while rows are written, and then changes the key."""
    site.sql(*TABLE.strip().split("\n"))
    site.sql(f"INSERT INTO item SELECT n, 'c' || n, 'name ' || n, n, 'calm', 0 FROM generate_series(0, {ROWS}) AS n")
    site.configure("id")
    service = site.service()
    try:
        service.until(site.is_read)
        with Load(site.dsn, seed).running():
            for step in STEPS:
                service = take(site, step, service)
        service = change_key(site, service)
    finally:
        service.stop()
    service.check()
    judge(site)


def take(site: Site, step: Step, service: Running) -> Running:
    """Makes one alteration, and checks its effects. Returns the running service, which may be a new one."""
    before = site.versions()
    site.sql(*step.statements)
    if step.stops:
        service = site.accept(service)
    if step.after is not None:
        site.sql(step.after)
    service.until(caught_up(site))
    new = site.versions()[len(before) :]
    changes = [[(change["kind"], change["column"]) for change in version["changes"]] for version in new]
    assert changes == ([] if step.changes is None else [list(step.changes)]), step.name
    if new:
        assert new[0]["restated"] == list(step.restated), step.name
        assert bool(new[0]["breaks"]) == step.stops, step.name
    return service


def change_key(site: Site, service: Running) -> Running:
    """Gives the entity another key column in the configuration. The next start is refused unless the operator accepts
    this change.
    """
    service.until(caught_up(site))
    service.stop()
    service.check()
    site.sql("ALTER TABLE item ADD UNIQUE (code)")
    site.configure("code")
    error = site.service().ended()
    assert "other settings: key" in str(error)
    service = site.service(accept=True)
    site.sql("UPDATE item SET seq = seq + 1 WHERE id = 0")
    service.until(caught_up(site))
    service.until(caught_up(site))  # twice: the service must store a first change before it reads the table again
    assert site.table("code").items() <= site.state().items()
    return service


def judge(site: Site) -> None:
    """Checks that every row has the columns of the version that is in force at the row's position."""
    announcements = [
        (str(record.envelope.provenance.source.position), msgspec.json.decode(record.envelope.current or b"null"))
        for rows in open_log(site.settings).read(entity=SCHEMAS)
        for record in batch.records(rows)
    ]
    assert [version["version"] for _, version in announcements] == list(range(1, len(announcements) + 1))
    rows = site.rows()
    current_version = -1
    for position, _, current, original in rows:
        while current_version + 1 < len(announcements) and announcements[current_version + 1][0] <= position:
            current_version += 1
        columns = [name for name, _ in announcements[current_version][1]["columns"]]
        for state in (current, original):
            assert state is None or list(state) == columns, (position, columns)
    assert current_version == len(announcements) - 1
    assert len({(position, key) for position, key, *_ in rows}) == len(rows)


def test_a_migration_is_published_to_files(database: str, tmp_path: Path, seed: int) -> None:
    site = Site(database, tmp_path, 'path = "log"\ncommit_seconds = 0.05')
    migrate(site, seed)
    assert site.stops == 3


def test_a_migration_is_published_to_kafka_as_avro(
    database: str, broker: Broker, registry: Registry, tmp_path: Path, seed: int
) -> None:
    site = Site(
        database,
        tmp_path,
        f'kind = "kafka"\nbootstrap_servers = "{broker.bootstrap_servers}"\n'
        f'codec = "avro"\nregistry = "{registry.url}"\nauto_register = true',
    )
    migrate(site, seed)
    assert site.stops == 3
