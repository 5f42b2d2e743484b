"""Measures how long it takes to drain a backlog: to read all its changes from a replication slot.

Three programs (*sides*) are compared: `pg_recvlogical`, which writes to /dev/null; `ours`, our source with a sink that
stores nothing; and `files`, our source with the file log. They run in turn, for several rounds, each time as a new
process on a new copy of the same slot. The table has 12 columns and REPLICA IDENTITY FULL. Half of the changes are
inserts, and half are updates.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg

from bench.measure import backlog
from bench.measure.drains import Figures, Nowhere, as_json, drain, entity, print_figures, profiled, timed
from bench.measure.slots import DRAINED, create_base, end_of_backlog, first_checkpoint, slot_to_drain
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sinks import Sink
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources import Recover
from changelog.connectors.sources.postgres.settings import Settings
from changelog.connectors.sources.postgres.source import PostgresSource
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn

ROWS = 400_000
ROUNDS = 3
SIDES = ("pg_recvlogical", "ours", "files")

PUBLICATION = "CREATE PUBLICATION bench FOR TABLE orders WITH (publish_via_partition_root = true)"


def main() -> None:
    """Runs the benchmark. The benchmark starts itself again with --drain, which runs a single side in a new process."""
    options = _parse_args()
    if options.drain is not None:
        profiled(options.profile, _drain, options)
        return
    rounds = 1 if options.quick else ROUNDS
    with temporary_server(settings={"fsync": "off", "max_wal_size": "8GB", "wal_sender_timeout": "0"}) as server:
        target = _backlog(server, options.rows)
        results: dict[str, list[Figures]] = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side in SIDES:
                results[side].append(_measure(server, side, target))
    _report(results, options)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="changes in the backlog")
    parser.add_argument("--quick", action="store_true", help="run only one round")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    parser.add_argument("--profile", metavar="FILE", help="with the hidden --drain: write cProfile's figures to FILE")
    parser.add_argument("--drain", choices=SIDES[1:], help=argparse.SUPPRESS)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    parser.add_argument("--slot", help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    return parser.parse_args()


def _backlog(server: PostgresServer, rows: int) -> str:
    """Writes the backlog. Returns the LSN at its end."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(backlog.TABLE)
        connection.execute(PUBLICATION)
        create_base(connection)
        backlog.fill(connection, rows)
        return end_of_backlog(connection)


def _measure(server: PostgresServer, side: str, target: str) -> Figures:
    with slot_to_drain(server), tempfile.TemporaryDirectory() as folder:
        if side == "pg_recvlogical":
            command = [
                str(server.bin_dir / "pg_recvlogical"), "--dbname", server.dsn(), "--slot", DRAINED, "--start",
                "--endpos", target, "--file", "/dev/null", "--no-loop",
                "-o", "proto_version=4", "-o", "publication_names=bench", "-o", "messages=true",
            ]  # fmt: skip
        else:
            command = [
                sys.executable, __file__, "--drain", side, "--dsn", server.dsn(), "--slot", DRAINED,
                "--target", target, "--path", folder,
            ]  # fmt: skip
        return timed(command)


def _drain(options: argparse.Namespace) -> None:
    target = parse_lsn(options.target)
    sink: Sink = Nowhere() if options.drain == "ours" else FileSink(Path(options.path))
    drain(_opener(options), sink, lambda checkpoint, _: through_lsn(checkpoint) >= target)


def _opener(options: argparse.Namespace) -> Callable[[Recover], PostgresSource]:
    """Returns a function that opens the source at the beginning of the backlog, as if the table had been read."""
    settings = Settings(
        name="bench", dsn=options.dsn, slot=options.slot, publication="bench", failover=False, hmac_key=b""
    )

    def open_source(recover: Recover) -> PostgresSource:
        return PostgresSource(
            settings, [entity("public")], lambda: recover() or first_checkpoint(options.dsn, options.slot)
        )

    return open_source


def _report(results: dict[str, list[Figures]], options: argparse.Namespace) -> None:
    medians = {side: Figures.median(runs) for side, runs in results.items()}
    rows = dict.fromkeys(SIDES, options.rows)
    print(f"{options.rows} changes, medians of {len(results['ours'])} rounds")
    print_figures(medians, rows)
    base = medians["pg_recvlogical"].seconds
    ratios = {
        "ours_over_pg_recvlogical": round(base / medians["ours"].seconds, 3),
        "files_over_pg_recvlogical": round(base / medians["files"].seconds, 3),
    }
    for name, ratio in ratios.items():
        print(f"{name} {ratio:.2f}")
    if options.json:
        figures = as_json(medians, rows)
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "postgres", "ratios": ratios, "figures": figures, "machine": machine}))


if __name__ == "__main__":
    main()
