"""Tests how transactions are published if one of Debezium's topics has an event for each beginning and end of a
transaction.

The service must then publish each transaction as a whole, in the order of the database.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources.debezium.assembling.merging import Item
from changelog.connectors.sources.debezium.assembling.whole import WAIT_S, Incomplete, WholeTransactions
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.inputs import Placed
from changelog.connectors.sources.debezium.settings import Settings, Whole
from changelog.connectors.sources.debezium.source import DebeziumSource
from changelog.connectors.sources.debezium.translation import translator
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.debezium.change_events import boundary, event, stamp, tombstone, truncate
from tests.unit.debezium.memory import App, Topics, entity
from tests.unit.debezium.test_random_topics import decide
from tests.unit.debezium.writer import TABLES, Writer

WHOLE = Whole(topic="app.transaction", messages="app.message", bytes_max=1 << 20)
CRASHES = 0.03


def app_of(writer: Writer, random: Random, path: Path, whole: Whole = WHOLE) -> App:
    return App(Topics(writer.parts, random), path / "log", [entity(name) for name in TABLES], whole=whole)


def transactions(app: App) -> dict[int, list[tuple[str, str]]]:
    """Returns the op and the key of each row, by the number of its transaction.

    Checks that all rows of a transaction have the same commit, and that the transactions are in the order of their
    numbers.
    """
    rows: dict[int, list[tuple[str, str]]] = {}
    commits: dict[int, str] = {}
    for message in app.messages():
        source = message["value"]["provenance"]["source"]
        if message["entity"] in TABLES:
            number, commit = int(source["transaction"]), source["position"][:25]
            assert commits.setdefault(number, commit) == commit, f"transaction {number} is in two places"
            rows.setdefault(number, []).append((source["op"], message["key"]))
    assert list(commits) == sorted(commits)
    return rows


@pytest.mark.parametrize("number", range(5))
def test_transactions_are_whole_and_in_order_whatever_arrives_first(seed: int, number: int, tmp_path: Path) -> None:
    random = Random(seed + number)
    writer = Writer(random, boundaries=True)
    writer.write(150)
    app = app_of(writer, random, tmp_path)
    app.run()
    assert transactions(app) == writer.order
    assert app.checkpoint.source["progress"] == {part: len(messages) for part, messages in writer.parts.items()}


@pytest.mark.parametrize("number", range(5))
def test_transactions_stay_whole_in_spite_of_crashes(seed: int, number: int, tmp_path: Path) -> None:
    random = Random(seed + number)
    writer = Writer(random, boundaries=True)
    app = app_of(writer, random, tmp_path, Whole(topic=WHOLE.topic, messages="", bytes_max=20_000))
    for _ in range(3):
        writer.write(40)
        app.topics.parts = {part: list(messages) for part, messages in writer.parts.items()}
        app.run(crashes=CRASHES)
    assert transactions(app) == writer.order
    assert app.passed["crash"] > 0


def test_a_stop_inside_a_transaction_loses_nothing(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    writer = Writer(random, boundaries=True)
    for _ in range(4):
        writer.write(15)
        part = random.choice([part for part in writer.parts if "transaction" not in part])
        writer.parts[part].append(SourceRecord(topic="app", key=None, value=b"{}"))
    app = app_of(writer, random, tmp_path)
    for _ in range(4):
        with pytest.raises(ChangelogError, match="is not a change event"):
            app.run(crashes=CRASHES)
        decide(app.path, "skip")
    app.run(crashes=CRASHES)
    assert {number: sorted(rows) for number, rows in read(app).items()} == {
        number: sorted(rows) for number, rows in writer.order.items()
    }
    with closing(FileSink(app.path)) as sink:
        stored = sink.recover()
    assert stored is not None
    assert stored.stop is None


def read(app: App) -> dict[int, list[tuple[str, str]]]:
    rows: dict[int, list[tuple[str, str]]] = {}
    for message in app.messages():
        if message["entity"] in TABLES:
            source = message["value"]["provenance"]["source"]
            rows.setdefault(int(source["transaction"]), []).append((source["op"], message["key"]))
    return rows


# Events that are held back until their transaction is complete

ITEM, SALE, ENDS = "app.public.item/0", "app.public.sale/0", "app.transaction/0"


class Held:
    """Passes events to `WholeTransactions`. A test chooses when each event arrives.

    `take` returns the place of each event that need not wait any longer. The first message of a partition is at
    `PARTITION, before 1`.
    """

    def __init__(self, bytes_max: int = 1 << 20, *, messages: bool = False) -> None:
        tables = [("public", name) for name in TABLES]
        parts = [ITEM, SALE, ENDS, "app.message/0", "app.public.other/0"]
        self.whole = WholeTransactions(tables, parts, ENDS, messages=messages, bytes_max=bytes_max)
        self._translate = translator(TranslationSettings())
        self._after: dict[str, int] = {}

    def add(self, *messages: SourceRecord, part: int = 0, now: float = 0.0) -> None:
        self.whole.add([self._item(message, part) for message in messages], now)

    def _item(self, message: SourceRecord, part: int) -> Item:
        name = f"{message.topic}/{part}"
        after = self._after[name] = self._after.get(name, 0) + 1
        [translated] = self._translate([message])
        return Item(Placed(part=name, message=message, after=after, steps=1), translated)

    def take(self, now: float = 0.0, behind: Sequence[str] = ()) -> list[str]:
        return [str(item.placed.where) for item in self.whole.take(now, behind)]


def row(table: str, number: int, transaction: int, order: int | None, **more: Any) -> SourceRecord:
    after = {"id": number, "status": "s"}
    return event("c", ("public", table), None, after, transaction=transaction, order=order, **more)


def test_rows_wait_for_the_other_rows_and_for_the_end_of_their_transaction() -> None:
    held = Held()
    held.add(row("item", 1, 5, 2))
    assert held.take() == []
    held.add(boundary(5), boundary(5, {"public.item": 1, "shop.public.sale": 1, "public.other": 7}))
    assert held.take() == [f"{ENDS}, before 1"]
    held.add(row("sale", 1, 5, 1), tombstone(("public", "sale"), {"id": 1}))
    assert held.take() == [f"{SALE}, before 1", f"{SALE}, before 2", f"{ITEM}, before 1", f"{ENDS}, before 2"]
    assert list(held.whole.incomplete()) == []


def test_events_without_a_number_in_a_transaction_do_not_wait() -> None:
    held = Held()
    held.add(row("item", 1, 4, None, snapshot="true"), truncate(("public", "item")), row("other", 1, 5, 1))
    assert len(held.take()) == 3


def test_an_incomplete_transaction_is_published_when_nothing_more_of_it_can_arrive() -> None:
    held = Held()
    held.add(row("item", 1, 5, 1), boundary(5, {"public.item": 1, "public.sale": 1}), now=1.0)
    assert held.take(WAIT_S, [SALE]) == []
    assert held.take(1.0 + WAIT_S, [SALE]) == [], "SALE may still have the rest of the transaction"
    assert held.take(1.0 + WAIT_S, [ITEM]) == [], "ITEM may also have another event of the transaction"
    held.add(row("sale", 1, 6, 1))
    assert held.take(1.0 + WAIT_S, [SALE]) == [f"{ITEM}, before 1", f"{ENDS}, before 1"]
    assert held.whole.incomplete() == [Incomplete(name="5", missing=1)]


def test_a_transaction_whose_end_is_lost_is_published() -> None:
    held = Held()
    held.add(row("item", 1, 5, 1), row("item", 2, 6, 2))
    assert held.take(WAIT_S, [ENDS]) == [], "ENDS may still have the end of the transaction"
    held.add(row("sale", 1, 6, 1), boundary(6, {"public.item": 1, "public.sale": 1}))
    assert held.take() == [f"{ITEM}, before 1", f"{SALE}, before 1", f"{ITEM}, before 2", f"{ENDS}, before 1"]
    held.add(row("item", 3, 7, 1), now=5.0)
    assert held.take(5.0 + WAIT_S) == [f"{ITEM}, before 3"]
    assert held.whole.incomplete() == [Incomplete(name="5", missing=None), Incomplete(name="7", missing=None)]


def test_the_end_of_a_transaction_without_rows_is_passed() -> None:
    """An end without rows arrives if the broker has removed the rows, or if Debezium has written the end twice."""
    held = Held()
    held.add(boundary(5, {"public.item": 2}), boundary(5, {"public.item": 2}), boundary(6, {"public.other": 1}))
    assert held.take() == []
    assert held.take(WAIT_S) == [f"{ENDS}, before 1"]
    assert held.take(2 * WAIT_S) == [f"{ENDS}, before 2", f"{ENDS}, before 3"]


def test_a_transaction_that_debezium_writes_again_is_published_again() -> None:
    held = Held()
    rows = [row("item", 1, 5, 1), row("item", 2, 5, 2)]
    held.add(*rows, row("item", 3, 6, 1), *rows, boundary(5, {"public.item": 2}), boundary(6, {"public.item": 1}))
    assert held.take() == [
        *(f"{ITEM}, before 1", f"{ITEM}, before 2", f"{ENDS}, before 1"),
        *(f"{ITEM}, before 3", f"{ENDS}, before 2"),
    ]
    held.add(boundary(5, {"public.item": 2}))
    assert held.take() == [f"{ITEM}, before 4", f"{ITEM}, before 5", f"{ENDS}, before 3"]
    assert list(held.whole.incomplete()) == []


def test_a_stamp_is_awaited_if_its_topic_is_read() -> None:
    end = boundary(5, {"public.item": 1, "io.debezium.LogicalDecodingMessageMonitor$LogicalDecodingMessageId@8": 1})
    without, with_messages = Held(), Held(messages=True)
    for held in (without, with_messages):
        held.add(row("item", 1, 5, 2), end)
    assert len(without.take()) == 2
    assert with_messages.take() == []
    with_messages.add(stamp(b"{}", transaction=5, at=0, order=1))
    assert with_messages.take() == ["app.message/0, before 1", f"{ITEM}, before 1", f"{ENDS}, before 1"]


SIZE = sum(len(part or b"") for part in (row("item", 1, 5, 1).key, row("item", 1, 5, 1).value))


def test_partitions_are_paused_while_their_events_are_not_needed() -> None:
    held = Held(3 * SIZE + 100)
    held.add(row("item", 1, 5, 1), row("item", 2, 6, 1), row("item", 3, 6, 2))
    assert list(held.whole.ahead()) == []
    held.add(row("sale", 1, 6, 3))
    assert set(held.whole.ahead()) == {ITEM, SALE, "app.message/0", "app.public.other/0"}, "the first END is needed"
    held.add(boundary(5, {"public.item": 1, "public.sale": 1}))
    assert held.take() == []
    assert set(held.whole.ahead()) == {ITEM, SALE, ENDS}, "they have events of later transactions"
    held.add(boundary(6, {"public.item": 2, "public.sale": 1}))
    held.take(WAIT_S)
    assert list(held.whole.ahead()) == []


def test_a_partition_with_more_of_the_awaited_transaction_is_not_paused() -> None:
    held = Held(2 * SIZE)
    held.add(row("item", 1, 5, 1), row("item", 2, 5, 2), boundary(5, {"public.item": 3}))
    assert list(held.whole.ahead()) == [ENDS]


def test_events_beyond_the_limit_of_memory_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changelog.connectors.sources.debezium.assembling.whole.READ_BYTES", 0)
    held = Held(2 * SIZE + 50)
    held.add(row("item", 1, 5, 1), boundary(5, {"public.item": 2}))
    held.add(row("sale", 2, 6, 1), row("sale", 3, 6, None))
    assert held.take() == []
    held.add(row("sale", 4, 7, 1))
    assert held.take() == [f"{ITEM}, before 1", f"{ENDS}, before 1"]
    assert held.whole.incomplete() == [Incomplete(name="5", missing=1)]
    assert held.take(WAIT_S - 1) == []
    assert len(held.take(WAIT_S, [SALE])) == 2, "the parts are not read on, so nothing more can come"


def test_a_transaction_that_is_too_large_is_refused() -> None:
    held = Held(3 * SIZE + 100)
    with pytest.raises(ChangelogError) as caught:
        held.add(*(row("item", number, 7, number) for number in range(1, 5)))
    assert caught.value.kind is Kind.LIMIT
    assert caught.value.message.startswith("transaction 7 has more than 0 MiB of messages")
    assert caught.value.hint is not None
    assert "held_mib" in caught.value.hint


def test_a_transaction_with_missing_events_is_logged() -> None:
    parts = {ITEM: [row("item", 1, 5, 1)], ENDS: [boundary(5, {"public.item": 2})]}
    settings = Settings(
        name="app",
        connector="postgresql",
        origin=Topics(parts, Random(1), at_once=True),
        translator=lambda: translator(TranslationSettings()),
        hmac_key=b"",
        whole=WHOLE,
    )
    times = iter([0.0, 0.0, WAIT_S, WAIT_S])
    with structlog.testing.capture_logs() as logged:
        source = DebeziumSource(settings, [entity("item")], lambda: None, clock=lambda: next(times))
        pieces = [source.read(0.0) for _ in range(3)]
    assert [0 if piece is None else sum(rows.num_rows for rows in piece.rows) for piece in pieces] == [0, 0, 1]
    [warning] = [line for line in logged if line["log_level"] == "warning"]
    assert (warning["last"], warning["why"]) == ("5", "1 of its events are missing")
