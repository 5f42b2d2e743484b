"""Kills the job `maintain_view` again and again while threads write.

The view has the rows of one table, each with a document that has the matching rows of a second table. It also has
totals of the rows. Rounds are grouped in blocks, each with its own database and view. A round is a run of the job,
which is killed at a fail point (a line of code with a name), or at a random moment after it has applied a batch. In the
middle of a block, a run builds the view again. Between the runs, tables are truncated, or the service is asked to
repair the changelog, that is, to read rows again.

After each kill, the totals and the documents must fit the rows that the view has then. At the end of a block, one run
is not disturbed. After this run, the rows, the totals and the documents of the view must equal the results of SQL
queries in the database.
"""

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.spark_jobs.maintaining.target import FAIL_POINTS
from tests.campaigns._load import ENTITIES, Load, Scale, last_write, prepare
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import ROOT, Service, is_read
from tests.campaigns._spark_job import ENDS_S, SparkJob
from tests.servers import fresh_database, java_needed

BLOCK = 10
SETTINGS = {"fsync": "off", "max_wal_size": "4GB"}
SCALE = Scale(universe=1_000, big=300, big_every=300, pause_s=0.2)
CATCH_UP_S = 120.0
COMMAND_S = 60.0
KILLED_AFTER_S = 4.0
CRASHES_MAX = 3
"""A run crashes when it reaches its fail point for the first, the second or the third time."""

