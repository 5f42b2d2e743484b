"""How long a change takes from its commit to a consumer, at a steady pace of writing."""

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
"""Written at the same pace before those that count: a process that drained a backlog just now finds another load."""

_IDS = CHANGES_PER_TRANSACTION // 2
_FIRST_ID = 100_000_000
_ARRIVE_S_MAX = 30.0
_NUMBER = re.compile(rb"\d+")


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """From just before COMMIT was sent until the change was with a consumer, in milliseconds; `per_second` of pace."""

    changes: int
    per_second: float
    p50_ms: float
    p99_ms: float


def latency(dsn: str, topic: Topic, seconds: float) -> Latency:
    """Writes for `seconds` in a process of its own, and reads until all has arrived.

    `changes` counts what was written, the warm-up included. Raises SystemExit when something did not arrive.
    """
    transactions = round((WARM_S + seconds) * TRANSACTIONS_PER_S)
    consumer = topic.consumer(topic.ends())
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "committed"
        writer = subprocess.Popen([sys.executable, "-m", __name__, dsn, str(transactions), str(told)])
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
            raise SystemExit(f"of {transactions} transactions, {len(arrivals)} changes came to {topic.name}")
        committed = np.array(json.loads(told.read_text()))
    return _latency(committed, np.array(arrivals), round(WARM_S * TRANSACTIONS_PER_S))


def _transaction(key: bytes | None) -> int:
    """The number of the transaction, from a key that has the id in whatever format."""
    number = _NUMBER.search(key or b"")
    assert number is not None
    return (int(number[0]) - _FIRST_ID) // _IDS


def _latency(committed: Floats, arrivals: Floats, first: int) -> Latency:
    """`arrivals` are rows of the transaction's number and the time; those before transaction `first` do not count."""
    transactions = arrivals[:, 0].astype(np.int64)
    counted = transactions >= first
    milliseconds = (arrivals[counted, 1] - committed[transactions[counted]]) * 1000
    p50, p99 = np.percentile(milliseconds, [50, 99])
    pace = (len(committed) - first - 1) * CHANGES_PER_TRANSACTION / (committed[-1] - committed[first])
    return Latency(changes=len(arrivals), per_second=float(pace), p50_ms=float(p50), p99_ms=float(p99))


def _write(dsn: str, transactions: int, told: Path) -> None:
    """Commits at an even pace, and tells when each commit was asked for, in seconds since 1970."""
    committed = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        started_at = time.monotonic()
        for number in range(transactions):
            time.sleep(max(0.0, started_at + number / TRANSACTIONS_PER_S - time.monotonic()))
            first = _FIRST_ID + number * _IDS
            with connection.transaction():
                backlog.change(connection, first, first + _IDS - 1)
                committed.append(time.time())
    told.write_text(json.dumps(committed))


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=_write.__doc__)
    _parser.add_argument("dsn")
    _parser.add_argument("transactions", type=int)
    _parser.add_argument("told", type=Path)
    _write(**vars(_parser.parse_args()))
