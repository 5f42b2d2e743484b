"""Tests what the service does if Debezium aborts a snapshot and repeats it.

If a row was deleted between the two snapshots, the service must delete it from the changelog.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from tests.unit.debezium.change_events import event
from tests.unit.debezium.memory import App, Topics, TopicsReader, entity
from tests.unit.debezium.writer import changes

ITEM, PART = ("public", "item"), "app.public.item/0"
COLUMNS = {"id": "int32", "status": "string"}


def read(number: int, snapshot: str = "true", at: int = 0, **more: Any) -> SourceRecord:
    return event("r", ITEM, None, {"id": number, "status": f"s{number}"}, snapshot=snapshot, at=at, **more)


def app_of(path: Path, *messages: SourceRecord, snapshots: str = "same", of: Entity | None = None) -> App:
    topics = Topics({PART: messages}, Random(1), at_once=True)
    return App(topics, path / "log", [of or entity("item")], snapshots=snapshots)


def published_after_restart(app: App, *messages: SourceRecord, snapshots: str = "same") -> list[tuple[str, str]]:
    """Starts the service again with further events. Returns the op and the key of each row that it publishes then."""
    count = len(ops(app))
    topics = Topics({PART: [*app.topics.parts[PART], *messages]}, Random(1), at_once=True)
    other = App(topics, app.path, app.entities, snapshots=snapshots)
    app.topics = topics
    other.run()
    return ops(app)[count:]


def ops(app: App) -> list[tuple[str, str]]:
    return [(op, key) for _, op, key, *_ in changes(app.messages())]


@pytest.mark.parametrize("same_time", [True, False])
def test_rows_that_the_second_snapshot_lacks_are_deleted(tmp_path: Path, same_time: bool) -> None:
    app = app_of(tmp_path, read(1), read(2), read(3))
    app.run()
    at = 0 if same_time else 5
    after = event("u", ITEM, {"id": 1, "status": "s1"}, {"id": 1, "status": "new"}, transaction=9, at=9)
    second = [read(1, at=at), read(3, at=at), read(4, "last", at=at), after]
    published = published_after_restart(app, *second)
    assert published == [("read", "1"), ("read", "3"), ("read", "4"), ("update", "1"), ("delete", "2")]
    deleted = app.messages("item")[-1]["value"]
    assert deleted["original"] == {"id": 2, "status": "s2"}
    positions = [message["value"]["provenance"]["source"]["position"] for message in app.messages("item")]
    assert positions == sorted(set(positions))
    assert not {"snapshot", "sweep"} & app.checkpoint.source.keys()
    assert published_after_restart(app, event("c", ITEM, None, {"id": 2, "status": "back"}, transaction=10, at=10)) == [
        ("create", "2")
    ]


def test_a_key_that_was_inserted_again_is_not_deleted(tmp_path: Path) -> None:
    """The changelog has a row of this key that is newer than the beginning of the second snapshot."""
    app = app_of(tmp_path, read(1), read(2))
    app.run()
    created = event("c", ITEM, None, {"id": 2, "status": "back"}, transaction=9, at=9)
    assert published_after_restart(app, read(1, "last", at=5), created) == [("read", "1"), ("create", "2")]


def test_rows_are_deleted_after_several_aborted_snapshots(tmp_path: Path) -> None:
    app = app_of(tmp_path, read(1), read(2), read(3))
    app.run()
    assert published_after_restart(app, read(1, at=1), read(2, at=1)) == [("read", "1"), ("read", "2")]
    published = published_after_restart(app, read(1, "last", at=2))
    assert (published[0], sorted(published[1:])) == (("read", "1"), [("delete", "2"), ("delete", "3")])


def test_nothing_is_deleted_after_a_snapshot_that_was_not_repeated(tmp_path: Path) -> None:
    app = app_of(tmp_path, read(1), read(2, "last"))
    app.run()
    assert published_after_restart(app, read(1, at=5), read(5, "last", at=5)) == [("read", "1"), ("read", "5")]
    assert app.passed["opened"] == 1


@pytest.mark.parametrize("snapshots", ["", "other"])
def test_nothing_is_deleted_if_the_snapshots_may_differ(tmp_path: Path, snapshots: str) -> None:
    app = app_of(tmp_path, read(1), read(2))
    app.run()
    assert published_after_restart(app, read(1, "last", at=5), snapshots=snapshots) == [("read", "1")]


def test_nothing_is_deleted_if_an_aborted_snapshot_is_not_repeated(tmp_path: Path) -> None:
    app = app_of(tmp_path, read(1), read(2))
    app.run()
    created = event("c", ITEM, None, {"id": 3, "status": "s"}, transaction=9, at=9)
    assert published_after_restart(app, created) == [("create", "3")]
    assert "snapshot" not in app.checkpoint.source


def test_nothing_is_deleted_from_an_entity_that_keeps_deleted_rows(tmp_path: Path) -> None:
    of = entity("item", immutable=True, on_change_of_immutable="ignore")
    app = app_of(tmp_path, read(1), read(2), of=of)
    app.run()
    assert published_after_restart(app, read(1, "last", at=5)) == [("read", "1")]


class Connector(Topics):
    """Simulates a connector. If it was stopped before its snapshot was complete, it begins the snapshot again, as
    Debezium's connectors for relational databases do.
    """

    def __init__(self, first: list[SourceRecord], second: list[SourceRecord], random: Random) -> None:
        super().__init__({PART: first}, random)
        self._second = second

    def open(self, stored: Checkpoint | None) -> TopicsReader:
        if stored is not None and "snapshot" in stored.source:
            self.parts[PART] = [*self.parts[PART][: stored.source["progress"][PART]], *self._second]
        return super().open(stored)


@pytest.mark.parametrize("number", range(6))
def test_each_missing_row_is_deleted_once_in_spite_of_crashes(seed: int, number: int, tmp_path: Path) -> None:
    random = Random(seed + number)
    rest = sorted(random.sample(range(30), 20))
    second = [read(n, "last" if n == rest[-1] else "true", at=5) for n in rest]
    created = [event("c", ITEM, None, {"id": n, "status": "s"}, transaction=n, at=n) for n in range(40, 50)]
    connector = Connector([read(n) for n in range(30)], [*second, *created], random)
    app = App(connector, tmp_path / "log", [entity("item")], snapshots="same")
    app.run()
    app.run(crashes=0.05)
    state: dict[str, str] = {}
    for op, key in ops(app):
        assert op != "delete" or state[key] != "delete"
        state[key] = op
    assert {key for key, op in state.items() if op != "delete"} == {str(n) for n in (*rest, *range(40, 50))}
    positions = [message["value"]["provenance"]["source"]["position"] for message in app.messages("item")]
    assert positions == sorted(set(positions))
