"""Again and again, kills a service that keeps a state, while threads write. A state is a store in which the service
keeps the last state of every row. The server's log has only the keys of old rows, so the service takes the rest of an
old row from its state.

Triggers copy every change to *twin* tables, for which the log has complete old rows. The same service publishes the
tables and their twins. At the end, each table must have the same changes as its twin, with the same originals. Now and
then, the folder of the state is deleted.
"""

import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._load import Load, Scale, last_write, prepare
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import FAIL_POINTS, STATE_FAIL_POINTS, Service, is_read

SETTINGS = {"fsync": "off", "max_wal_size": "4GB", "shared_buffers": "128MB"}
SCALE = Scale(universe=8_000, big=800, big_every=200, pause_s=0.002)
CATCH_UP_S = 900.0

NAME = "state"
CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
snapshot_pages = 16
[sink]
path = "changelog"
commit_rows = 2000
commit_seconds = 0.3
[state]
path = "state"
[service]
listen = "127.0.0.1:0"
"""

PLACES = {"account": 'partition_by = ["guest_id"]\npartitions = 8', "line": "partitions = 3", "place": "partitions = 2"}
KEYS = {"account": ("id",), "line": ("order_id", "line_no"), "place": ("id", "region"), "doc": ("id",)}

ENTITIES = "".join(
    f'[entities.{prefix}{table}]\ntable = "{schema}.{table}"\n{PLACES.get(table, "")}\n'
    for table in KEYS
    for schema, prefix in (("public", ""), ("twin", "twin_"))
)

IDENTITIES = """
CREATE UNIQUE INDEX account_place ON account (id, guest_id);
ALTER TABLE account REPLICA IDENTITY USING INDEX account_place;
ALTER TABLE line REPLICA IDENTITY DEFAULT;
ALTER TABLE place REPLICA IDENTITY DEFAULT;
ALTER TABLE place_a REPLICA IDENTITY DEFAULT;
ALTER TABLE place_b REPLICA IDENTITY DEFAULT;
ALTER TABLE place_c REPLICA IDENTITY DEFAULT;
ALTER TABLE doc REPLICA IDENTITY DEFAULT;
CREATE SCHEMA twin;
"""


def campaign(seconds: float = 4.0) -> Campaign:
    """A round lets the service run for a random time (about `seconds` on average), and then kills it, unless it has
    already crashed at a fail point.

    Ten rounds share one server and the threads that write to it. In half of the cases, these threads begin only after
    the service has read the tables. Then the service knows every original.
    """

    def run_piece(piece: Piece) -> Figures:
        with (
            tempfile.TemporaryDirectory(prefix="changelog-state-") as folder,
            temporary_server(settings=SETTINGS) as server,
        ):
            return _Soak(server, Path(folder), piece.seed).run(piece.rounds, seconds)

    return Campaign(site=lambda: nullcontext(run_piece), rounds=10, at_once=2)


def make_twins(dsn: str) -> None:
    """Creates the twin tables, and the triggers that write to them. Also alters the tables so that the server's log has
    only the keys of old rows.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(IDENTITIES)
        for table, key in KEYS.items():
            rows = connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", [table]
            )
            columns = [str(name) for (name,) in rows]
            for statement in _twin(table, key, columns):
                connection.execute(statement.encode())


def _twin(table: str, key: tuple[str, ...], columns: list[str]) -> Iterator[str]:
    """Yields the statements that create the twin of a table, and the trigger that copies each change to the twin."""
    new, same = (
        ", ".join(f"NEW.{name}" for name in columns),
        " AND ".join(f"t.{name} = OLD.{name}" for name in key),
    )
    yield f"CREATE TABLE twin.{table} (LIKE public.{table} INCLUDING CONSTRAINTS, PRIMARY KEY ({', '.join(key)}))"
    yield f"ALTER TABLE twin.{table} REPLICA IDENTITY FULL"
    yield f"INSERT INTO twin.{table} SELECT * FROM public.{table}"
    yield f"""
        CREATE FUNCTION twin.copy_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN INSERT INTO twin.{table} VALUES ({new});
        ELSIF TG_OP = 'UPDATE' THEN UPDATE twin.{table} t SET ({", ".join(columns)}) = ROW ({new}) WHERE {same};
        ELSE DELETE FROM twin.{table} t WHERE {same}; END IF;
        RETURN NULL; END $$"""
    yield (
        f"CREATE TRIGGER copied AFTER INSERT OR UPDATE OR DELETE ON public.{table}"
        f" FOR EACH ROW EXECUTE FUNCTION twin.copy_{table}()"
    )


