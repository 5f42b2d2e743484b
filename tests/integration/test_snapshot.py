"""Tests, with a real server, what happens if a table is renamed or dropped before the service has read it. The read
must fail with an error of the kind ALTERED, because this error makes the service plan its reads again.
"""

import time
from functools import partial

import psycopg
import pytest

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.chunk_threads import ChunkThreads
from changelog.connectors.capture.tables.windows import Windows
from changelog.connectors.sources.postgres.session.connection import Connection, connect
from changelog.connectors.sources.postgres.snapshot.chunk_reader import ChunkReader, nonce
from changelog.connectors.sources.postgres.snapshot.page_progress import LeafProgress, TableProgress
from changelog.connectors.sources.postgres.snapshot.read_table import ReadTable
from changelog.connectors.sources.postgres.snapshot.table_reads import read_table
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.envelope.errors import ChangelogError, Kind
from tests.patience import PATIENCE_S
from tests.unit.postgres.messages import entity as make_entity


def test_a_rename_before_the_first_chunk_is_an_error_of_the_kind_altered(database: str) -> None:
    with connect(database, settings=SETTINGS) as connection:
        connection.execute("CREATE TABLE public.hall (id int PRIMARY KEY)")
        connection.execute("ALTER TABLE public.hall RENAME TO lobby")
        with pytest.raises(ChangelogError, match=r"table public\.hall of the entity hall disappeared") as raised:
            read_table({"hall": make_entity("hall", "hall")}, b"", connection, "hall")
    assert raised.value.kind is Kind.ALTERED


def _unexpected_bind(_: Connection, entity: str) -> ReadTable:
    raise AssertionError(f"{entity} was bound, although its only leaf has disappeared")


@pytest.mark.parametrize("schema", ["public", "gone"])
def test_a_leaf_that_disappeared_is_an_error_of_the_kind_altered(database: str, schema: str) -> None:
    """A leaf is a partition, or a table without partitions. The plan of this test names a leaf that does not exist, as
    if the leaf had been dropped or renamed after the plan was made. In one case, the leaf's schema does not exist
    either.
    """
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE place (id int PRIMARY KEY)")
    leaf = LeafProgress(filenode=1, pages=1, ranges_left=[(0, None)])
    table = TableProgress(entity="place", signature="", leaves={f'"{schema}"."place_2025"': leaf})
    windows = Windows({"place": table}, horizon=0, nonces=nonce)
    reader = ChunkReader(
        windows,
        Origin(connector="postgres", name="test", database="test"),
        bind=_unexpected_bind,
        connect=partial(connect, database, settings=SETTINGS),
    )
    threads = ChunkThreads(windows, {"place": ("public", "place")}, reader.session, workers=1)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while threads.failure is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        threads.close()
    with pytest.raises(ChangelogError, match='"place_2025" disappeared while it was being read') as raised:
        raise threads.failure
    assert raised.value.kind is Kind.ALTERED
