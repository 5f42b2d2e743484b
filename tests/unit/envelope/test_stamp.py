import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope import stamp
from envelope.model import Stamp


def test_a_stamp_is_read() -> None:
    payload = '{"apiVersion": "v2", "serviceName": "ördér-api", "identifier": "req-8f1c"}'.encode()
    assert stamp.parse(payload) == Stamp(api_version="v2", service_name="ördér-api", identifier="req-8f1c")


def test_only_the_service_has_to_be_named() -> None:
    assert stamp.parse(b'{"serviceName":"s"}') == Stamp(api_version="", service_name="s", identifier="")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"apiVersion":"v2"}',
        b'{"serviceName":""}',
        b'{"serviceName":null}',
        b'{"serviceName":7}',
        b'{"serviceName":"s","user":"u"}',
        b'{"serviceName":"s"} x',
        b'{"serviceName":"s"',
        b'{"serviceName":"\xff"}',
        b'{"serviceName":"\\ud800"}',
        b'{"\xff":"s"}',
        b'{"serviceName":' + b"[" * 4000,
    ],
)
def test_what_is_no_stamp_counts_as_missing(payload: bytes) -> None:
    assert stamp.parse(payload) is None


def test_a_stamp_has_at_most_4_kib() -> None:
    frame = b'{"serviceName":"%b"}'
    room = stamp.NBYTES_MAX - len(frame % b"")
    assert stamp.parse(frame % (b"s" * room)) is not None
    assert stamp.parse(frame % (b"s" * (room + 1))) is None


@given(st.binary())
def test_no_payload_raises(payload: bytes) -> None:
    stamp.parse(payload)
