"""Mutates recorded events at random. The decoder must decode a mutated event, or refuse it as malformed.

Each mutated event is decoded twice: as `bytes`, first by the fast decoders of `frequent_events`, and as a `memoryview`,
by the other decoders alone. Both must give the same result.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Event, RowsEvent, TableMap
from changelog.connectors.sources.mysql.decode.events.header import Header, read_header
from changelog.connectors.sources.mysql.decode.rows.row_images import images
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.binlog_encoder import packet, payload_of
from tests.unit.mysql.record_binlog import RECORDINGS, captured_events

ZSTD_MAGIC = bytes.fromhex("28b52ffd")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """A recorded event. `before` are the encoded events that a reader must have read before this one."""

    header: Header
    content: bytes
    before: tuple[bytes, ...]


def recorded_events() -> Sequence[RecordedEvent]:
    """Returns all recorded events. Each has the format description and the last table map that came before it."""
    events: list[RecordedEvent] = []
    for recording in RECORDINGS:
        form, *rest = captured_events(recording)
        before: tuple[bytes, ...] = (form,)
        for event in (form, *rest):
            header = read_header(Cursor(event))
            events.append(RecordedEvent(header=header, content=event[19:-4], before=before))
            if header.type == EventType.TABLE_MAP:
                before = (form, event)
    return events


def run(rounds: int, seed: int) -> Counter[str]:
    """Tries to decode `rounds` mutated events. Returns how many were decoded, and how many were refused.

    A refusal is a ChangelogError (MALFORMED). If the decoder raises any other error, this function raises
    AssertionError with the bytes of the event.
    """
    rng = random.Random(seed)
    events = recorded_events()
    outcomes: Counter[str] = Counter()
    for _ in range(rounds):
        original = rng.choice(events)
        changed = _changed(original, rng)
        outcomes[_outcome(original.before, changed)] += 1
    return outcomes


def _outcome(before: Sequence[bytes], changed: bytes) -> str:
    outcome = _read(before, changed)
    if outcome != _read(before, memoryview(changed)):
        raise AssertionError(f"`frequent_events` and the other decoders disagree: {changed.hex()}")
    return "refused" if isinstance(outcome, str) else "decoded"


def _read(before: Sequence[bytes], changed: bytes | memoryview) -> list[Event] | str:
    """Returns the events that a reader decodes from `changed`. If it refuses the bytes, returns the error's message."""
    try:
        return _decode(before, changed)
    except Exception as error:
        if isinstance(error, ChangelogError) and error.kind is Kind.MALFORMED:
            return error.message
        raise AssertionError(f"{error!r} for {changed.hex()}") from error


def _decode(before: Sequence[bytes], changed: bytes | memoryview) -> list[Event]:
    """Decodes an event completely: also the columns of a table map, and the rows of an event with rows."""
    reader = EventReader()
    table_map = None
    events: list[Event] = []
    for content in (*before, changed):
        events.clear()
        for event in reader.read(content):
            events.append(event)
            if isinstance(event, TableMap):
                table_map = event
                assert table_map.columns is None or len(table_map.columns) == table_map.description.width
            elif isinstance(event, RowsEvent) and table_map is not None and table_map.columns is not None:
                for old, new in images(table_map, event):
                    assert old or new
    return events


def _changed(original: RecordedEvent, rng: random.Random) -> bytes:
    """Mutates the content of an event, and sometimes its type. The size in the header and the checksum stay right."""
    header = original.header
    if rng.random() < 0.1:
        header = _with_type(header, rng.choice(list(EventType)))
    if header.type == EventType.TRANSACTION_PAYLOAD and ZSTD_MAGIC in original.content and rng.random() < 0.7:
        return payload_of(header, _mutated(_decompressed(original.content), rng))
    return packet(header, _mutated(original.content, rng))


def _with_type(header: Header, kind: EventType) -> Header:
    return Header(
        timestamp_s=header.timestamp_s,
        type=kind,
        server_id=header.server_id,
        size=0,
        end_log_pos=header.end_log_pos,
        flags=header.flags,
    )


def _decompressed(content: bytes) -> bytes:
    compressed = content[content.index(ZSTD_MAGIC) :]
    return bytes(pa.CompressedInputStream(pa.BufferReader(compressed), "zstd").read())


def _mutated(content: bytes, rng: random.Random) -> bytes:
    """Replaces, inserts, removes or repeats bytes at random places, one to four times."""
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(changed) + 1)
        end = min(len(changed), at + rng.choice((1, 1, 1, 2, 4, 8, 30)))
        match rng.randrange(6):
            case 0:
                changed[at:end] = rng.randbytes(end - at)
            case 1:
                changed[at:end] = rng.choice((b"\0", b"\xff", b"\x80", b"\xfb", b"\xfe")) * (end - at)
            case 2:
                changed[at:at] = rng.randbytes(end - at)
            case 3:
                del changed[at:end]
            case 4:
                changed[at:at] = changed[at:end]
            case _:
                del changed[at:]
    return bytes(changed)
