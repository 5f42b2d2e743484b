"""Tests the decoder of the frames that the Debezium process writes to the service. A frame has a length and a kind.

The bytes of the frames may arrive in any number of pieces, may end in the middle of a frame, and may be malformed.
"""

import json
import struct
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.debezium import frames
from changelog.connectors.debezium.frames import End, FrameDecoder, Hello, HistoryRecord, LogLine, RecordBatch
from changelog.envelope.errors import ChangelogError, Kind


def frame(kind: str, body: bytes) -> bytes:
    return struct.pack("<IB3x", len(body), ord(kind)) + body


def definition(number: int, sort: str, content: bytes) -> bytes:
    return frame("D", struct.pack("<IB3x", number, ord(sort)) + content)


DEFINITIONS = definition(1, "t", b"orders") + definition(2, "p", b'{"server":"b","db":"a"}') + definition(3, "s", b"{}")


def texts(column: Sequence[bytes]) -> tuple[bytes, bytes]:
    ends = [0]
    for text in column:
        ends.append(ends[-1] + len(text))
    return struct.pack(f"<{len(ends)}i", *ends), b"".join(column)


def records(last: int, rows: Sequence[tuple[bytes, bytes, bytes, bytes]], *, topic: int = 1) -> bytes:
    """Returns a frame with records. Each row has the offset, the key, the value and the headers of a record. `last` is
    the number of the last record.
    """
    count = len(rows)
    body = struct.pack("<qII", last, count, 1)
    body += struct.pack(f"<{count}q", *range(count))
    body += struct.pack(f"<{4 * count}I", *([topic] * count + [2] * count + [0] * count + [3] * count))
    columns = [texts([row[column] for row in rows]) for column in range(4)]
    return frame("R", body + b"".join(ends for ends, _ in columns) + b"".join(data for _, data in columns))


ROWS = [(b'{"lsn":7}', b'{"id":1}', b'{"op":"c"}', b""), (b'{"lsn":8}', b'{"id":2}', b"", b'[["h",0,"v"]]')]
STREAM = b"".join(
    [
        frame("H", b'{"protocol":1,"java":"17.0.1","debezium":"3.6.1.Final"}'),
        DEFINITIONS,
        frame("L", b'{"level":"WARNING","logger":"io.debezium.Thing","message":"m","cause":"IOException: c"}'),
        frame("S", b'{"ddl":"CREATE TABLE t"}'),
        records(2, ROWS),
        frame("E", b'{"success":false,"message":"m","causes":[{"class":"java.io.IOException","message":"c"}]}'),
    ]
)


def decoded(pieces: Sequence[bytes]) -> list[frames.Frame]:
    decoder = FrameDecoder()
    received = [frame for piece in pieces for frame in decoder.feed(piece)]
    decoder.finish()
    return received


def check(received: Sequence[frames.Frame]) -> None:
    hello, line, history, batch, end = received
    assert hello == Hello(protocol=1, java="17.0.1", debezium="3.6.1.Final")
    assert line == LogLine(level="WARNING", logger="io.debezium.Thing", message="m", cause="IOException: c")
    assert history == HistoryRecord(content=b'{"ddl":"CREATE TABLE t"}')
    cause = msgspec.convert({"class": "java.io.IOException", "message": "c"}, frames.Cause)
    assert end == End(success=False, message="m", causes=(cause,))
    assert isinstance(batch, RecordBatch)
    assert (batch.first, batch.last, len(batch), batch.ends_batch) == (1, 2, 2, True)
    assert batch.timestamps.tolist() == [0, 1]
    assert list(batch.keys) == [b'{"id":1}', b'{"id":2}']
    assert list(batch.values) == [b'{"op":"c"}', b""]
    assert list(batch.headers) == [b"", b'[["h",0,"v"]]']
    assert [batch.topic_names[number] for number in batch.topics] == ["orders", "orders"]
    assert [batch.schemas[number] for number in batch.key_schemas] == [None, None]
    schema = batch.schemas[int(batch.value_schemas[0])]
    assert schema is not None
    assert schema.content == b"{}"


def test_a_stream_is_decoded_whole() -> None:
    check(decoded([STREAM]))


def test_a_stream_is_decoded_byte_by_byte() -> None:
    check(decoded([STREAM[at : at + 1] for at in range(len(STREAM))]))


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_is_decoded_in_pieces_of_any_size(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    check(decoded([STREAM[start:end] for start, end in pairwise(edges)]))


def test_trailing_bytes_are_an_error_that_names_the_byte() -> None:
    with pytest.raises(ChangelogError) as error:
        decoded([STREAM, b"\0\0\0"])
    assert error.value.kind is Kind.MALFORMED
    assert f"3 bytes of an incomplete frame at byte {len(STREAM)}" in str(error.value)


def test_the_last_offset_of_each_partition_is_known() -> None:
    batch = decoded([DEFINITIONS, records(2, ROWS)])[0]
    assert isinstance(batch, RecordBatch)
    partition = b'{"db":"a","server":"b"}'
    assert batch.last_offsets() == {partition: b'{"lsn":8}'}
    assert batch.last_offsets(1) == {partition: b'{"lsn":7}'}
    assert batch.last_offsets(0) == {}


def test_a_frame_may_have_no_records() -> None:
    [batch] = decoded([records(5, [])])
    assert isinstance(batch, RecordBatch)
    assert (len(batch), batch.last, batch.first) == (0, 5, 6)


whole = records(2, ROWS)


@pytest.mark.parametrize(
    "malformed",
    [
        pytest.param(frame("X", b""), id="an unknown kind"),
        pytest.param(struct.pack("<IB3x", (1 << 30) + 1, ord("R")), id="a frame that is too long"),
        pytest.param(frame("E", b"{"), id="no JSON"),
        pytest.param(frame("H", b"[]"), id="JSON of another shape"),
        pytest.param(definition(9, "x", b""), id="an unknown sort of definition"),
        pytest.param(definition(9, "t", b"\xff"), id="a topic that is no UTF-8"),
        pytest.param(frame("D", b"\0"), id="a short definition"),
        pytest.param(DEFINITIONS + records(2, ROWS, topic=8), id="a number that is not defined"),
        pytest.param(DEFINITIONS + frame("R", whole[8:-1]), id="records without their last byte"),
        pytest.param(DEFINITIONS + frame("R", whole[8:] + b"x"), id="records with an extra byte"),
        pytest.param(DEFINITIONS + frame("R", whole[8:30]), id="columns that are cut off"),
        pytest.param(
            DEFINITIONS + frame("R", whole[8:].replace(struct.pack("<3i", 0, 9, 18), struct.pack("<3i", 0, 19, 18), 1)),
            id="offsets that decrease",
        ),
    ],
)
def test_malformed_frames_are_refused(malformed: bytes) -> None:
    with pytest.raises(ChangelogError) as error:
        FrameDecoder().feed(malformed)
    assert error.value.kind is Kind.MALFORMED
    assert "at byte" in error.value.message


def test_commands_are_frames() -> None:
    commands = b"".join(frames.start({"a": 1}, {b'{"p":1}': b'{"lsn":2}'}, [b"{}"]))
    configuration = json.dumps({"a": 1}, separators=(",", ":")).encode()
    offset = frame("O", b'[{"p":1},{"lsn":2}]')
    assert commands == frame("C", configuration) + offset + frame("S", b"{}") + frame("G", b"")
    assert frames.acknowledgement(7) == frame("A", struct.pack("<q", 7))
    assert frame("Q", b"") == frames.STOP
