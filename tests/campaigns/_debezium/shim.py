"""Debezium's side: an engine in a process of its own, and our translation of its events to rows."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from changelog.connectors.debezium.engine import DebeziumEngine
from changelog.connectors.debezium.events import ChangeEvent
from changelog.connectors.debezium.store import FileStore
from changelog.connectors.sources.debezium.assembling.assembler import Assembler
from changelog.connectors.sources.debezium.assembling.binder import Binder
from changelog.connectors.sources.debezium.assembling.events import OldRows
from changelog.connectors.sources.debezium.assembling.merging import Item
from changelog.connectors.sources.debezium.decode.events import Changed, Message
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.translate import Translator
from changelog.connectors.sources.debezium.inputs import Placed
from changelog.envelope.checkpoint import NO_DECISIONS
from changelog.envelope.entity import Entity

HEAP_MIB = 768


class Shim:
    """Runs the engine in a thread, and translates what it sends. `last` is the table whose row ends the run.

    `items` are the events so far, and `reads` the number of rows of the snapshot. The engine ends by itself after the
    last row; `failure` is its error.
    """

    def __init__(self, properties: Mapping[str, str], jars: Path, folder: Path, last: str) -> None:
        self._engine = DebeziumEngine(
            {**properties, "topic.prefix": "judge", "skipped.operations": "none", "poll.interval.ms": "20"},
            store=FileStore(folder),
            jars=jars,
            heap_mib=HEAP_MIB,
        )
        self.warnings: list[str] = []
        self._translate = Translator(TranslationSettings(warn=self.warnings.append)).translate
        self._last = last
        self.items: list[Item] = []
        self.reads = 0
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="debezium")

    def _run(self) -> None:
        try:
            self._engine.run(self._take)
        except BaseException as error:  # noqa: BLE001, because `check` raises it in the thread of the campaign
            self.failure = error

    def _take(self, events: Sequence[ChangeEvent]) -> None:
        messages = [message_of(event) for event in events]
        for message, event in zip(messages, self._translate(messages), strict=True):
            number = len(self.items)
            self.items.append(Item(Placed(part="engine", message=message, after=number + 1, steps=1), event))
            if isinstance(event, Changed):
                self.reads += event.op == "r"
                if event.table.name[1] == self._last and event.op == "c":
                    self._engine.close()
                    return

    def check(self) -> None:
        """Raises the engine's error, if it failed."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Ends the engine."""
        self._engine.close()
        self.thread.join()

    def rows(self, name: str, entities: Sequence[Entity]) -> Sequence[pa.RecordBatch]:
        """Returns the rows that are published for all events."""
        assembler = Assembler(
            name=name,
            epoch=1,
            entities=entities,
            binder=Binder(hmac_key=b""),
            old_rows=OldRows(()),
            decisions=NO_DECISIONS,
            place=1,
            open_end=None,
            published=None,
            partial=False,
            versions=None,
        )
        fed = assembler.feed(self.items, more=False)
        if assembler.stop is not None:
            raise assembler.stop
        return fed.assembled.rows


def message_of(event: ChangeEvent) -> Message:
    """Returns an event of the engine as a message of Kafka, with schemas."""
    headers = [(name, msgspec.json.encode(value)) for name, value in event.headers]
    return Message(
        topic=event.topic,
        key=event.key_with_schema(),
        value=event.value_with_schema(),
        headers=headers,
        timestamp_ms=event.timestamp_ms or 0,
    )
