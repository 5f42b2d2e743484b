"""Tests a service that reads flat rows from Kafka topics, and takes the row before each change from its own `[state]`.

A flat row is a message that has only the row after the change. So the service stores the last row of each key in the
folder that the section `[state]` of its configuration names.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from tests.integration.kafka.test_debezium_topics import Reader, rows

CONFIG = """
[state]
path = "state"
[entities.item]
table = "public.item"
key = ["id"]
types = { id = "long", status = "string" }
"""


def flat(number: int, status: str | None, **columns: Any) -> SourceRecord:
    content = {"id": number, "status": status, **columns}
    return SourceRecord(
        topic="app.public.item", key=json.dumps({"id": number}).encode(), value=json.dumps(content).encode()
    )


def test_originals_come_from_the_state(broker: Broker, own_name: str, tmp_path: Path) -> None:
    """After three changes, the test deletes the folder of the state, and the service restores it from the changelog.

    The message of a delete has nulls in place of the row's last values. So these values must come from the state, too.
    """
    reader = Reader(broker, tmp_path, own_name)
    reader.set_up(CONFIG, source="unwrapped = true\n")
    reader.create("public.item")
    reader.produce(flat(1, "new", __op="c"), flat(2, "new", __op="c"), flat(1, "paid", __op="u"))
    reader.publish(3)
    shutil.rmtree(tmp_path / "state")
    reader.produce(flat(1, "sent", __op="u"), flat(2, None, __deleted="true"), flat(1, None, __deleted="true"))
    assert reader.call("check") == (0, [])
    reader.publish(6)
    new, paid, sent = ({"id": 1, "status": status} for status in ("new", "paid", "sent"))
    assert rows(reader.messages("item")) == [
        ("create", "1", new, None),
        ("create", "2", {"id": 2, "status": "new"}, None),
        ("update", "1", paid, new),
        ("update", "1", sent, paid),
        ("delete", "2", None, {"id": 2, "status": "new"}),
        ("delete", "1", None, sent),
    ]
