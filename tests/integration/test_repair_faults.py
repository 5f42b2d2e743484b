"""Tests that a repair of a table is done exactly once while rows are written to the table. The service is killed at
each fail point in turn.

A *ghost* is a row that the changelog holds and the table lacks. A repair reads the table again. Then a *sweep* searches
the changelog for ghosts, and deletes them. A *fail point* is a step of the service at which a test can kill the
service.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.capture.table_reads import FAIL_POINTS
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sinks.files.log import read_log
from changelog.envelope.signal import Do, Signal
from tests.campaigns._repaired import Pair, written_to
from tests.patience import PATIENCE_S
from tests.servers import SETTINGS, fresh_database

ROWS = 1_000

REBUILD = (
    "signal:heard",
    "reading:planned",
    "window:begun",
    "window:read",
    "window:marked:2",  # between two chunks
    "reading:complete",  # the table is read
    "sweep:read",
    "sweep:found",
    "window:marked",  # while the ghosts are looked up in the table
    "sweep:published",
    "reading:complete",  # the ghosts are deleted
)
REPUBLISH = (
    "window:marked",
    "reading:complete",  # the keys are looked up in the table
    "sweep:published",  # the keys that the table lacks are deleted
)
"""The service is killed at the first fail point of a list, restarted, killed at the next one, and so on. `:N` means the
N-th time that the service passes the fail point.
"""

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def own_server(starts_servers: None) -> Iterator[PostgresServer]:
    """A server that only this module uses. On a shared server, the service's snapshots would wait for other tests'
    transactions.
    """
    with temporary_server(settings=SETTINGS) as server:
        yield server


@pytest.fixture
def pair(own_server: PostgresServer, tmp_path: Path) -> Iterator[Pair]:
    """A stopped service whose changelog holds the whole table."""
    with fresh_database(own_server) as dsn:
        stopped_pair = Pair("places", dsn, tmp_path, ROWS, pages=2, workers=1)
        try:
            stopped_pair.begin(PATIENCE_S)
            stopped_pair.service.stop()
            yield stopped_pair
        finally:
            stopped_pair.service.kill()


def test_every_fail_point_of_a_repair_is_tested() -> None:
    assert {point.removesuffix(":2") for point in REBUILD} == set(FAIL_POINTS)


@pytest.mark.parametrize(("do", "points"), [("rebuild", REBUILD), ("republish", REPUBLISH)])
def test_a_repair_is_completed_after_a_crash_at_each_fail_point(
    pair: Pair, do: Do, points: Sequence[str], seed: int
) -> None:
    rng = random.Random(seed)
    spoiled_keys = pair.spoil(rng)
    ghosts = [key for key in spoiled_keys if int(key) >= 10 * ROWS]
    start = pair.position
    with written_to(pair, rng.randrange(1 << 32), pause_s=0.1):
        keys = None if do == "rebuild" else tuple(spoiled_keys)
        ids = pair.ask([Signal(do=do, id="asked", entity="row", keys=keys)])
        for point in points:
            pair.service.start(point)
            assert pair.service.wait(PATIENCE_S), f"{point} was not reached"
            pair.orderly(start)
        pair.service.start()
        pair.until_ended(ids, PATIENCE_S)
    pair.until_ended(ids, PATIENCE_S)
    assert pair.judge(start) >= len(ghosts) > 0
    pair.service.stop()


def test_a_sweep_does_not_delete_keys_that_a_truncate_has_removed(pair: Pair, seed: int) -> None:
    """The sweep has read the changelog before the TRUNCATE, and looks up the keys in the table after the TRUNCATE."""
    pair.spoil(random.Random(seed))
    ids = pair.ask([Signal(do="rebuild", id="asked", entity="row")])
    pair.service.start("sweep:read")
    assert pair.service.wait(PATIENCE_S)
    with psycopg.connect(pair.dsn) as holder, psycopg.connect(pair.dsn, autocommit=True) as writer:
        holder.execute("SELECT pg_current_xact_id()")
        pair.service.start()
        pair.service.until_said("snapshot waits for older transactions to end", PATIENCE_S)
        truncated_at = pair.position
        writer.execute("TRUNCATE row")
        writer.execute("INSERT INTO row VALUES (1, nextval('versions'), 'again')")
        holder.commit()
        pair.until_ended(ids, PATIENCE_S)
    ops = {op for rows in read_log(pair.path, after=truncated_at) for op in rows.column("op").to_pylist()}
    assert ops == {"truncate", "create", "update"}
    pair.service.stop()
