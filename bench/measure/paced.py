"""Writes changes at a steady pace, and measures how long they take from their commit until a consumer has them."""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psycopg
from confluent_kafka import KafkaError

from bench.measure import backlog
from bench.measure.topic import Topic

TRANSACTIONS_PER_S = 200
CHANGES_PER_TRANSACTION = 10
WARM_S = 5.0
"""For how many seconds changes are written before latency is measured. The measured process has just published a
backlog as fast as it could, and needs time to get used to a steady pace.
"""

_IDS = CHANGES_PER_TRANSACTION // 2
_FIRST_ID = 100_000_000
_ARRIVE_S_MAX = 30.0
_NUMBER = re.compile(rb"\d+")


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles of the time from just before COMMIT was sent until a consumer had the change.

    `changes` says how many changes were written in all, and `per_second` how many were really written in a second.
    """

    changes: int
    per_second: float
    p50_ms: float
    p99_ms: float


def latency(dsn: str, topic: Topic, seconds: float) -> Latency:
    """Writes changes in another process, for `WARM_S` + `seconds` seconds, and reads the topic until all have arrived.

    The percentiles leave out the changes of the first `WARM_S` seconds, but `changes` in the result counts them, too.
    Raises SystemExit if a change does not arrive.
    """
    transactions = round((WARM_S + seconds) * TRANSACTIONS_PER_S)
    consumer = topic.consumer(topic.ends())
    with tempfile.TemporaryDirectory() as folder:
        times_file = Path(folder) / "committed"
        writer = subprocess.Popen([sys.executable, "-m", __name__, dsn, str(transactions), str(times_file)])
        arrivals: list[tuple[int, float]] = []
        deadline = time.monotonic() + WARM_S + seconds + _ARRIVE_S_MAX
        while len(arrivals) < transactions * CHANGES_PER_TRANSACTION and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            now = time.time()
            error = None if message is None else message.error()
            if message is None or (error is not None and error.code() == KafkaError._PARTITION_EOF):
                continue
            if error is not None:
                raise SystemExit(f"{topic.name} cannot be read: {error}")
            arrivals.append((_transaction(message.key()), now))
        consumer.close()
        if writer.wait(_ARRIVE_S_MAX) != 0 or len(arrivals) < transactions * CHANGES_PER_TRANSACTION:
            raise SystemExit(f"{len(arrivals)} changes of {transactions} transactions arrived in {topic.name}: too few")
        committed = np.array(json.loads(times_file.read_text()))
    return _latency(committed, np.array(arrivals), round(WARM_S * TRANSACTIONS_PER_S))


def _transaction(key: bytes | None) -> int:
    """Returns the number of the transaction that wrote the row with this message key.

    Each side writes keys in a format of its own, but in all formats the first number is the row's id.
    """
    number = _NUMBER.search(key or b"")
    assert number is not None
    return (int(number[0]) - _FIRST_ID) // _IDS


def _latency(committed: Floats, arrivals: Floats, first: int) -> Latency:
    """Returns the percentiles for the changes from the transaction `first` on.

    `committed` has the time at which each COMMIT was sent. A row of `arrivals` is for one change: it has the number of
    the change's transaction, and the time at which the change arrived.
    """
    transactions = arrivals[:, 0].astype(np.int64)
    counted = transactions >= first
    milliseconds = (arrivals[counted, 1] - committed[transactions[counted]]) * 1000
    p50, p99 = np.percentile(milliseconds, [50, 99])
    pace = (len(committed) - first - 1) * CHANGES_PER_TRANSACTION / (committed[-1] - committed[first])
    return Latency(changes=len(arrivals), per_second=float(pace), p50_ms=float(p50), p99_ms=float(p99))


def _write(dsn: str, transactions: int, times_file: Path) -> None:
    """Commits transactions at an even pace. Writes into a file when each COMMIT was sent, in seconds since 1970."""
    committed = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        started_at = time.monotonic()
        for number in range(transactions):
            time.sleep(max(0.0, started_at + number / TRANSACTIONS_PER_S - time.monotonic()))
            first = _FIRST_ID + number * _IDS
            with connection.transaction():
                backlog.change(connection, first, first + _IDS - 1)
                committed.append(time.time())
    times_file.write_text(json.dumps(committed))


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=_write.__doc__)
    _parser.add_argument("dsn")
    _parser.add_argument("transactions", type=int)
    _parser.add_argument("times_file", type=Path)
    _write(**vars(_parser.parse_args()))
