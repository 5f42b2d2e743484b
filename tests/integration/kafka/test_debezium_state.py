"""A service with a [state] reads flat rows from topics of a real broker. A flat row does not have the row before it."""

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
    """The folder of the state is lost after three changes. The deletes have nulls in place of the last values."""
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
