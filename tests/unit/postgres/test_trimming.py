"""Tests how received frames are trimmed. Long logical messages lose the content that the service does not read."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.postgres.decode import pgoutput
from changelog.connectors.sources.postgres.decode.frames import HEADER
from changelog.connectors.sources.postgres.decode.messages import DDL_PREFIX, LogicalMessage
from changelog.connectors.sources.postgres.stream.trimming import trimmed
from changelog.envelope import signal, stamp
from changelog.envelope.errors import ChangelogError

OURS = {stamp.PREFIX: stamp.MESSAGE_NBYTES_MAX, signal.PREFIX: signal.NBYTES_MAX, DDL_PREFIX: 1 << 20}
LONG = 3 << 20


def frame(prefix: bytes, content: bytes, *, transactional: bool = True) -> bytes:
    payload = struct.pack("!cBQ", b"M", transactional, 0x1781838) + prefix + b"\0"
    return b"w" + bytes(HEADER - 1) + payload + struct.pack("!I", len(content)) + content


def message(frame_: bytes) -> LogicalMessage:
    decoded = pgoutput.decode(trimmed(memoryview(frame_)), begin=HEADER)
    assert isinstance(decoded, LogicalMessage)
    return decoded


@pytest.mark.parametrize("prefix", [b"someone", b"", b"changelo", b"changelog-", pytest.param(b"x" * LONG, id="long")])
@pytest.mark.parametrize("transactional", [True, False])
def test_a_long_message_of_another_program_is_still_a_message(prefix: bytes, transactional: bool) -> None:
    sent = frame(prefix, b"x" * LONG, transactional=transactional)
    assert len(trimmed(memoryview(sent))) < 100
    assert message(sent) == LogicalMessage(transactional=transactional, lsn=0x1781838, prefix="", content=b"")


@pytest.mark.parametrize(("prefix", "limit"), OURS.items())
def test_our_messages_are_cut_to_one_byte_more_than_the_limit(prefix: str, limit: int) -> None:
    for length, expected in ((limit, limit), (limit + 1, limit + 1), (LONG, limit + 1)):
        decoded = message(frame(prefix.encode(), b"x" * length))
        assert (decoded.prefix, len(decoded.content)) == (prefix, expected)


def test_a_signal_or_stamp_that_was_cut_is_refused() -> None:
    with pytest.raises(ChangelogError, match="a signal has more than 2097152 bytes"):
        signal.parse(message(frame(signal.PREFIX.encode(), b'{"do":"pause"}'.ljust(LONG))).content, None)
    cut = stamp.parse(message(frame(stamp.PREFIX.encode(), b'{"serviceName":"a"}'.ljust(LONG))).content)
    assert (cut.stamp, cut.problem) == (None, f"it has more than {stamp.MESSAGE_NBYTES_MAX} bytes")


@given(st.sampled_from([b"w", b"k"]), st.binary(max_size=100), st.integers(0, 5000))
def test_other_frames_are_unchanged(kind: bytes, content: bytes, more: int) -> None:
    for payload in (b"I", b"U", b"D", b"C"):
        sent = kind + bytes(HEADER - 1) + payload + content + bytes(more)
        assert trimmed(memoryview(sent)) == sent
