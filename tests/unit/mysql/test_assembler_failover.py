"""Tests failovers to another server, at times when only a part of a transaction is published.

The assembler must find the rest of the transaction in the log of the other server, and continue exactly with this rest.
"""

from dataclasses import replace
from itertools import count
from random import Random

import pyarrow as pa
import pytest

from changelog.connectors.sources.mysql.decode import cutting
from changelog.envelope.errors import Kind
from tests.unit.mysql.assembling import CATALOGUE, NEW, Catalogue, Reads, assembler, check, read
from tests.unit.mysql.binlog_world import ALTERATION, World


@pytest.mark.parametrize("round_", range(16))
def test_each_change_is_delivered_once_over_failovers(round_: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All servers have the same transactions, at different places in their logs.

    The assembler asks the catalogue for columns. These questions fail at random, which stops the assembler in the
    middle of a block.
    """
    random = Random(f"{seed} {round_}")
    servers = [World(Random(f"{seed} {round_}"), file=file, alters=True) for file in random.sample([1, 40, 80], 3)]
    while len(servers[0].expected) < 400:
        for world in servers:
            world.step()
    stored, rows, server, epoch = NEW, list[pa.RecordBatch](), servers[0], 1
    while not stored.gtids.contains(server.log[-1].gtid):
        monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", random.choice([700, 1 << 20]))
        reads = Reads()
        reads.add(server.end if stored.partial else 0)
        reader = assembler(stored, reads, epoch=epoch, catalogue=Catalogue(lambda: random.random() < 0.3))
        size = random.choice([5, 300])
        stored = read(
            stored, reader, server, rows, size=size, crashes=lambda at: random.random() < (0.5 if at.partial else 0.02)
        )
        if random.random() < 0.7:
            server, epoch, stored = random.choice(servers), epoch + 1, replace(stored, through=0)
    check(rows, server)


@pytest.mark.parametrize("files", [(1, 80), (80, 1)])
@pytest.mark.parametrize("failing", [1, 2])
def test_an_error_during_a_divided_transaction_or_after_it_loses_nothing(
    files: tuple[int, int], failing: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service publishes a part of a transaction, and then continues on another server. That server sends its whole
    log in one block. In it, a prepared transaction comes before the divided one, of which a part is already published.

    The assembler asks the catalogue inside the divided transaction, and again after the table was altered. One of these
    two questions fails.
    """
    primary, replica = (World(Random(seed), file=file) for file in files)
    for world in primary, replica:
        world.prepare(5)
        world.commit(40)
        world.commit(1)
        world.execute(ALTERATION)
        world.commit(1)
        world.settle()
    monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", 700)
    rows, questions = list[pa.RecordBatch](), count(1)
    reader = assembler(NEW, Reads())
    stored = read(NEW, reader, primary, rows, size=1, crashes=lambda stored: stored.partial)
    monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", 1 << 20)
    for catalogue in Catalogue(lambda: next(questions) == failing), CATALOGUE:
        reader = assembler(replace(stored, through=0), Reads(), epoch=2, catalogue=catalogue)
        stored = read(stored, reader, replica, rows, size=1000)
    assert next(questions) == failing + 1
    check(rows, primary)


@pytest.mark.parametrize("size", [1, 100])
def test_a_transaction_that_overtook_a_published_part_is_refused(
    size: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the second transaction is published, but the replica has the third one before the second."""
    primary, replica = World(Random(seed)), World(Random(seed), file=80)
    for world in primary, replica:
        world.commit(1)
    primary.commit(40)
    replica.number_from(3)
    for _ in range(5):
        replica.commit(1)
    replica.number_from(2)
    replica.commit(40)
    monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", 700)
    rows = list[pa.RecordBatch]()
    stored = read(NEW, assembler(NEW, Reads()), primary, rows, size=1, crashes=lambda stored: stored.partial)
    reader = assembler(replace(stored, through=0), Reads(), epoch=2)
    before = len(rows)
    read(stored, reader, replica, rows, size=size)
    assert reader.stop is not None
    assert reader.stop.kind is Kind.DIVERGED
    assert "before 3e11fa47-71ca-11e1-9e33-c80aa9429562:2, which is already published in part" in reader.stop.message
    assert len(rows) == before
