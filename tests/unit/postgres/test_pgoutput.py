"""Tests the decoder of pgoutput with random messages, with messages that servers sent, and with malformed bytes."""

import random
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.rows.row_change import UNCHANGED, Delete, Insert, Update
from changelog.connectors.sources.postgres.decode import pgoutput
from changelog.connectors.sources.postgres.decode.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Decoded,
    LogicalMessage,
    Prepare,
    Relation,
    RelationColumn,
    ReplicationOrigin,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeName,
)
from changelog.connectors.sources.postgres.decode.pgoutput import decode
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.postgres.pgoutput_encoder import encode

CAPTURED = Path(__file__).with_name("pgoutput_captured.txt")

uint8, uint32, uint64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
int32, int64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64))
names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8)
rows = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=12), max_size=6).map(tuple)
columns = st.builds(RelationColumn, key=st.booleans(), name=names, type_oid=uint32, typmod=int32)
prepared = {"lsn": uint64, "end_lsn": uint64, "at": int64, "xid": uint32, "gid": names}
changes: st.SearchStrategy[Decoded] = st.one_of(
    st.builds(
        Relation,
        relid=uint32,
        namespace=names,
        name=names,
        replica_identity=st.sampled_from("dnfi"),
        columns=st.lists(columns, max_size=5).map(tuple),
    ),
    st.builds(TypeName, type_oid=uint32, namespace=names, name=names),
    st.builds(Insert, relid=uint32, new=rows),
    st.builds(Update, relid=uint32, old_kind=st.none(), old=st.none(), new=rows),
    st.builds(Update, relid=uint32, old_kind=st.sampled_from("OK"), old=rows, new=rows),
    st.builds(Delete, relid=uint32, old_kind=st.sampled_from("OK"), old=rows),
    st.builds(
        Truncate,
        relids=st.lists(uint32, max_size=4).map(tuple),
        cascade=st.booleans(),
        restart_identity=st.booleans(),
    ),
    st.builds(LogicalMessage, transactional=st.booleans(), lsn=uint64, prefix=names, content=st.binary(max_size=12)),
)
messages: st.SearchStrategy[Decoded] = changes | st.one_of(
    st.builds(Begin, final_lsn=uint64, committed_at=int64, xid=uint32),
    st.builds(Commit, flags=uint8, commit_lsn=uint64, end_lsn=uint64, committed_at=int64),
    st.builds(ReplicationOrigin, commit_lsn=uint64, name=names),
    st.builds(StreamStart, xid=uint32, first=st.booleans()),
    st.builds(StreamStop),
    st.builds(StreamCommit, xid=uint32, flags=uint8, commit_lsn=uint64, end_lsn=uint64, committed_at=int64),
    st.builds(StreamAbort, xid=uint32, subxid=uint32),
    st.builds(StreamAbort, xid=uint32, subxid=uint32, abort_lsn=uint64, aborted_at=int64),
    st.builds(BeginPrepare, **prepared),
    st.builds(Prepare, flags=uint8, **prepared),
    st.builds(CommitPrepared, flags=uint8, **prepared),
    st.builds(RollbackPrepared, flags=uint8, prepared_at=int64, **prepared),
    st.builds(StreamPrepare, flags=uint8, **prepared),
)


def refusal(payload: bytes) -> ChangelogError:
    with pytest.raises(ChangelogError) as caught:
        decode(payload)
    assert caught.value.kind is Kind.MALFORMED
    return caught.value


@given(message=messages)
def test_every_message_is_read_back(message: Decoded) -> None:
    assert decode(encode(message)) == message


@given(message=changes, xid=uint32)
def test_inside_a_stream_block_the_transaction_id_is_skipped(message: Decoded, xid: int) -> None:
    assert decode(encode(message, xid=xid), streaming=True) == message


@given(message=messages)
def test_a_message_that_lacks_its_last_bytes_is_refused(message: Decoded) -> None:
    payload = encode(message)
    for length in range(len(payload)):
        if not (isinstance(message, StreamAbort) and length == len(encode(StreamAbort(xid=0, subxid=0)))):
            assert "byte" in refusal(payload[:length]).message


@given(message=messages, more=st.binary(min_size=1, max_size=4))
def test_a_message_with_too_many_bytes_is_refused(message: Decoded, more: bytes) -> None:
    assert "byte" in refusal(encode(message) + more).message


@given(
    payload=st.binary(max_size=64)
    | st.tuples(messages, st.randoms()).map(lambda message_and_chance: mutated(*message_and_chance))
)
def test_any_bytes_are_refused_or_decoded_to_the_last_byte(payload: bytes) -> None:
    try:
        message = decode(payload)
    except ChangelogError:
        assert refusal(payload).position is None
    else:
        assert len(encode(message)) in (len(payload), len(payload) + len("pg_catalog"))


def mutated(message: Decoded, chance: random.Random) -> bytes:
    payload = bytearray(encode(message))
    payload[chance.randrange(len(payload))] = chance.randrange(256)
    return bytes(payload)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "too few bytes: 1 needed, 0 left (byte 0"),
        (b"?", "an unknown message kind b'?' (byte 0"),
        (b"I\0\0\0\1K\0\0", "an insert with a tuple of kind b'K' (byte 5"),
        (b"I\0\0\0\1N\0\1b\0\0\0\1x", "a column of kind b'b' (byte 8"),
        (b"I\0\0\0\1N\0\1t\xff\xff\xff\xffx", "too few bytes: 4294967295 needed, 1 left (byte 13"),
        (b"U\0\0\0\1O\0\0X\0\0", "an update with a second tuple of kind b'X' (byte 8"),
        (b"Y\0\0\0\1public\0n\xff\0", "a string that is not UTF-8 (byte 12"),
        (b"Y\0\0\0\1public\0name", "a string without a terminator (byte 12"),
        (b"R\0\0\0\1public\0t\0x\0\0", "a replica identity b'x' (byte 14"),
        (b"E!", "1 extra bytes after a StreamStop message (byte 1"),
    ],
)
def test_an_error_names_the_problem_and_the_byte(payload: bytes, text: str) -> None:
    assert text in refusal(payload).message


@given(changes, st.binary(max_size=5), st.binary(max_size=5), st.integers(1, 8))
def test_a_message_is_read_from_the_middle_of_a_buffer(
    message: Decoded, before: bytes, after: bytes, large: int
) -> None:
    """Large values are decoded as views of the buffer. Each view must have exactly the bytes of its value."""
    payload = encode(message)
    with patch.object(pgoutput, "LARGE_BYTES", large):
        assert decode(before + payload + after, begin=len(before), end=len(before) + len(payload)) == message


def test_an_empty_namespace_means_pg_catalog() -> None:
    assert decode(b"Y\0\0\0\1\0name\0") == TypeName(type_oid=1, namespace="pg_catalog", name="name")


@pytest.mark.parametrize("line", CAPTURED.read_text().split("\n\n"))
def test_messages_that_servers_sent_are_decoded(line: str) -> None:
    sent, expected = line.strip().split("\n")
    where, _, payload = sent.partition(" ")
    message = decode(bytes.fromhex(payload), streaming=where == "streamed")
    assert repr(message) == expected
    xid = int.from_bytes(bytes.fromhex(payload)[1:5]) if where == "streamed" else None
    assert encode(message, xid=xid).hex() == payload
