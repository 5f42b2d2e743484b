"""Signals: what was sent is what is read, and nothing else is."""

from collections.abc import Callable
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import ChangelogError, Kind
from envelope.signal import ID_MAX, KEYS_BYTES_MAX, KEYS_MAX, NBYTES_MAX, Do, Signal, divide, encode, parse

SECRET = b"sixteen bytes and more"
ORDER = Signal(do="republish", id="a", entity="order", keys=("1", '["ü", "\\""]'))

texts = st.text(max_size=20)
repairs = st.builds(
    Signal,
    do=st.just("republish"),
    id=st.text(min_size=1, max_size=ID_MAX),
    entity=st.text(min_size=1, max_size=20),
    keys=st.none() | st.lists(texts, min_size=1, max_size=20).map(tuple),
    service=st.none() | texts,
)
others = st.builds(
    Signal,
    do=st.sampled_from(["pause", "resume", "cancel"]),
    id=st.text(min_size=1, max_size=ID_MAX),
    entity=st.none() | texts,
    service=st.none() | texts,
)


@given(signal=repairs | others, secret=st.none() | st.binary(min_size=16, max_size=40))
def test_what_was_encoded_is_parsed(signal: Signal, secret: bytes | None) -> None:
    content = encode(signal, secret)
    assert content.startswith(b"{")
    assert parse(content, secret) == signal
    assert parse(content, None) == signal  # where no secret is set, a signed one is taken, too


@given(content=st.binary(max_size=200))
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(ChangelogError) as caught:
        parse(content, None)
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize("do", get_args(Do))
def test_every_deed_has_a_signal(do: Do) -> None:
    assert parse(encode(Signal(do=do, id="a", entity="order"), SECRET), SECRET).do == do


def test_a_signature_is_of_this_content_and_this_secret() -> None:
    signed = encode(ORDER, SECRET)
    for content in (encode(ORDER, None), encode(ORDER, b"another secret of 16"), signed.replace(b'"1"', b'"2"')):
        with pytest.raises(ChangelogError) as caught:
            parse(content, SECRET)
        assert caught.value.kind is Kind.ACCESS
        assert SECRET.decode() not in str(caught.value)


def test_a_signature_does_not_depend_on_how_the_object_is_written() -> None:
    wire = msgspec.json.decode(encode(ORDER, SECRET))
    again = msgspec.json.format(msgspec.json.encode(dict(reversed(wire.items()))))
    assert parse(again, SECRET) == ORDER


@pytest.mark.parametrize(
    "change",
    [
        lambda wire: wire.update(do="drop"),
        lambda wire: wire.update(id=""),
        lambda wire: wire.update(id="x" * (ID_MAX + 1)),
        lambda wire: wire.update(entity=None),
        lambda wire: wire.update(entity=""),
        lambda wire: wire.update(keys=[]),
        lambda wire: wire.update(keys=[1]),
        lambda wire: wire.update(keys=["x"] * (KEYS_MAX + 1)),
        lambda wire: wire.update(keys=["x" * (KEYS_BYTES_MAX + 1)]),
        lambda wire: wire.update(do="rebuild"),
        lambda wire: wire.update(unknown=1),
        lambda wire: wire.pop("id"),
        lambda wire: wire.update(padding="x" * NBYTES_MAX),
    ],
)
def test_a_signal_that_cannot_be_done_is_refused(change: Callable[[dict[str, object]], object]) -> None:
    wire = msgspec.json.decode(encode(ORDER, None))
    change(wire)
    with pytest.raises(ChangelogError) as caught:
        parse(msgspec.json.encode(wire), None)
    assert caught.value.kind is Kind.MALFORMED


def test_half_a_character_is_refused_and_not_stumbled_over() -> None:
    for content in (
        rb'{"do":"republish","id":"a","entity":"order","keys":["\ud800"]}',
        rb'{"do":"republish","id":"a","entity":"order","mac":"\ud800"}',
        rb'{"do":"republish","id":"a","entity":"order","keys":' + b"[" * 100_000,
    ):
        for secret in (None, SECRET):
            with pytest.raises(ChangelogError):
                parse(content, secret)


def test_a_signal_that_would_be_refused_is_not_encoded() -> None:
    with pytest.raises(ChangelogError) as caught:
        encode(Signal(do="rebuild", id="a"), None)
    assert caught.value.kind is Kind.USAGE


def test_keys_are_divided_by_number_and_by_bytes() -> None:
    keys = [str(number) for number in range(2 * KEYS_MAX + 1)]
    runs = list(divide([*keys, *keys]))
    assert [key for run in runs for key in run] == keys
    assert [len(run) for run in runs] == [KEYS_MAX, KEYS_MAX, 1]
    large = ["x" * (KEYS_BYTES_MAX - 1), "y", "ü"]
    assert list(divide(large)) == [(large[0], "y"), ("ü",)]
    for run in [*runs, *divide(large)]:
        encode(Signal(do="republish", id="a", entity="order", keys=run), SECRET)
    with pytest.raises(ChangelogError):
        list(divide(["x" * (KEYS_BYTES_MAX + 1)]))


@given(keys=st.lists(st.text(st.characters(codec="utf-8"), max_size=50)))
def test_the_largest_escapes_fit(keys: list[str]) -> None:
    for run in divide(keys):
        assert len(encode(Signal(do="republish", id="a", entity="e", keys=run), SECRET)) <= NBYTES_MAX
