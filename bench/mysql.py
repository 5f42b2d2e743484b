"""Measures how fast a backlog is drained from the binary log of MySQL and MariaDB, and how fast a table is read.

The sides run in turn, for several rounds, each time as a new process:

- `raw` receives the log from a socket and looks at nothing, so it shows what the server can send at most.
- `mysqlbinlog` is the server's own client: `mysqlbinlog --read-from-remote-server --raw`, which writes to a file. The
  side is left out if the program is not on the PATH, and for MariaDB, which MySQL 9's program cannot log in to.
- `ours` is our source with a sink that stores nothing, and `files` is our source with the file log.
- `snapshot` is our source with a sink that stores nothing, and reads the table instead of the log.

Half of the changes are inserts, half updates, on a table of 12 columns. Peak memory is that of the whole process.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measure import binlog
from bench.measure.drains import Figures, Nowhere, as_json, drain, entity, print_figures, profiled, timed
from changelog.connectors.servers.mysql import Flavour, Server, temporary_server
from changelog.connectors.sinks import Sink
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources import Recover
from changelog.connectors.sources.mysql.admin.server_log import LogEnd, log_end, server_identity
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.source import MysqlSource
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.position import commit_text

ROWS = 400_000
ROUNDS = 3
TRANSACTION_ROWS = 1000
FLAVOURS: tuple[Flavour, ...] = ("mysql", "mariadb")
SIDES = ("raw", "mysqlbinlog", "ours", "files", "snapshot")
SERVER_SETTINGS = {
    "innodb_flush_method": "nosync", "innodb_buffer_pool_size": "1G", "sync_binlog": "0", "performance_schema": "OFF",
    "innodb_flush_log_at_trx_commit": "0", "max_binlog_size": "1G",
}  # fmt: skip


def main() -> None:
    """Runs the benchmark. The benchmark starts itself again with --drain, which runs a single side in a new process."""
    options = _parse_args()
    if options.drain is not None:
        profiled(options.profile, _drain, options)
        return
    results = {flavour: _measured(flavour, options) for flavour in options.flavour or FLAVOURS}
    if options.json:
        ratios = {
            f"{name}_{flavour}": round(ratio, 3)
            for flavour, figures in results.items()
            for name, ratio in _ratios(figures)
        }
        shown = {flavour: as_json(figures, _rows(options)) for flavour, figures in results.items()}
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "mysql", "ratios": ratios, "figures": shown, "machine": machine}))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="changes in the backlog")
    parser.add_argument("--transaction", type=int, default=TRANSACTION_ROWS, help="changes of each transaction")
    parser.add_argument("--flavour", choices=FLAVOURS, action="append", help="only this server")
    parser.add_argument("--side", choices=SIDES, action="append", help="only this side")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    parser.add_argument("--profile", metavar="FILE", help="with one --side: file for cProfile's figures")
    parser.add_argument("--drain", choices=set(SIDES) - {"mysqlbinlog"}, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    return parser.parse_args()


def _rows(options: argparse.Namespace) -> dict[str, int]:
    """Returns how many rows each side reads. The table has a row for each insert."""
    return {side: options.rows // 2 if side == "snapshot" else options.rows for side in SIDES}


def _measured(flavour: Flavour, options: argparse.Namespace) -> dict[str, Figures]:
    sides = options.side or [side for side in SIDES if side != "mysqlbinlog" or _has_client(flavour)]
    rounds = 1 if options.quick or options.profile else ROUNDS
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    with temporary_server(flavour, settings=SERVER_SETTINGS) as server:
        begin = _backlog(server, options)
        for _ in range(rounds):
            for side in sides:
                runs[side].append(_measure(server, side, begin, options.profile))
    figures = {side: Figures.median(side_runs) for side, side_runs in runs.items()}
    print(f"{flavour}: {options.rows} changes, {options.transaction} in a transaction, medians of {rounds} rounds")
    print_figures(figures, _rows(options))
    for name, ratio in _ratios(figures):
        print(f"{name}_{flavour} {ratio:.2f}", flush=True)
    return figures


def _ratios(figures: dict[str, Figures]) -> Iterator[tuple[str, float]]:
    """Yields the name of each ratio of rows/s, and the ratio."""
    for base in figures.keys() & {"raw", "mysqlbinlog"}:
        for side in figures.keys() & {"ours", "files"}:
            yield f"{side}_over_{base}", figures[base].seconds / figures[side].seconds


def _backlog(server: Server, options: argparse.Namespace) -> str:
    """Writes the backlog; returns where it begins in the log."""
    with server.connect() as session:
        binlog.create(session)
    with _settings(server.port).connect() as connection:
        end = log_end(connection.query, connection.version)
        identity, name = server_identity(connection.query, connection.version), connection.flavour
    with server.connect(binlog.DATABASE) as session:
        binlog.fill(session, options.rows, options.transaction)
    place = {"file": end.file, "offset": end.offset, "gtids": end.gtids.text, "server": identity}
    return json.dumps({**place, "through": end.coordinate, "flavour": server.flavour, "name": name})


def _measure(server: Server, side: str, begin: str, profile: str | None) -> Figures:
    folder = tempfile.mkdtemp()
    arguments = ["--drain", side, "--port", str(server.port), "--begin", begin, "--path", folder]
    if profile is not None:
        arguments += ["--profile", profile]
    try:
        if side == "mysqlbinlog":
            return timed(_mysqlbinlog(server, json.loads(begin), folder))
        return timed([sys.executable, __file__, *arguments])
    finally:
        shutil.rmtree(folder)


def _has_client(flavour: Flavour) -> bool:
    return flavour == "mysql" and shutil.which("mysqlbinlog") is not None


def _mysqlbinlog(server: Server, begin: dict[str, str], folder: str) -> list[str]:
    return [
        "mysqlbinlog", "--no-defaults", "--read-from-remote-server", "--raw", "--ssl-mode=DISABLED",
        f"--host={server.host}", f"--port={server.port}", "--user=root", f"--result-file={folder}/",
        f"--start-position={begin['offset']}", begin["file"],
    ]  # fmt: skip


def _settings(port: int) -> Settings:
    return Settings(name="bench", dsn=f"mysql://root@127.0.0.1:{port}/{binlog.DATABASE}", hmac_key=b"")


def _drain(options: argparse.Namespace) -> None:
    settings, begin = _settings(options.port), options.begin
    if options.drain == "raw":
        with Server(begin["flavour"], Path(), Path(), port=options.port).connect() as session:
            seconds = binlog.raw_drain(session, begin["flavour"], begin["file"], begin["offset"])
        print(json.dumps({"seconds": seconds}))
        return
    with settings.connect() as connection:
        end: LogEnd = log_end(connection.query, connection.version)
    first = None if options.drain == "snapshot" else _checkpoint(begin)

    def open_source(recover: Recover) -> MysqlSource:
        return MysqlSource(settings, [entity(binlog.DATABASE)], lambda: recover() or first)

    def is_drained(checkpoint: Checkpoint) -> bool:
        return int(checkpoint.through, 16) >= end.coordinate

    def is_read(checkpoint: Checkpoint) -> bool:
        return bool(checkpoint.windows.get("orders", {}).get("complete"))

    sink: Sink = FileSink(Path(options.path)) if options.drain == "files" else Nowhere()
    drain(open_source, sink, is_read if options.drain == "snapshot" else is_drained)


def _checkpoint(begin: dict[str, str]) -> Checkpoint:
    """Returns the checkpoint of a changelog whose table was read completely before the backlog."""
    return Checkpoint(
        position=None,
        through=commit_text(int(begin["through"])),
        epoch=1,
        source={
            "server": begin["server"],
            "gtids": begin["gtids"],
            "database": binlog.DATABASE,
            "flavour": begin["name"],
        },
        windows={"orders": {"complete": True}},
    )


if __name__ == "__main__":
    main()
