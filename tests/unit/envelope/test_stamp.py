from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope import stamp
from envelope.model import Stamp
from envelope.stamp import Reading

ONLY = Stamp(api_version="", service_name="s", identifier="")


def test_a_stamp_is_read() -> None:
    payload = '{"apiVersion": "v2", "serviceName": "ördér-api", "identifier": "req-8f1c"}'.encode()
    whole = Stamp(api_version="v2", service_name="ördér-api", identifier="req-8f1c")
    assert stamp.parse(payload) == Reading(stamp=whole)


def test_only_the_service_has_to_be_named() -> None:
    assert stamp.parse(b'{"serviceName":"s"}') == Reading(stamp=ONLY)


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
        b'{"serviceName":"s"} x',
        b'{"serviceName":"s"',
        b'{"serviceName":"\xff"}',
        b'{"serviceName":"\\ud800"}',
        b'{"\xff":"s"}',
        b'{"serviceName":' + b"[" * 4000,
    ],
)
def test_what_is_no_stamp_says_why(payload: bytes) -> None:
    reading = stamp.parse(payload)
    assert reading.stamp is None
    assert reading.problem


@pytest.mark.parametrize(
    ("more", "kept", "problem"),
    [
        (b'"user":"u"', ONLY, "user is not known"),
        (b'"identifier":7,"apiVersion":"v2"', replace(ONLY, api_version="v2"), "identifier is no text"),
        (b'"apiVersion":null,"identifier":"i"', replace(ONLY, identifier="i"), "apiVersion is no text"),
        (
            b'"apiVersion":[],"x":1,"identifier":{}',
            ONLY,
            "apiVersion is no text; identifier is no text; x is not known",
        ),
        (b'"%b":1' % (b"x" * 99), ONLY, f"{'x' * 40} is not known"),
    ],
)
def test_every_valid_member_is_kept_and_the_others_are_named(more: bytes, kept: Stamp, problem: str) -> None:
    assert stamp.parse(b'{%b,"serviceName":"s"}' % more) == Reading(stamp=kept, problem=problem)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b'{"serviceName":7,"identifier":"i"}', "serviceName is no text"),
        (b'{"servicename":"s"}', "serviceName is missing or empty; servicename is not known"),
        (b'{"serviceName":""}', "serviceName is missing or empty"),
    ],
)
def test_without_a_service_there_is_no_stamp(payload: bytes, problem: str) -> None:
    assert stamp.parse(payload) == Reading(stamp=None, problem=problem)


def test_a_stamp_has_at_most_4_kib() -> None:
    frame = b'{"serviceName":"%b"}'
    room = stamp.NBYTES_MAX - len(frame % b"")
    assert stamp.parse(frame % (b"s" * room)).stamp is not None
    assert stamp.parse(frame % (b"s" * (room + 1))).stamp is None


@given(st.binary())
def test_no_payload_raises(payload: bytes) -> None:
    stamp.parse(payload)
