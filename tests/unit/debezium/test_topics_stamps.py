"""Tests stamps in Debezium's topics. A stamp says who made the changes of a transaction.

In PostgreSQL, a stamp is a logical message, for which Debezium writes an event.
"""

from pathlib import Path
from random import Random
from typing import Any

from changelog.connectors.sources.debezium.decode.events import SourceRecord
from tests.unit.debezium.change_events import event, stamp
from tests.unit.debezium.memory import App, Topics, entity

ITEM = ("public", "item")
A = {"id": 1, "status": "a"}


def app(path: Path, *messages: SourceRecord) -> App:
    topics = Topics({"app.public.item/0": messages}, Random(1), at_once=True)
    return App(topics, path / "log", [entity("item")])


def test_a_stamp_of_the_session_never_replaces_a_stamp_of_the_application(tmp_path: Path) -> None:
    session: dict[str, Any] = {"transaction": 7, "at": 0, "prefix": "provenance-session"}
    of_item = app(
        tmp_path,
        stamp(b'{"serviceName":"psql"}', **session),
        event("c", ITEM, None, A),
        stamp(b'{"serviceName":"shop"}', transaction=7, at=0),
        stamp(b'{"serviceName":"renamed"}', **session),
        event("d", ITEM, A, None),
    )
    of_item.run()
    services = [message["value"]["provenance"]["serviceName"] for message in of_item.messages("item")]
    assert services == ["psql", "shop"]


def test_invalid_stamps_and_other_messages_change_nothing(tmp_path: Path) -> None:
    of_item = app(
        tmp_path,
        stamp(b"not json", transaction=7, at=0),
        stamp(b'{"serviceName":"x"}', transaction=7, at=0, prefix="other"),
        stamp(b'{"do":"rebuild","id":"1","entity":"item"}', transaction=7, at=0, prefix="changelog"),
        event("c", ITEM, None, A),
    )
    of_item.run()
    [message] = of_item.messages("item")
    assert message["value"]["provenance"]["serviceName"] == "nobody"
    assert of_item.checkpoint.repairs == {}