CRASHED = 128 + signal.SIGKILL
"""The exit code of `spark-submit` if the job's Python process was killed."""

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
[sink]
path = "changelog"
commit_seconds = 0.1
[service]
listen = "127.0.0.1:0"
[views.accounts]
entity = "account"
totals = {{ by = ["guest_id"], sums = ["amount", "quantity"] }}
[views.accounts.nested.lines]
entity = "line"
on = {{ order_id = "id" }}
columns = ["line_no", "version", "sku", "price", "open"]
"""

ROWS = "SELECT id, guest_id, version, stamp, amount, quantity, note, changed_at FROM {table} ORDER BY id"
TOTALS = """SELECT guest_id, _count, count_amount, sum_amount, count_quantity, sum_quantity
    FROM accounts__totals ORDER BY guest_id"""
GROUPS = """SELECT guest_id, count(*), count(amount), sum(amount), count(quantity), sum(quantity)
    FROM {table} GROUP BY guest_id ORDER BY guest_id"""

TARGET_NAMES = {"table": "accounts", "lines": "accounts__lines"}

DOCUMENTS = "SELECT id, lines FROM accounts ORDER BY id"
JOINED = """SELECT id, coalesce((
        SELECT jsonb_agg(jsonb_build_object(
            'line_no', line_no, 'version', version, 'sku', sku, 'price', price, 'open', open
        ) ORDER BY line_no) FROM {lines} WHERE order_id = account.id
    ), '[]') FROM {table} account ORDER BY id"""

TRUNCATES = (
    """TRUNCATE account;
    INSERT INTO account SELECT n, n % 97, nextval('versions'), '', n / 4.0, n % 5 FROM generate_series(0, 99) AS n""",
    """TRUNCATE line;
    INSERT INTO line SELECT n / 2, n % 2, nextval('versions'), '', 'sku', n / 7.0 FROM generate_series(0, 99) AS n""",
)


def campaign() -> Campaign:
    """A round is a run of the job. BLOCK rounds share one database."""
    return Campaign(site=_site, rounds=BLOCK)


@contextmanager
def _site() -> Iterator[Callable[[Piece], Figures]]:
    java_needed()
    with temporary_server(settings=SETTINGS) as server:

        def block(piece: Piece) -> Figures:
            folder = Path(tempfile.mkdtemp(prefix="changelog-maintain-"))
            try:
                with (
                    fresh_database(server) as source,
                    fresh_database(server) as target,
                    closing(_Block(source, target, folder, piece.seed)) as running,
                ):
                    return running.run(piece.rounds)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        yield block


class _Block:
    def __init__(self, source: str, target: str, folder: Path, seed: int) -> None:
        self._source, self._target, self._path = source, target, folder / "changelog"
        self._rng = random.Random(seed)
        self._config = folder / "changelog.toml"
        name = psycopg.conninfo.conninfo_to_dict(source)["dbname"]
        self._config.write_text(CONFIG.format(name=name, dsn=source) + ENTITIES, "utf-8")
        prepare(source, SCALE.universe // 2)
        self._service = Service(self._config)
        self._load = Load(source, SCALE, self._rng.randrange(1 << 32))
        arguments = ("--config", str(self._config), "--view", "accounts", "--output", "postgres", "--to", "accounts")
        self._job = SparkJob(
            "maintain_view",
            folder,
            (*arguments, "--dsn", "env:VIEWS_DSN"),
            jars=False,
            environment={"VIEWS_DSN": target},
        )
        self._figures: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()

    def close(self) -> None:
        """Stops all processes and threads."""
        self._job.kill()
        self._service.kill()
        self._load.stop()

    def run(self, rounds: int) -> Figures:
        """Runs the job `rounds` times, and compares the view with the source."""
        self._service.start()
        self._service.until(self._path, is_read, CATCH_UP_S)
        self._load.start()
        for number in range(rounds):
            self._service.check()
            self._disturb()
            self._round(rebuilds=number == rounds // 2)
            self._compare(TOTALS, GROUPS, of_source=False)
            self._compare(DOCUMENTS, JOINED, of_source=False)
        self._load.stop()
        end = last_write(self._source)
        self._service.until(
            self._path, lambda checkpoint: through_lsn(checkpoint) > end and is_read(checkpoint), CATCH_UP_S
        )
        self._service.stop()
        self._job.finish("--available-now")
        self._compare(TOTALS, GROUPS, of_source=True)
        self._compare(DOCUMENTS, JOINED, of_source=True)
        self._compare(ROWS, ROWS, of_source=True)
        return {**self._figures, "writes": self._load.counts.committed, "runs": dict(self._runs)}

    def _disturb(self) -> None:
        chance = self._rng.random()
        if chance < 0.2:
            _query(self._source, self._rng.choice(TRUNCATES))
            self._figures["truncates"] += 1
        elif chance < 0.5:
            command = [sys.executable, "-m", "changelog", "rebuild", "--config", str(self._config)]
            command.append(self._rng.choice(("account", "line")))
            subprocess.run(
                [*command, "--no-wait"], cwd=ROOT, timeout=COMMAND_S, check=True,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            self._figures["repairs"] += 1

    def _round(self, *, rebuilds: bool) -> None:
        options = ("--every", "0.1", *(("--rebuild",) if rebuilds else ()))
        self._figures["rebuilds"] += rebuilds
        if self._rng.random() < 0.5:
            point = self._rng.choice(FAIL_POINTS)
            self._job.start(*options, fail_at=f"{point}:{self._rng.randint(1, CRASHES_MAX)}")
            code = self._job.ended(ENDS_S)
            assert code == CRASHED, f"the job did not crash, but ended with {code}: {self._job.said()[-3000:]}"
            self._runs[point] += 1
        else:
            before = self._progress()
            self._job.start(*options)
            self._until_applied(before)
            code = self._job.ended(self._rng.uniform(0, KILLED_AFTER_S))
            assert code is None, f"the job ended with {code}: {self._job.said()[-3000:]}"
            self._runs["killed while it ran"] += 1
        self._job.kill()

    def _until_applied(self, before: str | None) -> None:
        """Waits until the running job has stored a progress that differs from `before`."""
        deadline = time.monotonic() + ENDS_S
        while self._progress() == before:
            code = self._job.ended(0.05)
            assert code is None, f"the job ended with {code}: {self._job.said()[-3000:]}"
            assert time.monotonic() < deadline, f"the job applied no batch: {self._job.said()[-3000:]}"

    def _progress(self) -> str | None:
        if _query(self._target, "SELECT to_regclass('accounts__progress')") == [(None,)]:
            return None
        [(record,)] = _query(self._target, "SELECT record FROM accounts__progress")
        return str(record)

    def _compare(self, statement: str, expected_statement: str, *, of_source: bool) -> None:
        dsn = self._source if of_source else self._target
        names = {"table": "account", "lines": "line"} if of_source else TARGET_NAMES
        rows = _query(self._target, statement.format(**TARGET_NAMES))
        expected = _query(dsn, expected_statement.format(**names))
        differing = sorted({*map(str, rows)} ^ {*map(str, expected)})
        assert rows == expected, f"{len(differing)} rows differ, for example {differing[:4]}"
        self._figures["rows"] += len(rows)


def _query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
