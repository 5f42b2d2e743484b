"""A repair whose service is killed at each named place in turn, under writes: in the end it is done, and done once."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.servers.postgres import Server, temporary_server
from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sources.postgres.snapshot.table_reads import FAIL_POINTS
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
    "window:marked",  # the ghosts are looked up
    "sweep:published",
    "reading:complete",  # and deleted
)
REPUBLISH = (
    "window:marked",
    "reading:complete",  # the keys are looked up
    "sweep:published",  # those that are not there are deleted
)
"""Where the service crashes, `:N` at the N-th time; then it is started again, to crash at the next place."""

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def alone(starts_servers: None) -> Iterator[Server]:
    """A server of this module's own: other tests' transactions would hold its chunks up."""
    with temporary_server(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def pair(alone: Server, tmp_path: Path) -> Iterator[Pair]:
    """A changelog that has its table; the service is stopped."""
    with fresh_database(alone) as dsn:
        found = Pair("places", dsn, tmp_path, ROWS, pages=2, workers=1)
        try:
            found.begin(PATIENCE_S)
            found.service.stop()
            yield found
        finally:
            found.service.kill()


def test_every_place_is_tried() -> None:
    assert {place.removesuffix(":2") for place in REBUILD} == set(FAIL_POINTS)


@pytest.mark.parametrize(("do", "places"), [("rebuild", REBUILD), ("republish", REPUBLISH)])
def test_a_repair_is_ended_whatever_place_it_is_killed_at(pair: Pair, do: Do, places: Sequence[str], seed: int) -> None:
    rng = random.Random(seed)
    spoilt = pair.spoil(rng)
    ghosts = [key for key in spoilt if int(key) >= 10 * ROWS]
    begun = pair.position
    with written_to(pair, rng.randrange(1 << 32), pause_s=0.1):
        keys = None if do == "rebuild" else tuple(spoilt)
        asked = pair.ask([Signal(do=do, id="asked", entity="row", keys=keys)])
        for place in places:
            pair.service.start(place)
            assert pair.service.wait(PATIENCE_S), f"{place} was not reached"
            pair.orderly(begun)
        pair.service.start()
        pair.until_ended(asked, PATIENCE_S)
    pair.until_ended(asked, PATIENCE_S)
    assert pair.judge(begun) >= len(ghosts) > 0
    pair.service.stop()


def test_a_sweep_does_not_delete_again_what_a_truncate_has_emptied(pair: Pair, seed: int) -> None:
    """The TRUNCATE is delivered after the changelog was looked through, and before its keys are looked up."""
    pair.spoil(random.Random(seed))
    asked = pair.ask([Signal(do="rebuild", id="asked", entity="row")])
    pair.service.start("sweep:read")
    assert pair.service.wait(PATIENCE_S)
    with psycopg.connect(pair.dsn) as holder, psycopg.connect(pair.dsn, autocommit=True) as writer:
        holder.execute("SELECT pg_current_xact_id()")
        pair.service.start()
        pair.service.until_said("snapshot waits for older transactions to end", PATIENCE_S)
        emptied = pair.position
        writer.execute("TRUNCATE row")
        writer.execute("INSERT INTO row VALUES (1, nextval('versions'), 'again')")
        holder.commit()
        pair.until_ended(asked, PATIENCE_S)
    ops = {op for rows in read_log(pair.path, after=emptied) for op in rows.column("op").to_pylist()}
    assert ops == {"truncate", "create", "update"}
    pair.service.stop()
