"""Tests *runs*: several small transactions of the usual form, which the assembler reads together.

The result must be the same as if the assembler read each event alone.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.sources.mysql.decode import assembler as assembling
from changelog.connectors.sources.mysql.decode import cutting
from changelog.connectors.sources.mysql.decode.assembler import Assembler
from changelog.connectors.sources.mysql.decode.events.event_block import EMPTY, EventBlock
from changelog.connectors.sources.mysql.decode.log_state import LogState
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.decode.usual import runs
from changelog.connectors.sources.mysql.decode.usual.runs import TransactionRun
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids, parse_gtids
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.position import Position
from changelog.envelope.versions import Versions
from tests.unit.mysql.assembling import ENTITY, ORIGIN, Catalogue, Reads
from tests.unit.mysql.binlog_world import ITEM
from tests.unit.mysql.mixed_log import MixedLog

NEVER = 1 << 40
FLAVOURS = (False, True)


class Forgetful(Catalogue):
    """A catalogue whose `forget` accepts any entity, not only `ENTITY`, because the log alters several tables."""

    def forget(self, entity: Entity) -> None:
        pass


class Reader:
    """An assembler, and a record of what it delivered."""

    def __init__(self, log: MixedLog, random: Random | None, *, mariadb: bool) -> None:
        """Makes an assembler with random settings and progress. If `random` is None, makes one for a new changelog."""
        self.reads, self.delivered = Reads(), list[tuple[int, str, bool]]()
        entities = entities_of(random)
        received, published, half = stored(log, random, mariadb=mariadb)
        tables = Tables(
            Binder(hmac_key=b""), entities, declarations=Forgetful(), look_up=lambda _: ITEM.columns, charsets={}
        )
        state = LogState(
            epoch=1,
            received=received,
            resume=received,
            database="shop",
            on_delivery=lambda *delivery: self.delivered.append(delivery),
            half=half,
        )
        self.assembler = Assembler(
            origin=ORIGIN,
            tables=tables,
            entities=entities,
            state=state,
            published=published,
            partial=random is not None and random.random() < 0.5,
            through=0,
            listener=None if random is None or random.random() < 0.5 else self.reads,
            reads=self.reads,
            versions=None
            if random is None or random.random() < 0.5
            else Versions([], accepted={}, filled=lambda *_: ()),
        )

    def outcome(self, packets: Sequence[bytes]) -> Sequence[Any]:
        """Feeds packets to the assembler. Returns its results, and everything in its state that could differ."""
        assembler, state = self.assembler, self.assembler.state
        try:
            parts = [seen(assembler.feed(EventBlock.of(packets)))]
            while assembler.busy and assembler.stop is None:
                parts.append(seen(assembler.feed(EMPTY)))
        except ChangelogError as error:
            return [str(error)]
        stop = assembler.stop
        return [
            parts, None if stop is None else (str(stop), stop.position, stop.hint), assembler.through,
            assembler.between, state.gtids.text, state.resume.text, state.transaction, state.maps, state.unlogged,
            vars(state.place), self.delivered, self.reads.discarded,
        ]  # fmt: skip


def entities_of(random: Random | None) -> dict[tuple[str, str], Entity]:
    """Returns two entities. If `random` is not None, they have random policies."""
    item, pair = ENTITY, replace(ENTITY, name="pair", table=("shop", "pair"))
    if random is not None:
        item = replace(
            item,
            on_truncate=random.choice(["stop", "publish"]),
            missing_stamp=random.choice(["default", "default", "warn", "stop"]),
        )
        pair = replace(pair, immutable=random.random() < 0.1)
    return {entity.table: entity for entity in (item, pair)}


def stored(
    log: MixedLog, random: Random | None, *, mariadb: bool
) -> tuple[Gtids, Position | None, tuple[str, int, int] | None]:
    """Returns random progress: the received transactions, the published position, and a transaction of which a part is
    published. If `random` is None, returns the progress of a new changelog.
    """
    flavour = Flavour.MARIADB if mariadb else Flavour.MYSQL
    if random is None:
        return parse_gtids(flavour, ""), None, None
    some = random.choice([(), (1, 2, 3), (40, 41, 43), (90,)])
    received = parse_gtids(flavour, ",".join(log.gtid(number) for number in (some[-1:] if mariadb else some)))
    if random.random() < 0.7:
        return received, None, None
    position = Position(1, log.begin + random.randrange(20_000), random.randrange(4))
    half = log.gtid(random.randrange(60)), random.choice([0, 1]), log.begin + random.randrange(4000)
    return received, position, random.choice([None, half])


def seen(assembled: Assembled) -> dict[str, Any]:
    """Returns a result of `feed` as a dict, with its rows as Python values, so that it can be compared."""
    result = {field.name: getattr(assembled, field.name) for field in fields(assembled)}
    return result | {"rows": [(rows.schema.metadata, rows.to_pylist()) for rows in assembled.rows]}


def portions(packets: Sequence[bytes], random: Random) -> list[Sequence[bytes]]:
    result = []
    while packets:
        size = random.choice([1, 5, 30, 200, 1000])
        result.append(packets[:size])
        packets = packets[size:]
    return result


@pytest.mark.parametrize("mariadb", FLAVOURS, ids=["mysql", "mariadb"])
@pytest.mark.parametrize("round_", range(24))
def test_reading_runs_gives_the_same_results_as_reading_single_events(
    round_: int, mariadb: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every third round, a low limit makes the assembler publish larger transactions in several pieces."""
    random = Random(f"{seed} {round_} {mariadb}")
    if round_ % 3 == 2:
        monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", 700)
    offset = random.choice([4, 4, 4, 2**32 - 5000, 3 * 2**32 + 1000, 2**36 - 5000])
    log = MixedLog(
        random, mariadb=mariadb, offset=offset, unusual=random.choice([0, 0.05, 0.3]), fatal=random.choice([0, 0, 0.01])
    )
    packets = list(log.packets(120))
    state = random.getrandbits(64)
    alone, together = (Reader(log, Random(state), mariadb=mariadb) for _ in range(2))
    run_min = random.choice([1, 1, 2, 8])
    for portion in portions(packets, random):
        if random.random() < 0.3:
            end = log.begin + random.randrange(30_000)
            alone.reads.add(end)
            together.reads.add(end)
        monkeypatch.setattr(runs, "RUN_MIN", NEVER)
        expected = alone.outcome(portion)
        monkeypatch.setattr(runs, "RUN_MIN", run_min)
        assert together.outcome(portion) == expected
        if len(expected) == 1 or alone.assembler.stop is not None:
            break


@pytest.mark.parametrize("mariadb", FLAVOURS, ids=["mysql", "mariadb"])
def test_usual_transactions_are_read_in_runs(mariadb: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is the first to describe a table is read alone. So the test counts only the runs in the second
    half of the log.
    """
    delivered: list[int] = []

    def deliver(run: TransactionRun, *others: Any) -> None:
        delivered.append(len(run.rows))
        runs.deliver(run, *others)

    monkeypatch.setattr(assembling, "deliver", deliver)
    monkeypatch.setattr(runs, "RUN_MIN", 1)
    log = MixedLog(Random(seed), mariadb=mariadb, offset=4, unusual=0, fatal=0)
    reader = Reader(log, None, mariadb=mariadb).assembler
    packets = list(log.packets(400))
    half = len(packets) // 2
    reader.feed(EventBlock.of(packets[:half]))
    delivered.clear()
    reader.feed(EventBlock.of(packets[half:]))
    assert sum(delivered) > 30
    assert reader.stop is None
