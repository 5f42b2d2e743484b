"""Starts a Debezium process at the offsets in a checkpoint, and reads the records that the process sends."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from changelog.connectors.debezium.frames import End, HistoryRecord, LogLine, RecordBatch, Schema
from changelog.connectors.debezium.launch import Launch
from changelog.connectors.debezium.process import EngineProcess
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.decode.translate import NEW_KEY
from changelog.connectors.sources.debezium.inputs import Batch, Placed, Progress
from changelog.connectors.sources.debezium.inputs.engine.history import packed, unpacked
from changelog.envelope.errors import ChangelogError, Kind

HISTORY = "history"
"""The member of `identity` that has the history of schemas."""

STARTED_S = 20.0
"""`settle` waits for the connector's first answer until this many seconds after the start of the process."""

MESSAGES_MAX = 8192

MOVE_S = 5.0
"""If a row's key changed, Debezium sends a delete and then a create. The delete waits this many seconds for the create,
so that the two are published as one change.
"""

_HEADERS = msgspec.json.Decoder(list[tuple[str, int, msgspec.Raw]])
"""The headers of a record: name, number of the schema, value."""

_log = structlog.get_logger("debezium")


class EngineInput:
    """The opened input that reads from a Debezium process; see `changelog.connectors.sources.debezium.inputs.Input`.

    A part of this input is a partition of Debezium's source, and each record is one step. The constructor starts the
    process.
    """

    def __init__(
        self,
        launch: Launch,
        identity: Mapping[str, Any] | None,
        progress: Progress | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity: Mapping[str, Any] = dict(identity or {})
        self.progress: Progress = dict(progress or {})
        self._history = unpacked(self.identity.get(HISTORY, ""))
        offsets = {part.encode(): str(offset).encode() for part, offset in self.progress.items()}
        self._waiting: deque[Placed] = deque()
        self._has_started = False
        self._clock, self._started_at = clock, clock()
        self._process = EngineProcess(launch, offsets, self._history, _passed_on)
        _log.info("debezium started", process=self._process.pid)

    def read(self, timeout_s: float, gather_s: float) -> Batch:
        """See `Input.read`. Debezium sends the records of all tables in the order in which they can be published."""
        self._take(timeout_s)
        deadline = self._clock() + gather_s
        while self._waiting and len(self._waiting) < MESSAGES_MAX and self._take(max(deadline - self._clock(), 0.0)):
            pass
        deadline = self._clock() + MOVE_S
        while self._waiting and _moves(self._waiting[-1].message) and (left_s := deadline - self._clock()) > 0:
            self._take(left_s)
        placed, self._waiting = list(self._waiting), deque()
        return Batch(placed=placed, more=len(placed) >= MESSAGES_MAX, in_order=True)

    def _take(self, timeout_s: float) -> bool:
        """Waits for the next frame, and keeps its records until `read` returns them. Returns whether a frame came in
        time.
        """
        received = self._process.read(timeout_s)
        match received:
            case None:
                return False
            case End():
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"Debezium has ended by itself: {received.message or 'its connector has nothing more to do'}",
                    hint="set a snapshot.mode that continues with the log, such as initial",
                )
            case HistoryRecord():
                self._history.append(received.content)
                self.identity = {**self.identity, HISTORY: packed(self._history)}
            case _:
                self._waiting.extend(_placed(received))
        self._has_started = True
        return True

    def left(self, progress: Progress) -> int:  # noqa: ARG002 - the end of the database's log is unknown
        """See `Input`: counts the records that have arrived but that `read` has not returned yet."""
        return len(self._waiting)

    def pause(self, parts: Collection[str]) -> None:
        """See `Input`: does nothing, because Debezium sends each transaction as a whole."""

    def settle(self) -> None:
        """See `Input`: waits for the connector's first answer, for at most `STARTED_S` seconds. The answer can be the
        error that the database's log is gone.
        """
        while not self._has_started and (left_s := self._started_at + STARTED_S - self._clock()) > 0:
            self._take(left_s)

    def confirm(self, progress: Progress, steps: int) -> None:  # noqa: ARG002 - records are acknowledged by number
        """See `Input`: acknowledges the first `steps` records, so that the database may discard its log up to there."""
        if steps:
            self._process.acknowledge(steps)

    def close(self) -> None:
        """See `Input`."""
        self._process.close()


def _moves(message: SourceRecord | None) -> bool:
    """Returns whether the message is the delete of a row whose key changed. The next message then creates the row."""
    return message is not None and any(name == NEW_KEY for name, _ in message.headers)


def _placed(batch: RecordBatch) -> Iterator[Placed]:
    key_schemas, value_schemas = batch.key_schemas.tolist(), batch.value_schemas.tolist()
    schemas = {number: _content(batch.schemas[number]) for number in {*key_schemas, *value_schemas}}
    parts = {number: text.decode() for number, text in batch.partition_texts.items()}
    rows = zip(
        batch.topics.tolist(),
        batch.partitions.tolist(),
        key_schemas,
        value_schemas,
        batch.timestamps.tolist(),
        batch.offsets,
        batch.keys,
        batch.values,
        batch.headers,
        strict=True,
    )
    for topic, part, key_schema, value_schema, timestamp_ms, offset, key, value, headers in rows:
        message = SourceRecord(
            topic=batch.topic_names[topic],
            key=key or None,
            value=value or None,
            headers=_headers(headers, batch.schemas) if headers else (),
            timestamp_ms=0 if timestamp_ms == RecordBatch.NO_TIMESTAMP else timestamp_ms,
            key_schema=schemas[key_schema],
            value_schema=schemas[value_schema],
        )
        yield Placed(part=parts[part], message=message, after=offset.decode(), steps=1)


def _content(schema: Schema | None) -> bytes:
    return b"null" if schema is None else schema.content


def _headers(json: bytes, schemas: Mapping[int, Schema | None]) -> Sequence[tuple[str, bytes | None]]:
    """Returns the headers in the form in which Kafka Connect's JsonConverter, with schemas, writes them."""
    headers: list[tuple[str, bytes | None]] = []
    for name, number, value in _HEADERS.decode(json):
        schema = schemas[number]
        content = None if schema is None else b'{"schema":%b,"payload":%b}' % (schema.content, value)
        headers.append((name, content))
    return headers


def _passed_on(line: LogLine) -> None:
    cause = {"cause": line.cause} if line.cause else {}
    write = _log.warning if line.level in ("WARNING", "ERROR") else _log.debug
    write("debezium says", logger=line.logger, said=line.message, **cause)
