"""Decodes the frames that the Debezium process sends, and encodes the commands that it receives. Does no I/O.

**A frame** is the length of its body (4 bytes), its kind (1 byte), three zero bytes, and the body. All numbers are
little endian. JSON is UTF-8. The Java code in `connectors/debezium/java/` writes and reads the same frames.

From Debezium (H is the first frame, and E the last):

| kind | body | becomes |
|---|---|---|
| H | JSON: the version of this protocol, of Java, and of Debezium | `Hello` |
| D | number (4 bytes), sort (1 byte: `t`, `p` or `s`), three zero bytes, content | kept by the decoder |
| R | records, column by column | `RecordBatch` |
| S | one record of the schema history, JSON | `HistoryRecord` |
| L | JSON: level, logger, message and, if an error is logged, its root cause | `LogLine` |
| E | JSON: whether the engine ended because it was asked to, a message, and the chain of causes | `End` |

Names of topics, partitions of the source, and schemas are sent once, as *definitions* with a number; their sorts are
`t`, `p` and `s`. A definition comes before the first record that refers to it. The body of R has these parts, where n
is the number of records:

- the number of the last record (8 bytes), n (4 bytes), and 1 if this frame ends a batch of the engine, otherwise 0 (4);
- the timestamps of the records (8 bytes each, signed, milliseconds since 1970; the smallest 64-bit number for a record
  without one);
- four columns that refer to definitions by their numbers (4 bytes each): topic, partition, schema of the key, schema
  of the value (0 means none);
- four columns of byte strings: offset, key, value, headers. First come the positions of all four columns: n + 1 for
  each column (4 bytes each, signed). The first position is 0, and string i is between the positions i and i + 1, as in
  Arrow's binary arrays. Then come the bytes of the four columns. An empty string means that the record has none.

To Debezium: C (JSON: the configuration), O (JSON: `[PARTITION, OFFSET]`), S (a record of the schema history), G (go), A
(8 bytes: all records up to this number are stored) and Q (stop). The module `process` says what they mean.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from changelog.envelope.errors import ChangelogError, Kind

PROTOCOL = 1

BODY_BYTES_MAX = 1 << 30
"""The body of a frame has at most this many bytes. Debezium's own limits and its heap are far smaller, so a longer
frame is damaged.
"""

_HEADER = struct.Struct("<IB3x")
_DEFINITION = struct.Struct("<IB3x")
_RECORDS = struct.Struct("<qII")
_ACK = struct.Struct("<q")
_NO_TIMESTAMP = -(1 << 63)
_TOPIC, _PARTITION, _SCHEMA = b"tps"


class Schema:
    """A schema of Kafka Connect, as JSON. Records of one Debezium process that have equal schemas share one object."""

    def __init__(self, content: bytes) -> None:
        self.content: Final = content

    @cached_property
    def parsed(self) -> Mapping[str, object]:
        """The schema with its fields, as Kafka's JsonConverter writes it under `schema`."""
        schema: dict[str, object] = msgspec.json.decode(self.content)
        return schema


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame. `java` and `debezium` are versions."""

    protocol: int
    java: str
    debezium: str | None = None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log of Debezium or a library. `level` is DEBUG, INFO, WARNING or ERROR."""

    level: str
    logger: str
    message: str
    cause: str | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One of the exceptions that caused an error."""

    name: str = msgspec.field(name="class")
    message: str = ""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The last frame. `causes` begins with the exception that ended the engine, and ends with its root cause."""

    success: bool
    message: str = ""
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """A record of the schema history: a change of a table's schema. It comes before the rows that need it."""

    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteStrings:
    """A column of byte strings: string i is `data[ends[i]:ends[i + 1]]`. An empty string stands for a missing value."""

    data: memoryview
    ends: NDArray[np.int32]

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.data[self.ends[index] : self.ends[index + 1]])

    def __iter__(self) -> Iterator[bytes]:
        data, ends = bytes(self.data), self.ends.tolist()
        return (data[start:end] for start, end in pairwise(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """Records in the order of the engine. `last` is the number of the last one; a process counts its records from 1.

    `topics`, `partitions`, `key_schemas` and `value_schemas` are numbers of definitions. `topic_names`,
    `partition_texts` and `schemas` have the contents of these definitions. `partition_texts` are JSON with sorted
    fields. The schema with number 0 is None. `timestamps` are milliseconds since 1970, or NO_TIMESTAMP. `offsets`,
    `keys`, `values` and `headers` are JSON. `ends_batch` is true for the last frame of a batch of the engine.
    """

    last: int
    ends_batch: bool
    timestamps: NDArray[np.int64]
    topics: NDArray[np.uint32]
    partitions: NDArray[np.uint32]
    key_schemas: NDArray[np.uint32]
    value_schemas: NDArray[np.uint32]
    offsets: ByteStrings
    keys: ByteStrings
    values: ByteStrings
    headers: ByteStrings
    topic_names: Mapping[int, str]
    partition_texts: Mapping[int, bytes]
    schemas: Mapping[int, Schema | None]

    NO_TIMESTAMP = _NO_TIMESTAMP

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def first(self) -> int:
        """The number of the first record."""
        return self.last - len(self) + 1

    def last_offsets(self, count: int | None = None) -> dict[bytes, bytes]:
        """Returns the last offset of each partition within the first `count` records, by default within all.

        The keys of the result (partitions) and the values (offsets) are JSON. A process that is started with these
        offsets continues after those records.
        """
        numbers = self.partitions[:count].tolist()
        last_index = dict(zip(numbers, range(len(numbers)), strict=True))
        return {self.partition_texts[number]: self.offsets[index] for number, index in last_index.items()}


Frame = Hello | RecordBatch | HistoryRecord | LogLine | End


class FrameDecoder:
    """Decodes Debezium's output, which may arrive in chunks of any size. Raises ChangelogError (MALFORMED)."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._topics: dict[int, str] = {}
        self._partitions: dict[int, bytes] = {}
        self._schemas: dict[int, Schema | None] = {0: None}
        self._offset = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Takes more bytes, and returns the frames that they complete."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start = 0
        while len(buffer) - start >= _HEADER.size:
            length, kind = _HEADER.unpack_from(buffer, start)
            if length > BODY_BYTES_MAX:
                raise self._malformed(f"a frame of {length} bytes")
            end = start + _HEADER.size + length
            if len(buffer) < end:
                break
            frame = self._decode(kind, bytes(memoryview(buffer)[start + _HEADER.size : end]))
            if frame is not None:
                frames.append(frame)
            self._offset += end - start
            start = end
        del buffer[:start]
        return frames

    def finish(self) -> None:
        """Raises ChangelogError (MALFORMED) if the bytes end within a frame."""
        if self._buffer:
            raise self._malformed(f"the output ends with {len(self._buffer)} bytes of an incomplete frame")

    def _decode(self, kind: int, body: bytes) -> Frame | None:
        try:
            match chr(kind):
                case "R":
                    return self._records(body)
                case "D":
                    self._define(body)
                    return None
                case "S":
                    return HistoryRecord(content=body)
                case "L":
                    return msgspec.json.decode(body, type=LogLine)
                case "H":
                    return msgspec.json.decode(body, type=Hello)
                case "E":
                    return msgspec.json.decode(body, type=End)
        except (struct.error, ValueError, msgspec.MsgspecError) as error:
            raise self._malformed(f"a malformed frame of kind {chr(kind)!r}") from error
        raise self._malformed(f"a frame of the unknown kind {chr(kind)!r}")

    def _define(self, body: bytes) -> None:
        number, sort = _DEFINITION.unpack_from(body)
        content = body[_DEFINITION.size :]
        if sort == _TOPIC:
            self._topics[number] = content.decode()
        elif sort == _PARTITION:
            self._partitions[number] = canonical(content)
        elif sort == _SCHEMA:
            self._schemas[number] = Schema(content)
        else:
            raise ValueError(sort)

    def _records(self, body: bytes) -> RecordBatch:
        last, count, ends_batch = _RECORDS.unpack_from(body)
        at = _RECORDS.size
        timestamps = np.frombuffer(body, "<i8", count, at)
        at += 8 * count
        numbers = np.frombuffer(body, "<u4", 4 * count, at).reshape(4, count)
        at += 16 * count
        ends = np.frombuffer(body, "<i4", 4 * (count + 1), at).reshape(4, count + 1)
        at += 16 * (count + 1)
        data = memoryview(body)
        columns = []
        for positions in ends:
            if positions[0] != 0 or (np.diff(positions) < 0).any():
                raise ValueError("positions")
            columns.append(ByteStrings(data=data[at : at + positions[-1]], ends=positions))
            at += int(positions[-1])
        if at != len(body):
            raise ValueError("length")
        offsets, keys, values, headers = columns
        definitions = (self._topics.keys(), self._partitions.keys(), self._schemas.keys(), self._schemas.keys())
        if not all(set(column.tolist()) <= defined for column, defined in zip(numbers, definitions, strict=True)):
            raise ValueError("definition")
        topics, partitions, key_schemas, value_schemas = numbers
        return RecordBatch(
            last=last,
            ends_batch=bool(ends_batch),
            timestamps=timestamps,
            topics=topics,
            partitions=partitions,
            key_schemas=key_schemas,
            value_schemas=value_schemas,
            offsets=offsets,
            keys=keys,
            values=values,
            headers=headers,
            topic_names=self._topics,
            partition_texts=self._partitions,
            schemas=self._schemas,
        )

    def _malformed(self, what: str) -> ChangelogError:
        return ChangelogError(Kind.MALFORMED, f"the Debezium process sent {what} at byte {self._offset} of its output")


def canonical(partition: bytes) -> bytes:
    """Returns the JSON of a partition with sorted fields, because their order differs between versions of Java."""
    return msgspec.json.encode(msgspec.json.decode(partition), order="sorted")


def start(
    configuration: Mapping[str, object], offsets: Mapping[bytes, bytes], history: Sequence[bytes]
) -> Iterator[bytes]:
    """Yields the frames that start the engine. The parameters are those of `process.EngineProcess`."""
    yield _frame(b"C", msgspec.json.encode(configuration))
    for partition, offset in offsets.items():
        yield _frame(b"O", b"[%b,%b]" % (partition, offset))
    for record in history:
        yield _frame(b"S", record)
    yield _frame(b"G", b"")


def acknowledgement(last: int) -> bytes:
    """Returns the frame that says that all records up to this number are stored."""
    return _frame(b"A", _ACK.pack(last))


STOP = _HEADER.pack(0, ord("Q"))
"""The frame that asks the engine to stop."""


def _frame(kind: bytes, body: bytes) -> bytes:
    return _HEADER.pack(len(body), kind[0]) + body
