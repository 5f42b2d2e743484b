"""Tests the publish loop with random events in several parts (partitions of topics). In some tests,
the service crashes at random steps.

Each event must be published exactly once, and the events of a part must stay in order.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.source import FAIL_POINTS
from changelog.envelope.errors import ChangelogError
from changelog.envelope.position import Position
from tests.unit.debezium.change_events import event, stamp
from tests.unit.debezium.memory import App, Topics, entity
from tests.unit.debezium.writer import TABLES, Expected, Writer, changes

CRASHES = 0.03


def check(app: App, writer: Writer) -> None:
    published: dict[str, list[Expected]] = {part: [] for part in writer.parts}
    for change in changes(app.messages()):
        published[change[0]].append(change)
    assert published == writer.expected
    positions = [message["value"]["provenance"]["source"]["position"] for message in app.messages()]
    rows = [
        position for position, message in zip(positions, app.messages(), strict=True) if message["entity"] != "schemas"
    ]
    assert rows == sorted(set(rows)), "each event must be there once, and the events must be in order"
    assert Position.parse(positions[-1]) == app.checkpoint.position
    assert app.checkpoint.source["progress"] == {part: len(messages) for part, messages in writer.parts.items()}


@pytest.mark.parametrize("number", range(2))
def test_each_event_is_published_once_and_in_order(seed: int, number: int, tmp_path: Path) -> None:
    random = Random(seed + number)
    writer = Writer(random)
    writer.write(150)
    app = App(Topics(writer.parts, random), tmp_path / "log", [entity(name) for name in TABLES])
    app.run()
    check(app, writer)
    assert app.topics.confirmed == app.checkpoint.source["progress"]


@pytest.mark.parametrize("number", range(5))
def test_crashes_lose_nothing_and_repeat_nothing(seed: int, number: int, tmp_path: Path) -> None:
    random = Random(seed + number)
    writer = Writer(random)
    app = App(Topics(writer.parts, random), tmp_path / "log", [entity(name) for name in TABLES])
    for _ in range(3):
        writer.write(40)
        app.topics.parts = {part: list(messages) for part, messages in writer.parts.items()}
        app.run(crashes=CRASHES)
    check(app, writer)
    assert app.passed["opened"] > app.passed["crash"] > 0
    assert min(app.passed[name] for name in FAIL_POINTS) > 0


@pytest.mark.parametrize("number", range(2))
def test_an_operator_skips_messages_and_nothing_else_is_lost(seed: int, number: int, tmp_path: Path) -> None:
    """Some messages are no events. The service stops at each of them, and an operator decides to skip the message."""
    random = Random(seed + number)
    writer = Writer(random)
    for _ in range(6):
        writer.write(15)
        part = random.choice(list(writer.parts))
        writer.parts[part].append(SourceRecord(topic="app", key=None, value=b"{}"))
    app = App(Topics(writer.parts, random), tmp_path / "log", [entity(name) for name in TABLES])
    for _ in range(6):
        with pytest.raises(ChangelogError, match="is not a change event"):
            app.run(crashes=CRASHES)
        decide(app.path, "skip")
    app.run(crashes=CRASHES)
    check(app, writer)


def decide(path: Path, decision: str) -> None:
    """Stores a decision for the present stop, as `changelog accept` does."""
    with closing(FileSink(path)) as sink:
        stored = sink.recover()
        assert stored is not None
        assert stored.stop is not None
        sink.commit(replace(stored, decisions=stored.decisions.accept(stored.stop.position, decision)))


def test_transactions_of_several_parts_stay_together(seed: int, tmp_path: Path) -> None:
    """All events are there when the service begins to read, so each transaction must be published in one piece."""
    random = Random(seed)
    writer = Writer(random)
    writer.write(100)
    app = App(Topics(writer.parts, random, at_once=True), tmp_path / "log", [entity(name) for name in TABLES])
    app.run()
    check(app, writer)
    sources = [message["value"]["provenance"]["source"] for message in app.messages()]
    commits = {(source["transaction"], source["position"][:25]) for source in sources}
    assert len(commits) == len({commit for _, commit in commits}) == len({name for name, _ in commits}) == 100
    assert [int(name) for name, _ in sorted(commits, key=lambda pair: pair[1])] == list(range(1, 101))


def test_stamps_apply_to_their_transaction(tmp_path: Path) -> None:
    rows = [event("c", ("public", "item"), None, {"id": n, "status": "s"}, transaction=n, at=n) for n in (1, 2, 3)]
    stamps = [stamp(b'{"serviceName":"till","identifier":"%d"}' % n, transaction=n, at=n) for n in (1, 3)]
    topics = Topics({"app.public.item/0": rows, "app.message/0": stamps}, Random(1), at_once=True)
    app = App(topics, tmp_path / "log", [entity("item")])
    app.run()
    stamped = [
        (message["key"], message["value"]["provenance"]["serviceName"], message["value"]["provenance"]["identifier"])
        for message in app.messages("item")
    ]
    assert stamped == [("1", "till", "1"), ("2", "nobody", ""), ("3", "till", "3")]
