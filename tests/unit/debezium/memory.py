"""Simulates topics in memory, from which the Debezium source reads. Also runs a service that publishes the changes in
these topics to a file log.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import msgspec

from changelog.connectors.commands.tail import message_line
from changelog.connectors.findings import Finding
from changelog.connectors.service.loop import Cadence, publish
from changelog.connectors.sinks.files.log import read_checkpoint, read_log
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources import Hold, Recover, Remnant
from changelog.connectors.sources.debezium.database import DebeziumDatabase, Settings
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.inputs import AfterGap, Batch, Declared, Placed, Progress
from changelog.connectors.sources.debezium.settings import Whole
from changelog.connectors.sources.debezium.source import DebeziumSource
from changelog.connectors.sources.debezium.tables import Sampled, Translate, sampled
from changelog.connectors.sources.debezium.translation import translator
from changelog.connectors.state.before_images import BeforeImages
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.model import Stamp
from tests.unit.memory.test_memory_source import CrashError, FileChangelog, NoWait


def entity(name: str, **settings: Any) -> Entity:
    """Returns the entity of a table."""
    fields: dict[str, Any] = {
        "table": ("public", name),
        "key": ("id",),
        "partition_by": ("id",),
        "partitions": 2,
        "masks": {},
        "default_stamp": Stamp(api_version="", service_name="nobody", identifier=""),
    }
    return Entity(name=name, **(fields | settings))


class Topics:
    """Implements `ConfiguredInput` with topics in memory. `parts` has the messages of each partition of a topic.

    A reader gets the messages in random batches. If `at_once` is true, it gets all messages in one batch.
    """

    name = "memory"
    samples = True

    def __init__(self, parts: Mapping[str, Sequence[SourceRecord]], random: Random, *, at_once: bool = False) -> None:
        self.parts = {part: list(messages) for part, messages in parts.items()}
        self.random, self.at_once = random, at_once
        self.confirmed: Progress = {}

    def open(self, stored: Checkpoint | None) -> "TopicsReader":
        source = {} if stored is None else stored.source
        return TopicsReader(self, source.get("progress", {}), source.get("ahead", ()))

    def sampled(self, translate: Translate, declared: Declared) -> Sampled:
        return sampled(
            self.parts,
            translate,
            counts={part: len(messages) for part, messages in self.parts.items()},
            partitions=dict.fromkeys(self.parts, 1),
            declared=declared,
        )

    def left(self, stored: Checkpoint) -> int:
        progress: dict[str, int] = stored.source.get("progress", {})
        return sum(len(self.parts[part]) - at for part, at in progress.items())

    def is_lost(self, stored: Checkpoint) -> bool:
        return False

    def findings(self, stored: Checkpoint | None) -> Sequence[Finding]:
        return ()

    def after_gap(self, stored: Checkpoint | None, *, again: bool) -> AfterGap:
        progress = {} if stored is None or again else stored.source["progress"]
        return AfterGap(identity={}, progress={part: progress.get(part, 0) for part in self.parts})

    def hold(self) -> Hold:
        raise NotImplementedError

    def facts(self, stored: Checkpoint | None) -> Sequence[tuple[str, str]]:
        return [("topics", f"{len(self.parts)} parts")]

    def remnants(self) -> Sequence[Remnant]:
        return ()

    def drop(self, kind: str) -> None:
        raise NotImplementedError


class TopicsReader:
    """Implements `Input`: reads topics in memory.

    `ahead` lists runs of messages (part, first, end). They are read before all other messages, in this order.
    """

    def __init__(self, topics: Topics, progress: Progress, ahead: Sequence[Sequence[Any]]) -> None:
        self._topics = topics
        self._at = {part: progress.get(part, 0) for part in topics.parts}
        self.progress = dict(self._at)
        self.identity: Mapping[str, Any] = {}
        self._ahead = ahead
        self.closed = False
        self.paused = frozenset[str]()

    def read(self, timeout_s: float, gather_s: float) -> Batch:
        topics, random = self._topics, self._topics.random
        if self._ahead:
            ahead, self._ahead = self._ahead, ()
            placed = [self._take(part) for part, first, end in ahead for _ in range(first, end)]
            return Batch(placed=placed, more=True, in_order=True)
        if topics.at_once:
            return Batch(placed=[self._take(part) for part in self._at for _ in range(self._left(part))])
        placed = []
        for _ in range(random.randrange(12)):
            parts = [part for part in self._at if self._left(part) and part not in self.paused]
            if parts:
                part = random.choice(parts)
                placed += [self._take(part) for _ in range(random.randrange(1, 4)) if self._left(part)]
        behind = [part for part in self._at if self._left(part)]
        return Batch(placed=placed, more=random.random() < 0.5 and bool(behind), behind=behind)

    def _left(self, part: str) -> int:
        at: int = self._at[part]
        return len(self._topics.parts[part]) - at

    def _take(self, part: str) -> Placed:
        at = self._at[part]
        self._at[part] = at + 1
        return Placed(part=part, message=self._topics.parts[part][at], after=at + 1, steps=1)

    def pause(self, parts: Collection[str]) -> None:
        self.paused = frozenset(parts)

    def settle(self) -> None:
        pass

    def left(self, progress: Progress) -> int:
        at = progress or self._at
        return sum(len(messages) - at[part] for part, messages in self._topics.parts.items())

    def confirm(self, progress: Progress, steps: int) -> None:
        self._topics.confirmed = progress
        assert steps == sum(progress.values()) - sum(self.progress.values())

    def close(self) -> None:
        self.closed = True


class App:
    """Runs a service that publishes the changes in topics, and starts it again after each crash.

    The service may have a store of the last state of each row. At each start, `open_state` opens this store.
    """

    def __init__(
        self,
        topics: Topics,
        path: Path,
        entities: Sequence[Entity],
        *,
        translation: TranslationSettings | None = None,
        connector: str = "postgresql",
        whole: Whole | None = None,
        snapshots: str = "",
        open_state: Callable[[], BeforeImages | None] = lambda: None,
    ) -> None:
        self.topics, self.path, self.entities, self._open_state = topics, path, entities, open_state
        self.settings = Settings(
            name="app",
            connector=connector,
            origin=topics,
            translator=lambda: translator(translation or TranslationSettings()),
            hmac_key=b"secret",
            whole=whole,
            snapshots=snapshots,
        )
        self.database = DebeziumDatabase(self.settings)
        self.passed = Counter[str]()
        self._crashes = 0.0
        self._stop: Event = NoWait()
        self._now = 0.0

    def run(self, *, crashes: float = 0.0, killed_if: Callable[[Checkpoint], bool] = lambda _: False) -> None:
        """Publishes everything that the topics have.

        At each fail point, the service crashes with the probability `crashes`, and is then started again. If
        `killed_if` returns true for the stored checkpoint, the service is killed, and this method returns.
        """
        self._crashes, self._killed_if = crashes, killed_if
        self._stop = NoWait()
        while not self._stop.is_set():
            with closing(FileSink(self.path, reach=self._reach)) as sink:
                try:
                    publish(
                        self._open,
                        sink,
                        stop=self._stop,
                        state=self._open_state(),
                        cadence=Cadence(seconds=self.topics.random.choice([0.0, 3.0]), rows=40, idle_seconds=5.0),
                        reach=self._reach,
                        clock=self._clock,
                    )
                except CrashError:
                    self.passed["crash"] += 1

    def _open(self, recover: Recover) -> DebeziumSource:
        self.passed["opened"] += 1
        return self.database.open(self.entities, recover, FileChangelog(self.path), reach=self._reach)

    def _is_done(self, stored: Checkpoint) -> bool:
        return self.topics.left(stored) == 0 and not {"open", "sweep"} & stored.source.keys()

    def _reach(self, name: str) -> None:
        self.passed[name] += 1
        if self.topics.random.random() < self._crashes:
            raise CrashError
        stored = read_checkpoint(self.path) if name == "loop:read" else None
        if stored is None:
            return
        if self._is_done(stored) or self._killed_if(stored):
            self._stop.set()
        if self._killed_if(stored):
            raise CrashError

    def _clock(self) -> float:
        self._now += self.topics.random.random()
        return self._now

    def messages(self, name: str | None = None) -> list[dict[str, Any]]:
        """Returns the published messages in the form in which `changelog tail --json` prints them."""
        return [
            msgspec.json.decode(message_line(record))
            for rows in read_log(self.path, entity=name)
            for record in batch.records(rows)
        ]

    @property
    def checkpoint(self) -> Checkpoint:
        """The stored checkpoint."""
        stored = read_checkpoint(self.path)
        assert stored is not None
        return stored
