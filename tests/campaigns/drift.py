"""Runs the job `detect_drift`, which compares tables with their changelog, while the tables change in many ways.

There are savepoints, rollbacks, long transactions, changed keys and altered columns. Some commits are in the server's
log long before they are visible. In some rounds, the campaign plants drift: it falsifies rows in the files of the
changelog. The job must find exactly the planted drift, with the right columns, and no drift in other rounds.
"""

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._detected import Drifted, detected
from tests.campaigns._load import CONFLICTS, ENTITIES, Load, Scale, prepare
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._plant import Edit, Row, last_only, latest, lost, rewrite, setting, tokens_of
from tests.campaigns._service import Service, is_read
from tests.campaigns._standby import STANDBY, Standby, standby_of
from tests.servers import HASTY_WORKERS, fresh_database, java_needed
from tests.servers.spark import local_spark

ROUNDS = 10
"""How many rounds share one database and its changelog."""

PLANT_EVERY = 3
PLANTED_MAX = 1_000
ROWS = 1_000
STATIC = 1_500
"""In the table `odd`, the rows with keys up to this one are *static*: they change only when planted drift is removed. A
thread steadily changes the other rows.
"""

SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.files.openCostInBytes": "1",
    **HASTY_WORKERS,
}
"""Spark's settings for small tables. With other settings, Spark would spend more time on compiling queries and starting
tasks than on the queries themselves.

If the tests have already started a Spark session, the campaign uses that session, which does not have these settings.
"""

MADE_UP = 1_000_000
SETTINGS = {"fsync": "off", "synchronous_standby_names": STANDBY, "max_wal_size": "4GB"}
SCALE = Scale(universe=ROWS * 2, big=200, big_every=60, pause_s=0.01, lingering=0.04, linger_s=0.8, held=0.06)

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
[sink]
path = "changelog"
commit_seconds = 0.5
[service]
listen = "127.0.0.1:0"
[schemas]
on_incompatible = "publish"
[drift]
on_schema_mismatch = "ignore"
[entities.odd]
table = "public.odd"
"""

ODD = """
CREATE TABLE odd (
    id int PRIMARY KEY, note text, price float8, ratio real, amount numeric, doc json, docb jsonb, touched int DEFAULT 0
);
INSERT INTO odd SELECT n, CASE n % 5 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'café ' || n ELSE 'note ' || n END,
    CASE n % 3 WHEN 0 THEN 0 ELSE n / 7.0 END, n / 3.0, 123456789012345678901234567890 + n, '{"a": 1, "b": [1, null]}',
    '{"a": 1.50, "b": {"c": null}}'
