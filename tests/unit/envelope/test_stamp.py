"""Tests how stamps are read and written, and how their kinds are told apart. A stamp says who made a change."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.envelope import stamp
from changelog.envelope.model import Stamp
from changelog.envelope.stamp import ParsedStamp, StampKind, kind_of
from tests.unit.envelope.strategies import HOSTILE_CONTEXTS, stamps

ONLY = Stamp(api_version="", service_name="s", identifier="")


def test_a_stamp_is_read() -> None:
    payload = '{"apiVersion": "v2", "serviceName": "ördér-api", "identifier": "req-8f1c"}'.encode()
    expected = Stamp(api_version="v2", service_name="ördér-api", identifier="req-8f1c")
    assert stamp.parse(payload) == ParsedStamp(stamp=expected)


def test_only_the_service_has_to_be_named() -> None:
    assert stamp.parse(b'{"serviceName":"s"}') == ParsedStamp(stamp=ONLY)


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
def test_an_invalid_stamp_comes_with_its_problem(payload: bytes) -> None:
    reading = stamp.parse(payload)
    assert reading.stamp is None
    assert reading.problem


@pytest.mark.parametrize(
    ("more", "expected", "problem"),
    [
        (b'"user":"u"', ONLY, "user is not a known member"),
        (b'"identifier":7,"apiVersion":"v2"', replace(ONLY, api_version="v2"), "identifier is not a string"),
        (b'"apiVersion":null,"identifier":"i"', replace(ONLY, identifier="i"), "apiVersion is not a string"),
        (
            b'"apiVersion":[],"x":1,"identifier":{}',
            ONLY,
            "apiVersion is not a string; identifier is not a string; x is not a known member",
        ),
        (b'"%b":1' % (b"x" * 99), ONLY, f"{'x' * 40} is not a known member"),
    ],
)
def test_every_valid_member_is_kept_and_the_others_are_named(more: bytes, expected: Stamp, problem: str) -> None:
    assert stamp.parse(b'{%b,"serviceName":"s"}' % more) == ParsedStamp(stamp=expected, problem=problem)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b'{"serviceName":7,"identifier":"i"}', "serviceName is not a string"),
        (b'{"servicename":"s"}', "serviceName is missing or empty; servicename is not a known member"),
        (b'{"serviceName":""}', "serviceName is missing or empty"),
    ],
)
def test_without_a_service_there_is_no_stamp(payload: bytes, problem: str) -> None:
    assert stamp.parse(payload) == ParsedStamp(stamp=None, problem=problem)


@pytest.mark.parametrize("context", HOSTILE_CONTEXTS)
def test_a_context_is_kept_as_it_was_written(context: str) -> None:
    payload = f'{{"context": {context} , "serviceName":"s"}}'.encode()
    assert stamp.parse(payload) == ParsedStamp(stamp=replace(ONLY, context=context))


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        ("null", "context is not an object"),
        ("7", "context is not an object"),
        ("[]", "context is not an object"),
        ('"{}"', "context is not an object"),
        (f'{{"a":"{"x" * 4089}"}}', "context has more than 4096 bytes"),
        (f'{{"a":"{"é" * 2045}"}}', "context has more than 4096 bytes"),
        (f'{{"a":"{"x" * 900_000}"}}', "context has more than 4096 bytes"),
        (f'{{"a":{"[" * 32}{"]" * 32}}}', "context nests deeper than 32 levels"),
        (f'{{"a":{"[" * 2000}{"]" * 2000}}}', "context nests deeper than 32 levels"),
        (f'{{"a":{"[" * 400_000}{"]" * 400_000}}}', "context has more than 4096 bytes"),
    ],
)
def test_an_invalid_context_is_dropped_and_the_other_members_are_kept(context: str, problem: str) -> None:
    payload = f'{{"serviceName":"s","context":{context},"identifier":"i"}}'.encode()
    assert stamp.parse(payload) == ParsedStamp(stamp=replace(ONLY, identifier="i"), problem=problem)


def test_a_context_has_at_most_4_kib() -> None:
    context = f'{{"a":"{"x" * 4088}"}}'
    assert len(context) == stamp.CONTEXT_NBYTES_MAX
    rest = '"apiVersion":"%s"' % ("x" * (stamp.NBYTES_MAX - len('{"serviceName":"s","context":,"apiVersion":""}')))
    reading = stamp.parse(f'{{"serviceName":"s","context":{context},{rest}}}'.encode())
    assert reading.problem is None
    assert reading.stamp is not None
    assert reading.stamp.context == context


def test_a_text_with_an_unpaired_surrogate_is_dropped() -> None:
    payload = b'{"serviceName":"s","identifier":"\\ud800","context":{"half":"\\udc00"}}'
    assert stamp.parse(payload) == ParsedStamp(
        stamp=replace(ONLY, context='{"half":"\\udc00"}'), problem="identifier is not a string"
    )


@given(stamps)
def test_a_written_stamp_is_read_back(written: Stamp) -> None:
    problem = None if written.context is None else stamp.context_problem(written.context)
    if written.service_name and problem is None:
        assert stamp.parse(stamp.content(written)) == ParsedStamp(stamp=written)
    else:
        with pytest.raises(ValueError, match=problem or "serviceName"):
            stamp.content(written)


NO_CONTEXTS = ["", "x", "{", "{} {}", "{} ", '{},"identifier":"x"', '{"a":NaN}', '{"a":"\ud800"}']


@pytest.mark.parametrize("context", NO_CONTEXTS)
def test_an_invalid_context_is_not_written(context: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        stamp.content(replace(ONLY, context=context))


def test_a_message_of_more_than_1_mib_is_no_stamp() -> None:
    assert stamp.parse(b'{"serviceName":"s","context":"%b"}' % (b"x" * (1 << 20))) == ParsedStamp(
        stamp=None, problem="it has more than 1048576 bytes"
    )


def test_a_stamp_has_at_most_4_kib_without_its_context() -> None:
    frame = b'{"serviceName":"%b"}'
    room = stamp.NBYTES_MAX - len(frame % b"")
    assert stamp.parse(frame % (b"s" * room)).stamp is not None
    assert stamp.parse(frame % (b"s" * (room + 1))).stamp is None


@given(st.binary())
def test_no_payload_raises_an_error(payload: bytes) -> None:
    stamp.parse(payload)


members = st.tuples(
    st.sampled_from(
        ["serviceName", "apiVersion", "identifier", "service\\u004eame", "service_name", "context", "x", ""]
    ),
    st.sampled_from(['"s"', '""', '"ö"', '"\\ud800"', '"\\u0000\\n"', "7", "null", "{}", "[]", '"\t"', '"s']),
)
objects = st.lists(members, max_size=4).map(
    lambda pairs: "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"
)


@given(payload=objects, start=st.sampled_from(["", " ", "\ufeff"]), end=st.sampled_from(["", "\n ", "\x00", "x"]))
def test_the_fast_path_for_usual_stamps_gives_the_same_result(payload: str, start: str, end: str) -> None:
    for encoded in ((start + payload + end).encode(), payload.encode("latin-1")):
        assert stamp.parse(encoded) == stamp.parse_any(encoded)


def test_the_fast_path_obeys_the_limit_of_4_kib() -> None:
    for spaces in (stamp.NBYTES_MAX, 1 << 20):
        payload = b'{"serviceName":"s"}' + b" " * spaces
        assert stamp.parse(payload) == stamp.parse_any(payload)


@pytest.mark.parametrize(
    ("context", "kind"),
    [
        (None, StampKind.APPLICATION),
        ('{"user":"session"}', StampKind.APPLICATION),
        ('{"more":{"session":{}}}', StampKind.APPLICATION),
        ('{"a":"\\ud800"}', StampKind.APPLICATION),
        ('{"session": {"user":"u","application":"psql"}}', StampKind.SESSION),
        ('{"sess\\u0069on":1}', StampKind.SESSION),
    ],
)
def test_a_stamp_of_the_trigger_is_recognized_by_its_context(context: str | None, kind: StampKind) -> None:
    assert kind_of(replace(ONLY, context=context)) == kind


def test_a_change_without_a_stamp_is_recognized_by_the_default_service() -> None:
    by_nobody = Stamp(api_version="unknown", service_name="unknown", identifier="")
    own_default = replace(by_nobody, service_name="legacy")
    assert kind_of(by_nobody) == kind_of(own_default, own_default) == StampKind.NONE
    assert kind_of(own_default) == kind_of(by_nobody, own_default) == StampKind.APPLICATION


@given(stamps)
def test_every_stamp_has_a_kind(written: Stamp) -> None:
    assert kind_of(written) in StampKind
