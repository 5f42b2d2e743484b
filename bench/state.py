"""Measures how much time the *state* costs. The state is the service's own store of current rows. The service publishes
the same backlog of changes into the file log, once with a state and once without one.

The database's log has only the keys of old rows (REPLICA IDENTITY DEFAULT). With a state, the service adds the old rows
itself. Half of the changes are inserts, and half are updates. There are two backlogs. In `recent`, a transaction
updates the rows that it has inserted, so the old rows are still in memory. In `scattered`, all rows are inserted first,
and then updated in random order, so most old rows come from RocksDB. The two sides (*with* and *without* a state) run
in turn, each time as a new process on a new copy of the same replication slot.
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa

from bench.measure import backlog
from bench.measure.drains import Figures, as_json, drain, entity, print_figures, profiled, timed
from bench.measure.slots import create_base, end_of_backlog, first_checkpoint, slot_to_drain
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sinks.files.log import FileLog
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources import Recover
from changelog.connectors.sources.postgres.settings import Settings
from changelog.connectors.sources.postgres.source import PostgresSource
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn
from changelog.connectors.state.before_images import BeforeImages
from changelog.connectors.state.rocks import RocksStore
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.versions import Version

ROWS = 400_000
ROUNDS = 3
BACKLOGS = ("recent", "scattered")
SIDES = ("without", "with")


def main() -> None:
    """Runs the benchmark. The benchmark starts itself again with --drain, which runs a single side in a new process."""
    options = _parse_args()
    if options.drain is not None:
        profiled(options.profile, _drain, options)
        return
    rounds = 1 if options.quick else ROUNDS
    results: dict[str, list[Figures]] = {f"{name} {side}": [] for name in BACKLOGS for side in SIDES}
    for name in BACKLOGS:
        with temporary_server(settings={"fsync": "off", "max_wal_size": "8GB", "wal_sender_timeout": "0"}) as server:
            target = _backlog(server, name, options.rows)
            for _ in range(rounds):
                for side in SIDES:
                    results[f"{name} {side}"].append(_measure(server, side, target))
    _report(results, options)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="changes in each backlog")
    parser.add_argument("--quick", action="store_true", help="run only one round")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    parser.add_argument("--profile", metavar="FILE", help="with the hidden --drain: write cProfile's figures to FILE")
    parser.add_argument("--drain", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    return parser.parse_args()


def _backlog(server: PostgresServer, name: str, rows: int) -> str:
    """Writes a backlog. Returns the LSN at its end."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(backlog.TABLE)
        connection.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
        connection.execute("CREATE PUBLICATION bench FOR TABLE orders WITH (publish_via_partition_root = true)")
        create_base(connection)
        if name == "recent":
            backlog.fill(connection, rows)
        else:
            backlog.fill_scattered(connection, rows, random.Random(1))
        return end_of_backlog(connection)


def _measure(server: PostgresServer, side: str, target: str) -> Figures:
    with slot_to_drain(server), tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--drain", side, "--dsn", server.dsn(), "--target", target]
        return timed([*command, "--path", folder])


class _NewChangelog:
    """A changelog that has no rows yet. Implements `changelog.connectors.sources.Changelog`."""

    def versions(self) -> list[Version]:
        return []

    def rows(self, _entities: Collection[str], _key: str | None) -> Iterator[pa.RecordBatch]:
        return iter(())


def _drain(options: argparse.Namespace) -> None:
    target, path = parse_lsn(options.target), Path(options.path)
    settings = Settings(
        name="bench", dsn=options.dsn, slot="drained", publication="bench", failover=False, hmac_key=b""
    )
    changelog = _NewChangelog()

    def open_source(recover: Recover) -> PostgresSource:
        def begin() -> Checkpoint:
            return recover() or first_checkpoint(options.dsn, "drained")

        return PostgresSource(settings, [entity("public")], begin, changelog.versions, changelog.rows)

    state = None
    if options.drain == "with":
        store = RocksStore(path / "state", name="bench", changelog="bench")
        state = BeforeImages(store, lambda: FileLog(path / "log"))
    drain(open_source, FileSink(path / "log"), lambda checkpoint, _: through_lsn(checkpoint) >= target, state)


def _report(results: dict[str, list[Figures]], options: argparse.Namespace) -> None:
    medians = {side: Figures.median(runs) for side, runs in results.items()}
    rows = dict.fromkeys(results, options.rows)
    print(f"{options.rows} changes, medians of {len(results['recent with'])} rounds")
    print_figures(medians, rows)
    ratios = {
        f"{name}_with_over_without": round(medians[f"{name} without"].seconds / medians[f"{name} with"].seconds, 3)
        for name in BACKLOGS
    }
    for name, ratio in ratios.items():
        print(f"{name} {ratio:.2f}")
    if options.json:
        figures = as_json(medians, rows)
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "state", "ratios": ratios, "figures": figures, "machine": machine}))


if __name__ == "__main__":
    main()
