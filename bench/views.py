"""Measures how long a served view takes to find one row or a page of rows. Such a view has the current rows of an
entity, and answers requests over HTTP.

The changelog has a million changes of 100,001 orders. By default, all changes are in the log, in commits of 10,000
changes. With `--archived`, the changes of 99 of 100 days are in an archive, and only the last day is in the log. One
process reads random keys in four ways. *scan* searches the changelog with `FileLog.read_key`. *first* asks the engine
of served views for a key that the engine has not read yet. *again* asks for the same key once more. *http* asks over
HTTP, for the row of a key or for a page of 100 rows. Before *first*, the engine reads the files of the log (*start*).
All figures come from one run, so their ratios are useful even on a busy machine. CPU times are those of the whole
process.
"""

import argparse
import http.client
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.archived.changes import World
from bench.archived.files import write, write_log
from changelog.connectors import config
from changelog.connectors.sinks.files.log import FileLog
from changelog.connectors.views.files.engine import FileEngine
from changelog.connectors.views.serving import serving_views

CHANGES, QUICK_CHANGES, CHANGES_A_KEY = 1_000_000, 100_000, 10
KEYS, SCANNED_KEYS, PAGES = 1_000, 20, 100

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
sink = { path = "." }
tables = { include = ["*"] }
serve = { port = 0 }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How long a read takes in one of the ways. `times_faster` is the median of *scan*, divided by `p50_ms`."""

    read: str
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    times_faster: float


def main() -> None:
    """Writes the changelog, and prints the figures of each way to read it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, help=f"number of changes: {CHANGES:,}, with --quick {QUICK_CHANGES:,}")
    parser.add_argument("--archived", action="store_true", help="put 99 of 100 days into an archive")
    parser.add_argument("--quick", action="store_true", help="write fewer changes")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    changes = options.changes or (QUICK_CHANGES if options.quick else CHANGES)
    world = World(changes, changes // CHANGES_A_KEY + 1)
    keys = [f"{number:010}" for number in random.Random(1).sample(range(world.key_count), KEYS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if options.archived:
            write(path, world)
        else:
            write_log(path, world, 0)
        (path / "changelog.toml").write_text(CONFIG, "utf-8")
        figures = list(measure(path, keys))
    for line in figures:
        print(
            f"{line.read:28}p50 {line.p50_ms:>9.3f} ms, p99 {line.p99_ms:>9.3f} ms, {line.cpu_ms:>9.3f} ms of CPU, "
            f"{line.times_faster:>8.1f} times faster than the scan"
        )
    if options.json:
        print(json.dumps([asdict(line) for line in figures]))


def measure(path: Path, keys: Sequence[str]) -> Iterator[Figures]:
    """Yields the figures of all ways to read these keys. The scan comes first."""
    log, engine = FileLog(path), FileEngine(path)
    view = engine.view("order")
    scan = timed("scan", keys[:SCANNED_KEYS], lambda key: list(log.read_key("order", key)))
    yield scan
    yield timed("start", [""], lambda _: view.now(), scan)
    yield timed("first", keys, lambda key: view.now().get(key), scan)
    yield timed("again", keys, lambda key: view.now().get(key), scan)
    with serving_views(config.load(path / "changelog.toml", {})) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        with closing(http.client.HTTPConnection(*server.socket.getsockname())) as connection:

            def get(target: str) -> None:
                connection.request("GET", target)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == http.HTTPStatus.OK

            for turn in ("first", "again"):
                yield timed(f"http, {turn}", keys, lambda key: get(f"/order/{key}"), scan)
            for turn in ("first", "again"):
                pages = keys[:PAGES]
                yield timed(f"http, page of 100, {turn}", pages, lambda key: get(f"/order?from={key}"), scan)
        server.server.should_exit = True
        thread.join()


def timed(name: str, keys: Sequence[str], read: Callable[[str], object], scan: Figures | None = None) -> Figures:
    """Reads each key, and returns how long one read takes. `scan` has the figures of *scan*, for `times_faster`."""
    began_cpu_s = time.process_time()
    times_ms = []
    for key in keys:
        began_s = time.perf_counter()
        read(key)
        times_ms.append((time.perf_counter() - began_s) * 1e3)
    p50_ms = statistics.median(times_ms)
    return Figures(
        read=name,
        p50_ms=p50_ms,
        p99_ms=sorted(times_ms)[int(0.99 * len(times_ms))],
        cpu_ms=(time.process_time() - began_cpu_s) / len(keys) * 1e3,
        times_faster=1.0 if scan is None else scan.p50_ms / p50_ms,
    )


if __name__ == "__main__":
    main()