FROM generate_series(1, %(rows)s) AS n;
ALTER TABLE odd REPLICA IDENTITY FULL;
"""


def campaign() -> Campaign:
    """A round runs the job once. ROUNDS rounds share a new database. All rounds share one Spark session."""
    return Campaign(site=_site, rounds=ROUNDS)


@contextlib.contextmanager
def _site() -> Iterator[Callable[[Piece], Figures]]:
    with (
        tempfile.TemporaryDirectory(prefix="changelog-drift-") as name,
        temporary_server(settings=SETTINGS) as server,
        standby_of(server, Path(name)) as standby,
        session(Path(name)),
    ):

        def run_piece(piece: Piece) -> Figures:
            folder = Path(name) / str(piece.first)
            folder.mkdir()
            try:
                with fresh_database(server) as dsn:
                    return _Block(f"d{piece.first}", dsn, folder, standby, random.Random(piece.seed)).run(piece.rounds)
            finally:
                shutil.rmtree(folder)

        yield run_piece


@contextlib.contextmanager
def session(folder: Path) -> Iterator[None]:
    """Makes sure that a Spark session is active. If there is none, starts one that lasts until the block ends."""
    if SparkSession.getActiveSession() is not None:
        yield
        return
    java_needed()
    with local_spark(folder / "spark", others=SMALL):
        yield


class _Block:
    def __init__(self, name: str, dsn: str, folder: Path, standby: Standby, rng: random.Random) -> None:
        self._dsn, self._folder, self._standby, self._rng = dsn, folder, standby, rng
        self._config = folder / "changelog.toml"
        self._config.write_text(CONFIG.format(name=name, dsn=dsn) + ENTITIES, "utf-8")
        self._log = folder / "changelog"
        self._service = Service(self._config)
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._figures: Counter[str] = Counter()
        self._altered: list[str] = []
        self._took: list[float] = []

    def run(self, rounds: int) -> Figures:
        prepare(self._dsn, ROWS)
        self._sql(ODD.replace("%(rows)s", str(STATIC * 2)))
        load = Load(self._dsn, SCALE, self._rng.randrange(1 << 32))
        threads = [threading.Thread(target=self._run_guarded, args=(method,)) for method in (self._hold, self._churn)]
        try:
            self._service.start()
            load.start()
            for thread in threads:
                thread.start()
            for number in range(rounds):
                self._service.check()
                self._round(plants=number % PLANT_EVERY == PLANT_EVERY - 1 or rounds == number + 1)
        finally:
            self._over.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            load.stop()
            self._service.kill()
        if self._failures:
            raise self._failures[0]
        return {**self._figures, "run_s": [round(sum(self._took) / len(self._took), 1)]}

    def _round(self, *, plants: bool) -> None:
        if self._rng.random() < 0.5:
            self._alter()
        planted = self._plant() if plants else {}
        began = time.monotonic()
        drifted = self._detect()
        self._took.append(time.monotonic() - began)
        differ = [
            entity_and_key
            for entity_and_key in drifted.keys() | planted.keys()
            if drifted.get(entity_and_key) != planted.get(entity_and_key)
        ]
        wrong = [
            (entity_and_key, planted.get(entity_and_key), drifted.get(entity_and_key))
            for entity_and_key in sorted(differ)[:5]
        ]
        assert not wrong, f"{len(differ)} keys differ from the {len(planted)} planted: (key, planted, found): {wrong}"
        self._figures["planted"] += len(planted)
        self._figures["found"] += len(drifted)
        self._figures["false"] += 0
        if planted:
            self._heal(planted)

    def _detect(self) -> Drifted:
        """Runs the job, and returns the drift that it found."""
        drifted, entities = detected(self._config, self._folder / "drift")
        for entity in entities.values():
            self._figures["rows"] += entity["sourceRows"]
            self._figures["schema_changed"] += bool(entity["schemaChanged"])
        return drifted

    def _plant(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Falsifies some static rows in the files of the changelog. Returns the drift that the job must find."""
        self._until_published()
        rows = {
            entity_and_key: row
            for entity_and_key, row in latest(self._log, "odd").items()
            if int(entity_and_key[1]) <= STATIC
        }
        sample = self._rng.sample(sorted(rows), self._rng.randrange(1, PLANTED_MAX + 1))
        edits: dict[tuple[str, str], Edit] = {}
        planted: dict[tuple[str, str], tuple[str, ...]] = {}
        for entity_and_key in sample:
            row = rows[entity_and_key]
            match self._rng.randrange(8):
                case 0:
                    edits[entity_and_key], planted[entity_and_key] = lost, ("missing",)
                case 1:
                    new_key = str(MADE_UP + int(entity_and_key[1]))
                    edits[entity_and_key] = last_only(row["position"], _made_up(new_key))
                    planted["odd", new_key] = ("extra",)
                case 2:  # the same JSON with other spaces and another order is no drift
                    edits[entity_and_key] = last_only(row["position"], setting({"doc": '{ "b":[1,null], "a" : 1 }'}))
                case _:
                    values = self._values(row)
                    edits[entity_and_key] = last_only(row["position"], setting(values))
                    planted[entity_and_key] = ("changed", *sorted(values))
        rewrite(self._log, edits)
        return planted

    def _values(self, row: Row) -> dict[str, str]:
        """Returns wrong values for some columns of a row: the JSON of each value, by column."""
        tokens = {name: bytes(token).decode() for name, token in tokens_of(row["current"]).items()}
        number = tokens["amount"].strip('"')
        new_values = {
            "note": self._rng.choice([_another_text(tokens["note"]), '"another"']),
            "price": "-0" if tokens["price"] == "0" else self._rng.choice(['"NaN"', '"Infinity"', "1e-300"]),
            "ratio": self._rng.choice(['"-Infinity"', "null", "-0"]),
            "amount": self._rng.choice([f'"{int(number) + 1}"', f'"{number}.0"', '"NaN"']),
            "doc": self._rng.choice(["null", '{"a": 1, "b": [null, 1]}']),
            "docb": '{"a": 1.5, "b": {"c": null}}',
        }
        names = self._rng.sample(sorted(new_values), self._rng.choice((1, 1, 1, 2, 6)))
        return {name: new_values[name] for name in names}

    def _heal(self, planted: Mapping[tuple[str, str], tuple[str, ...]]) -> None:
        """Removes the planted drift: writes to all affected keys in the table, and the service publishes them again.

        First inserts and deletes the keys that were made up, and then updates the static rows. This order matters if a
        later round makes up the same key again. That round puts the made-up row next to the last change of a static
        row. If the delete of the key came later in the changelog, the made-up row would have no effect.
        """
        made_up = [int(key) for (_, key), (kind, *_) in planted.items() if kind == "extra"]
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute("INSERT INTO odd (id) SELECT unnest(%s::int[])", [made_up])
            connection.execute("DELETE FROM odd WHERE id = ANY (%s)", [made_up])
            connection.execute("UPDATE odd SET touched = touched + 1 WHERE id <= %s", [STATIC])

    def _until_published(self) -> None:
        """Waits until all writes to the static rows are published. If the service published such a write later, this
        would remove the drift that was planted for the same row.
        """
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8").fetchone()
        assert row is not None
        end = row[0]
        self._service.until(self._log, lambda checkpoint: through_lsn(checkpoint) >= end and is_read(checkpoint), 60.0)

    def _alter(self) -> None:
        """Adds a column with or without a default. Or alters or drops a column that this method added before."""
        name = self._rng.choice(self._altered) if self._altered and self._rng.random() < 0.5 else None
        if name is None:
            name = f"added_{len(self._altered)}_{self._rng.randrange(1 << 20)}"
            self._altered.append(name)
            self._sql(f"ALTER TABLE account ADD COLUMN {name} int" + self._rng.choice(("", " DEFAULT 7")))
        elif self._rng.random() < 0.5:
            self._sql(f"ALTER TABLE account ALTER COLUMN {name} TYPE text")
        else:
            self._altered.remove(name)
            self._sql(f"ALTER TABLE account DROP COLUMN {name}")
        self._figures["alters"] += 1

    def _sql(self, statements: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute("SET deadlock_timeout = '10s'")
            connection.execute(statements.encode())

    def _run_guarded(self, disturb: Callable[[], None]) -> None:
        try:
            disturb()
        except BaseException as error:
            self._failures.append(error)
            raise

    def _hold(self) -> None:
        """Pauses the standby again and again. Commits that wait for it are then in the log, but not yet visible."""
        rng = random.Random(self._rng.random())
        while not self._over.wait(rng.random() * 2.0):
            with self._standby.paused():
                self._figures["commits_held"] += 1
                self._over.wait(rng.random())

    def _churn(self) -> None:
        """Writes to the rows that are not static. Some commits wait for the standby before they become visible."""
        rng = random.Random(self._rng.random())
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            while not self._over.wait(0.02):
                number = STATIC + rng.randrange(1, STATIC)
                with contextlib.suppress(*CONFLICTS), connection.transaction():
                    if rng.random() < 0.1:
                        connection.execute("SET LOCAL synchronous_commit = on")
                    if rng.random() < 0.2:
                        connection.execute("DELETE FROM odd WHERE id = %s", [number])
                    connection.execute(
                        "INSERT INTO odd (id, note) VALUES (%s, 'new') ON CONFLICT (id) DO UPDATE"
                        " SET touched = odd.touched + 1",
                        [number],
                    )


def _made_up(key: str) -> Edit:
    return lambda row: [row, {**row, "key": key}]


def _another_text(token: str) -> str:
    """Returns the JSON of a text that could be mistaken for the given one."""
    if token == "null":
        return '""'
    if token == '""':
        return "null"
    return token.replace("é", "e\u0301") if "é" in token else token[:-1] + ' "'
