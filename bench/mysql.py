"""Measures how fast our source reads the binary log of MySQL and MariaDB, and how fast our service publishes it.

Several programs (*sides*) are compared. They run in turn, for several rounds, each time as a new process. These sides
read the same backlog of changes, and do not publish it to Kafka:

- `socket` receives the log without decoding it, so it shows how fast the server can send.
- `raw` is the server's own client, `mysqlbinlog --read-from-remote-server --raw`, or `mariadb-binlog`. It writes the
  log's files, which are links to /dev/null. The side is left out if the program is not on the PATH.
- `ours` is our source with a sink that stores nothing, and `files` is our source with the file log.
- `snapshot` reads the table instead of the log; it is our source, also with a sink that stores nothing.

These sides publish a backlog to Kafka, and are measured in the same way as in `bench/kafka.py`:

- `json` is our service, which publishes each change exactly once.
- `debezium` is Debezium's connector for the server, which publishes each change at least once.

The table has 12 columns. Half of the changes are inserts, and half are updates. By default, there are two backlogs: in
one, each change is a transaction of its own; in the other, each transaction has 1,000 changes, made by one INSERT and
one UPDATE of 500 rows each.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from bench.measure import binlog, throughput
from bench.measure.debezium import HEAP, MysqlDebezium
from bench.measure.drains import Figures, Nowhere, as_json, drain, entity, print_figures, profiled, timed
from bench.measure.publishers import Ours, Publisher, Workspace, end
from bench.measure.throughput import PARTITIONS, PEER, Throughput
from bench.measure.topic import Topic
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.mysql import Flavour, MysqlServer, temporary_server
from changelog.connectors.sinks import Sink
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources import Recover
from changelog.connectors.sources.mysql.admin.server_log import log_end, server_identity
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.mysql.source import MysqlSource
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.position import commit_text

ROWS = 400_000
ROUNDS = 3
TRANSACTION_ROWS = (1, 1000)
FLAVOURS: tuple[Flavour, ...] = ("mysql", "mariadb")
READERS = ("socket", "raw", "ours", "files", "snapshot")
PUBLISHERS = (PEER, "json")
"""Debezium is prepared first, because this inserts a row. Our service publishes this row during its own preparation. In
the other order, it would publish the row together with the backlog.
"""
CLIENTS: Mapping[Flavour, Sequence[str]] = {
    "mysql": ["mysqlbinlog", "--no-defaults", "--ssl-mode=DISABLED"],
    "mariadb": ["mariadb-binlog", "--no-defaults", "--skip-ssl"],
}
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
    sides = options.side or [*READERS, *PUBLISHERS]
    flavours: list[Flavour] = options.flavour or list(FLAVOURS)
    if PEER in sides:
        for flavour in flavours:
            throughput.fetched(f"debezium-{flavour}")  # if it is missing, this fails before the other sides run
    results: dict[str, dict[str, object]] = {"ratios": {}, "figures": {}}
    readers = [side for side in READERS if side in sides]
    publishers = [side for side in PUBLISHERS if side in sides]
    with throughput.warm_broker() if publishers else nullcontext() as broker:
        for flavour in flavours:
            for rows in options.transaction or TRANSACTION_ROWS:
                name = f"{flavour}_{rows}"
                print(f"{flavour}: {options.rows:,} changes, {rows} in a transaction, medians of {_rounds(options)}")
                if readers:
                    figures = _read(flavour, rows, readers, options)
                    results["figures"][f"read_{name}"] = as_json(figures, _rows(options))
                    _add_ratios(results["ratios"], name, dict(_ratios(figures)))
                if broker is not None:
                    medians = _published(flavour, rows, publishers, broker, options)
                    results["figures"][f"published_{name}"] = throughput.as_json(medians)
                    _add_ratios(results["ratios"], name, throughput.ratios(medians, {"json": "ours"}))
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "mysql", **results, "machine": machine}))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help="changes in the backlog")
    parser.add_argument(
        "--transaction", type=int, action="append", metavar="ROWS", help="changes of each transaction; may be repeated"
    )
    parser.add_argument("--flavour", choices=FLAVOURS, action="append", help="run only this server; may be repeated")
    parser.add_argument(
        "--side", choices=[*READERS, *PUBLISHERS], action="append", help="run only this side; may be repeated"
    )
    parser.add_argument("--rounds", type=int, help=f"how often each side runs (default: {ROUNDS}; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="run only one round")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    parser.add_argument("--heap", default=HEAP, help="heap of Debezium's JVM, in the format of -Xmx (%(default)s)")
    parser.add_argument("--profile", metavar="FILE", help="write cProfile's figures of one --side to FILE")
    parser.add_argument("--drain", choices=set(READERS) - {"raw"}, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    return parser.parse_args()


def _rounds(options: argparse.Namespace) -> int:
    return options.rounds or (1 if options.quick or options.profile else ROUNDS)


def _add_ratios(ratios: dict[str, object], backlog: str, added: Mapping[str, float]) -> None:
    for name, ratio in added.items():
        ratios[f"{name}_{backlog}"] = round(ratio, 3)
        print(f"{name}_{backlog} {ratio:.3f}", flush=True)


def _rows(options: argparse.Namespace) -> dict[str, int]:
    """Returns how many rows each side reads. `snapshot` reads the table, which has a row for each insert."""
    return {side: options.rows // 2 if side == "snapshot" else options.rows for side in READERS}


def _read(flavour: Flavour, transaction: int, sides: Sequence[str], options: argparse.Namespace) -> dict[str, Figures]:
    """Measures the sides that read a backlog, and publish nothing to Kafka."""
    program = CLIENTS[flavour][0]
    if "raw" in sides and shutil.which(program) is None:
        print(f"{program} is not on the PATH, so the side raw is left out")
        sides = [side for side in sides if side != "raw"]
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    with temporary_server(flavour, settings=SERVER_SETTINGS) as server:
        begin = _backlog(server, options.rows, transaction)
        for _ in range(_rounds(options)):
            for side in sides:
                runs[side].append(_measure(server, side, begin, options))
    figures = {side: Figures.median(side_runs) for side, side_runs in runs.items()}
    print_figures(figures, _rows(options))
    return figures


def _ratios(figures: dict[str, Figures]) -> Iterator[tuple[str, float]]:
    """Yields the ratios of rows/s, each with its name."""
    for base in ("raw", "socket"):
        for side in ("ours", "files"):
            if {base, side} <= figures.keys():
                yield f"{side}_over_{base}", figures[base].seconds / figures[side].seconds


def _published(
    flavour: Flavour, transaction: int, sides: Sequence[str], broker: Broker, options: argparse.Namespace
) -> dict[str, Throughput]:
    """Measures the sides that publish to Kafka. Each round has a new database server; all sides publish its log."""
    runs: dict[str, list[Throughput]] = {side: [] for side in sides}
    for number in range(_rounds(options)):
        with (
            temporary_server(flavour, settings=SERVER_SETTINGS) as server,
            tempfile.TemporaryDirectory(prefix="changelog-bench-") as folder,
            server.connect() as session,
        ):
            binlog.create(session)
            publishers: dict[str, tuple[Workspace, Publisher]] = {}
            for side in sides:
                workspace = _workspace(f"{side}_{flavour}_{transaction}_{number}", server, broker, Path(folder))
                publishers[side] = workspace, _publisher(side, workspace, server, options)
                publishers[side][1].prepare()
            binlog.fill(session, options.rows, transaction)
            for side, (workspace, publisher) in publishers.items():
                runs[side].append(_publish(workspace, publisher, server, options.rows))
    medians = {side: throughput.median(side_runs) for side, side_runs in runs.items()}
    throughput.print_table(medians)
    return medians


def _workspace(name: str, server: MysqlServer, broker: Broker, folder: Path) -> Workspace:
    (folder / name).mkdir()
    return Workspace(
        name=name,
        dsn=f"mysql://root@{server.host}:{server.port}/{binlog.DATABASE}?ssl-mode=DISABLED",
        table="orders",
        broker=broker,
        partitions=PARTITIONS,
        folder=folder / name,
    )


def _publisher(side: str, workspace: Workspace, server: MysqlServer, options: argparse.Namespace) -> Publisher:
    if side == PEER:
        jars = throughput.fetched(f"debezium-{server.flavour}") / "lib"
        return MysqlDebezium(workspace, jars, server, heap=options.heap)
    return Ours(workspace, profile=Path(options.profile) if options.profile else None)


def _publish(workspace: Workspace, publisher: Publisher, server: MysqlServer, rows: int) -> Throughput:
    """Measures one side in one round. Its topic already has the messages that its preparation has published."""
    topic = Topic(workspace.broker.bootstrap_servers, publisher.topic, PARTITIONS)
    before = topic.count()
    with server.connect() as session:
        binlog.end_readers(session)
        process = publisher.start()
        try:
            figures = throughput.drain(
                process, workspace, topic, rows, database_pid=server.pid, is_read=lambda: bool(binlog.readers(session))
            )
        finally:
            end(process)
    if (stored := topic.count() - before) != rows:
        raise SystemExit(f"{rows} changes were written, but {stored} are in {topic.name}")
    topic.delete()
    return figures


def _backlog(server: MysqlServer, rows: int, transaction: int) -> str:
    """Writes the backlog. Returns, as JSON, where the backlog begins in the server's log."""
    with server.connect() as session:
        binlog.create(session)
    with _settings(server.port).connect() as connection:
        end = log_end(connection.query, connection.version)
        identity, name = server_identity(connection.query, connection.version), connection.flavour
    with server.connect(binlog.DATABASE) as session:
        binlog.fill(session, rows, transaction)
    place = {"file": end.file, "offset": end.offset, "gtids": end.gtids.text, "server": identity}
    return json.dumps({**place, "through": end.coordinate, "flavour": server.flavour, "name": name})


