"""Tests what happens if another table takes the name of a published table.

The service must read the new table, even if CREATE TABLE IF NOT EXISTS created it. The log also has this statement if
the table existed before, so the service must remember whether the old table is gone.
"""

from dataclasses import replace
from random import Random

import pytest

from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock
from changelog.envelope.errors import Kind
from changelog.envelope.position import Position
from tests.unit.mysql.assembling import ENTITY, NEW, NOTHING, Reads, after, assembler, published
from tests.unit.mysql.binlog_world import World

READ_AGAIN = [("item", "another table has taken the name of its table")]
CREATE_MISSING = "CREATE TABLE IF NOT EXISTS item (id INT PRIMARY KEY, name VARCHAR(40))"
CREATE = "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(40))"


@pytest.mark.parametrize(
    ("statements", "unlogged"),
    [
        (["DROP TABLE item", CREATE_MISSING], READ_AGAIN),
        (["DROP TABLE IF EXISTS other, item", CREATE_MISSING, CREATE_MISSING], READ_AGAIN),
        (["DROP DATABASE shop", "CREATE DATABASE shop", CREATE_MISSING], READ_AGAIN),
        (["RENAME TABLE item TO item_old", CREATE_MISSING], READ_AGAIN),
        (["ALTER TABLE item RENAME TO item_old", CREATE_MISSING], READ_AGAIN),
        (["DROP TABLE item", CREATE, CREATE_MISSING], READ_AGAIN),
        (["RENAME TABLE item TO item_old, item_new TO item", CREATE_MISSING], READ_AGAIN),
        ([CREATE_MISSING, "DROP TABLE other", "DROP DATABASE store", CREATE_MISSING], []),
        (["DROP TEMPORARY TABLE item", CREATE_MISSING], []),
        (["DROP TABLE item"], []),
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_table_that_was_created_because_it_was_missing_is_read(
    statements: list[str], unlogged: list[tuple[str, str]], seed: int, *, restarts: bool
) -> None:
    """With `restarts`, the service restarts after each statement. Otherwise, it gets all statements in one block."""
    world, stored, reported = World(Random(seed)), NEW, list[tuple[str, str]]()
    for statement in statements:
        world.execute(statement)
        if restarts or statement is statements[-1]:
            reader = assembler(stored, Reads())
            stored = after(stored, reader.feed(EventBlock.of(world.sent(stored.gtids))), reader)
            reported += reader.state.unlogged
    assert reported == unlogged


def test_a_service_that_stops_forgets_a_table_that_was_created_after_the_stop(seed: int) -> None:
    """The service stops at the row, because the row has no stamp. At this time, the assembler has already read the
    statement after the row, because both are in the same block.
    """
    world = World(Random(seed))
    world.execute("DROP TABLE item")
    world.commit(1)
    world.execute(CREATE_MISSING)
    reader = assembler(NEW, Reads(), entity=replace(ENTITY, missing_stamp="stop"))
    stored = after(NEW, reader.feed(EventBlock.of(world.sent(NOTHING))), reader)
    assert reader.stop is not None
    assert reader.state.unlogged == []
    assert stored.dropped == {"item"}


def test_on_unlogged_stops_the_service_at_the_statement_and_not_before(seed: int) -> None:
    """All transactions are in one block. Those before the statement must be published, although the service stops."""
    world = World(Random(seed))
    world.commit(5)
    world.execute("DROP TABLE item")
    created = world.end
    world.execute(CREATE)
    world.commit(1)
    reader = assembler(NEW, Reads(), entity=replace(ENTITY, on_unlogged="stop"))
    assembled = reader.feed(EventBlock.of(world.sent(NOTHING)))
    stored = after(NEW, assembled, reader)
    assert reader.stop is not None
    assert (reader.stop.kind, reader.stop.position) == (Kind.GAP, Position(1, created, 0))
    assert str(reader.stop).startswith(
        "rows of the entity item are not in the log: another table has taken the name of its table"
    )
    assert published(assembled.rows) == world.expected[:5]
    assert [stored.gtids.contains(logged.gtid) for logged in world.log] == [True, True, False, False]
