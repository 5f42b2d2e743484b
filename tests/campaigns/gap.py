"""Makes gaps: changes are lost for good while a thread writes rows. Then lets the service continue after the gap with
`--over-gap`, and kills it meanwhile.

Each round removes something without which the service cannot continue. When the service starts again, it must fail with
an error that names `--over-gap`. After it has run with `--over-gap`, the last states in the changelog must equal the
table. The states of a consumer must equal the table, too, although it has read rows that the changelog then lost. The
positions of a key must never go back.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sinks.files.layout import highest_epoch, log_file, sequences
from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sources.postgres.crossing import FAIL_POINTS as GAP_FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP
from tests.campaigns._consumer import ENTITY, TABLE, Consumer, Writer, check_order, table
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS, Service, is_read
from tests.servers import fresh_database

WAIT_S = 180.0
GAP_RUN_POINTS = (*GAP_FAIL_POINTS, *FAIL_POINTS)
CONFIG = """
name = "{name}"
source = {{ kind = "postgres", dsn = "{dsn}" }}
sink = {{ path = "log", commit_seconds = 0.1 }}
service = {{ listen = "127.0.0.1:0" }}
"""


def campaign() -> Campaign:
    """Each round makes one gap. Five rounds share one database and its changelog."""
    return Campaign(site=_site, rounds=5)


@contextlib.contextmanager
def _site() -> Iterator[Callable[[Piece], Figures]]:
    with temporary_server(settings={"fsync": "off"}) as server:

        def run_piece(piece: Piece) -> Figures:
            with tempfile.TemporaryDirectory(prefix="changelog-gap-") as folder, fresh_database(server) as dsn:
                return _Rounds(dsn, Path(folder), random.Random(piece.seed)).run(piece.rounds)

        yield run_piece


class _Rounds:
    def __init__(self, dsn: str, folder: Path, rng: random.Random) -> None:
        self._dsn, self._log, self._rng = dsn, folder / "log", rng
        self._name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(name=self._name, dsn=dsn) + ENTITY, "utf-8")
        self._sql(TABLE, "ALTER TABLE guest REPLICA IDENTITY FULL")
        self._service = Service(config)
        self._writer, self._consumer = Writer(dsn, rng.randrange(1 << 32)), Consumer()
        self._figures: dict[str, int] = {"kills": 0, "gaps": 0, "rows": 0}

    def run(self, rounds: int) -> Figures:
        try:
            self._writer.write(10)
            self._service.start()
            self._until(is_read)
            self._writer.write(10)
            self._until(lambda _: len(sequences(self._log)) > 1)
            for _ in range(rounds):
                self._round()
        finally:
            self._writer.stop()
            self._service.kill()
        self._figures["rows"] = check_order(self._rows())
        return self._figures

    def _round(self) -> None:
        self._writer.start()
        time.sleep(self._rng.random())
        self._service.kill()
        self._consumer.take(self._rows())
        epoch = self._lose()
        self._check_refused()
        self._run_over_gap(epoch)
        self._until(
            lambda checkpoint: checkpoint.epoch > epoch and is_read(checkpoint) and not checkpoint.repairs.get("open")
        )
        self._writer.stop()
        self._judge()

    def _lose(self) -> int:
        """Removes something that the service needs. Returns the epoch of the changelog before that."""
        epoch, files = highest_epoch(self._log), sequences(self._log)
        # If a file of the changelog is lost, the slot may still have its changes, and there would be no gap. Therefore,
        # the slot is advanced as well.
        ways: dict[str, Callable[[], object]] = {
            "slot": lambda: self._sql(f"SELECT pg_drop_replication_slot('{self._name}')"),
            "moved": self._move,
            "publication": lambda: self._sql(f"DROP PUBLICATION {self._name}"),
            "deleted": lambda: self._damage(log_file(self._log, files[-1]), Path.unlink),
            "cut": lambda: self._damage(log_file(self._log, files[-1]), _cut),
        }
        self._wait_until_slot_free()
        ways[self._rng.choice(sorted(ways))]()
        self._figures["gaps"] += 1
        return epoch

    def _move(self) -> None:
        self._sql(f"SELECT pg_replication_slot_advance('{self._name}', pg_current_wal_lsn())")

    def _damage(self, file: Path, how: Callable[[Path], object]) -> None:
        self._move()
        how(file)

    def _wait_until_slot_free(self) -> None:
        """Waits until the server has noticed the end of the process that read the slot."""
        deadline = time.monotonic() + WAIT_S
        while self._sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{self._name}' AND active"):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _check_refused(self) -> None:
        self._service.start()
        assert self._service.ended(WAIT_S) == 3
        assert OVER_GAP in self._service.said()[-4000:]

    def _run_over_gap(self, epoch: int) -> None:
        """Starts the service with `--over-gap`, and kills it up to twice. The last start is not killed: this process
        continues as the service.
        """
        for _ in range(self._rng.randrange(3)):
            fail_point = f"{self._rng.choice(GAP_RUN_POINTS)}:1"
            self._service.start(fail_point if self._rng.random() < 0.7 else None, "--over-gap", "--yes")
            self._crash()
            if highest_epoch(self._log) > epoch:
                break
        self._service.start(None, *(() if highest_epoch(self._log) > epoch else ("--over-gap", "--yes")))

    def _crash(self) -> None:
        """Waits for a random time. If the process does not crash at its fail point meanwhile, kills it."""
        if not self._service.wait(self._rng.random() * 4):
            self._service.kill()
        self._wait_until_slot_free()
        self._figures["kills"] += 1

    def _judge(self) -> None:
        [(end,)] = self._sql("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")
        self._sql("INSERT INTO guest VALUES (-1, 'last', 0) ON CONFLICT (id) DO UPDATE SET version = guest.version + 1")
        self._until(lambda checkpoint: through_lsn(checkpoint) > end)
        rows, fold = table(self._dsn), Consumer()
        fold.take(self._rows())
        assert fold.states == rows, f"the changelog differs from the table: {_differences(fold.states, rows)}"
        self._consumer.take(self._rows())
        assert self._consumer.states == rows, (
            f"the states of the consumer differ from the table: {_differences(self._consumer.states, rows)}"
        )
        check_order(self._rows())

    def _rows(self) -> Iterator[pa.RecordBatch]:
        return read_log(self._log, entity="guest")

    def _until(self, condition: Callable[[Checkpoint], bool]) -> None:
        self._service.until(self._log, condition, WAIT_S)

    def _sql(self, *statements: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def _differences(states: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """The keys for which `states` and the table differ. Each is mapped to its state and its row."""
    keys = sorted({*states, *rows})
    return {key: (states.get(key), rows.get(key)) for key in keys if states.get(key) != rows.get(key)}


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