def _measure(server: MysqlServer, side: str, begin: str, options: argparse.Namespace) -> Figures:
    folder = tempfile.mkdtemp()
    arguments = ["--drain", side, "--port", str(server.port), "--begin", begin, "--path", folder]
    arguments += ["--rows", str(options.rows)]
    if options.profile is not None:
        arguments += ["--profile", options.profile]
    try:
        if side == "raw":
            return timed(_raw(server, json.loads(begin), folder))
        return timed([sys.executable, __file__, *arguments])
    finally:
        shutil.rmtree(folder)


def _raw(server: MysqlServer, begin: dict[str, str], folder: str) -> list[str]:
    """Returns the command line of the server's own client. Each file that it will write is made a link to /dev/null."""
    with server.connect() as session, session.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        for file, *_ in cursor.fetchall():
            (Path(folder) / file).symlink_to("/dev/null")
    return [
        *CLIENTS[server.flavour], "--read-from-remote-server", "--raw", f"--result-file={folder}/", "--to-last-log",
        f"--host={server.host}", f"--port={server.port}", "--user=root", f"--start-position={begin['offset']}",
        begin["file"],
    ]  # fmt: skip


def _settings(port: int) -> Settings:
    return Settings(
        name="bench", dsn=f"mysql://root@127.0.0.1:{port}/{binlog.DATABASE}?ssl-mode=DISABLED", hmac_key=b""
    )


def _drain(options: argparse.Namespace) -> None:
    settings, begin = _settings(options.port), options.begin
    if options.drain == "socket":
        with MysqlServer(begin["flavour"], Path(), Path(), port=options.port).connect() as session:
            seconds = binlog.raw_drain(session, begin["flavour"], begin["file"], begin["offset"])
        print(json.dumps({"seconds": seconds}))
        return
    first = None if options.drain == "snapshot" else _checkpoint(begin)

    def open_source(recover: Recover) -> MysqlSource:
        return MysqlSource(settings, [entity(binlog.DATABASE)], lambda: recover() or first)

    def is_drained(_: Checkpoint, rows: int) -> bool:
        return rows >= int(options.rows)

    def is_read(checkpoint: Checkpoint, _: int) -> bool:
        return bool(checkpoint.windows.get("orders", {}).get("complete"))

    sink: Sink = FileSink(Path(options.path)) if options.drain == "files" else Nowhere()
    drain(open_source, sink, is_read if options.drain == "snapshot" else is_drained)


def _checkpoint(begin: dict[str, str]) -> Checkpoint:
    """Returns a checkpoint at the beginning of the backlog. According to it, the table has been read completely."""
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