class _Soak:
    def __init__(self, server: PostgresServer, folder: Path, seed: int) -> None:
        self._folder, self._rng = folder, random.Random(seed)
        self._dsn = server.dsn()
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(name=NAME, dsn=self._dsn) + ENTITIES, "utf-8")
        self._log = folder / "changelog"
        self._service = Service(config)
        self._load = Load(self._dsn, SCALE, seed)
        self._kills: Counter[str] = Counter()
        self._deleted = 0
        self._fail_at = ""

    def run(self, rounds: int, seconds: float) -> Figures:
        prepare(self._dsn, SCALE.universe // 2)
        make_twins(self._dsn)
        try:
            self._service.start()
            self._service.slot_made(self._dsn, NAME)
            if self._rng.random() < 0.5:
                self._service.until(self._log, is_read, CATCH_UP_S)
            started = time.monotonic()
            self._load.start()
            for _ in range(rounds):
                self._round(seconds)
            self._load.stop()
            loaded_s = time.monotonic() - started
            self._service.kill()
            self._service.start()
            end = last_write(self._dsn)
            self._service.until(
                self._log, lambda checkpoint: through_lsn(checkpoint) > end and is_read(checkpoint), CATCH_UP_S
            )
            self._service.stop()
        finally:
            self._service.kill()
        twins = Twins()
        for row in rows_of(self._log):
            twins.add(row)
        twins.check()
        return {
            "kills": sum(self._kills.values()),
            "at": dict(self._kills),
            "states_deleted": self._deleted,
            "states_restored": self._service.said().count('"event": "the state is restored"'),
            "changes": twins.changes,
            "originals": twins.originals,
            "unknown": twins.unknown,
            "unlike_full": len(twins.faults),
            "load_s": round(loaded_s),
        }

    def _round(self, seconds: float) -> None:
        """Lets the service run for a while, kills it, sometimes deletes its state, and starts it again."""
        rng = self._rng
        if rng.random() < 0.8:  # otherwise the kill may come while the service starts and restores its state
            self._service.said_or_crashed("streaming", CATCH_UP_S)
        crashed = self._service.wait(seconds * (4.0 if self._fail_at else rng.random() * 1.8))
        self._service.kill()
        self._kills[self._fail_at if crashed else "random"] += 1
        if rng.random() < 0.1:
            shutil.rmtree(self._folder / "state", ignore_errors=True)
            self._deleted += 1
        self._fail_at = rng.choice([*FAIL_POINTS, *STATE_FAIL_POINTS]) if rng.random() < 0.6 else ""
        count = rng.randrange(1, 30) if self._fail_at == "loop:read" else rng.randrange(1, 6)
        self._service.start(f"{self._fail_at}:{count}" if self._fail_at else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the changelog. `content` is what must be equal for a table and its twin."""

    entity: str
    key: str
    op: str
    position: str
    current: str | None
    content: dict[str, Any]


def rows_of(log: Path) -> Iterator[Row]:
    """The rows of a file log (a changelog in Parquet files), in the order of the log."""
    for batch in read_log(log):
        for row in batch.select(
            [
                "entity",
                "partition",
                "key",
                "op",
                "position",
                "transaction",
                "provenance",
                "current",
                "original",
                "moved",
            ]
        ).to_pylist():
            provenance = json.loads(row["provenance"])
            for name in ("position", "table"):
                del provenance["source"][name]
            content = {**row, "provenance": provenance, "entity": row["entity"].removeprefix("twin_"), "position": None}
            yield Row(
                entity=row["entity"],
                key=row["key"],
                op=row["op"],
                position=row["position"],
                current=row["current"],
                content=content,
            )


@dataclass(slots=True)
class Twins:
    """Compares the changes of each table with those of its twin, in the order of the changelog.

    A change of a table may lack values of the old row if the changelog did not have the complete row before. This
    happens while the service reads the tables for the first time. `unknown` counts such changes.
    """

    changes: int = 0
    originals: int = 0
    unknown: int = 0
    faults: list[str] = field(default_factory=list)
    _waiting: dict[str, list[tuple[Row, bool]]] = field(default_factory=dict)
    _whole: dict[tuple[str, str], bool] = field(default_factory=dict)
    _last: str = ""

    def add(self, row: Row) -> None:
        """Takes the next row of the log. Compares a change with that of the twin as soon as both have come."""
        if row.position <= self._last:
            self.faults.append(f"the position {row.position} is not after {self._last}")
        self._last = row.position
        is_twin = row.entity.startswith("twin_")
        may_lack = not is_twin and row.op in ("update", "delete") and not self._whole.get((row.entity, row.key), False)
        if not is_twin:
            lacks = '"unavailable":' in json.dumps(row.content["provenance"], separators=(",", ":"))
            may_lack |= row.op == "create" and lacks  # the row moved here, and was already incomplete under its old key
            self._whole[row.entity, row.key] = row.current is not None and not lacks
        if row.op == "read":
            return
        self._waiting.setdefault(row.entity, []).append((row, may_lack))
        table = row.entity.removeprefix("twin_")
        while (pairs := [self._waiting.get(prefix + table) for prefix in ("", "twin_")]) and all(pairs):
            self._compare(*(waiting.pop(0) for waiting in pairs if waiting))

    def _compare(self, ours: tuple[Row, bool], twin: tuple[Row, bool]) -> None:
        (row, may_lack), (whole, _) = ours, twin
        self.changes += 1
        self.originals += whole.content["original"] is not None
        if row.content == whole.content:
            return
        same = all(
            row.content[name] == whole.content[name] for name in ("op", "key", "transaction", "partition", "moved")
        )
        if may_lack and same:
            self.unknown += 1
        else:
            self.faults.append(f"{row.content} differs from the twin's change {whole.content}"[:2000])

    def check(self) -> None:
        """Raises AssertionError if any fault was found, or if a change lacks its counterpart."""
        self.faults += [
            f"{len(waiting)} changes of {entity} have no counterpart"
            for entity, waiting in self._waiting.items()
            if waiting
        ]
        if self.faults:
            raise AssertionError(
                "\n".join([f"{len(self.faults)} of {self.changes} changes are wrong", *self.faults[:10]])
            )
