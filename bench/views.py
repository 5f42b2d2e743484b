"""Measures how long a served view takes for one row and for a page of rows, in a changelog of a million changes.

The changes are of 100,000 orders. With `--archived`, 99 of 100 days are in an archive, and the last day is in the log;
otherwise, all are in the log, in commits of 10,000 changes. Random keys are read by `FileLog.read_key` (*scan*), by the
engine whose memory is empty (*first*), by the engine again (*again*), and over HTTP (*http*), all in one process.
Each figure is of the same keys, so their ratios mean something on a busy machine; CPU times are of the whole process.
"""

import argparse
import http.client
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from bench.archived.changes import World
from bench.archived.files import write, write_log
from changelog.connectors import config
from changelog.connectors.sinks.files.log import FileLog
from changelog.connectors.views.files.engine import FileEngine
from changelog.connectors.views.serving import serving_views

CHANGES, CHANGES_A_KEY = 1_000_000, 10
KEYS, SCANNED_KEYS, PAGES = 1_000, 20, 100

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
sink = { path = "." }
tables = { include = ["*"] }
serve = { port = 0 }
"""


def main() -> None:
    """Writes the changelog, and prints a JSON object for each way to read it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--archived", action="store_true", help="with an archive of 99 of 100 days")
    arguments = parser.parse_args()
    world = World(arguments.changes, arguments.changes // CHANGES_A_KEY + 1)
    numbers = random.Random(1).sample(range(world.entities), KEYS)
    keys = [f"{number:010}" for number in numbers]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if arguments.archived:
            write(path, world)
        else:
            write_log(path, world, 0)
        (path / "changelog.toml").write_text(CONFIG, "utf-8")
        measure(path, keys)


def measure(path: Path, keys: Sequence[str]) -> None:
    """Measures all ways to read these keys."""
    log, engine = FileLog(path), FileEngine(path)
    scan_s = timed("scan", keys[:SCANNED_KEYS], lambda key: list(log.read_key("order", key)))
    timed("start", [""], lambda _: engine.view("order").now())
    view = engine.view("order")
    timed("first", keys, lambda key: view.now().get(key), scan_s)
    timed("again", keys, lambda key: view.now().get(key), scan_s)
    with serving_views(config.load(path / "changelog.toml", {})) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        address = server.socket.getsockname()
        with closing(http.client.HTTPConnection(*address)) as connection:

            def get(target: str) -> None:
                connection.request("GET", target)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == http.HTTPStatus.OK

            timed("http, first", keys, lambda key: get(f"/order/{key}"), scan_s)
            timed("http, again", keys, lambda key: get(f"/order/{key}"), scan_s)
            timed("http, page of 100, first", keys[:PAGES], lambda key: get(f"/order?from={key}"), scan_s)
            timed("http, page of 100, again", keys[:PAGES], lambda key: get(f"/order?from={key}"), scan_s)
        server.server.should_exit = True
        thread.join()


def timed(name: str, keys: Sequence[str], read: Callable[[str], object], scan_s: float | None = None) -> float:
    """Reads each key, and prints the times of one read. Returns the median in seconds.

    `scan_s` is the median of the scans, to which the median is compared.
    """
    began_cpu_s = time.process_time()
    times_s = []
    for key in keys:
        began_s = time.perf_counter()
        read(key)
        times_s.append(time.perf_counter() - began_s)
    cpu_s = time.process_time() - began_cpu_s
    median_s = statistics.median(times_s)
    figures = {
        "read": name,
        "reads": len(keys),
        "p50_ms": round(median_s * 1e3, 3),
        "p99_ms": round(sorted(times_s)[int(0.99 * len(times_s))] * 1e3, 3),
        "cpu_ms": round(cpu_s / len(keys) * 1e3, 3),
        **({} if scan_s is None else {"times_faster": round(scan_s / median_s)}),
    }
    print(json.dumps(figures), flush=True)
    return median_s


if __name__ == "__main__":
    main()
