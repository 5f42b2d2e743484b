"""Tests signals, which are operators' requests to a running service.

`parse` must accept what `encode` returns, and refuse what is not a valid signal.
"""

import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import (
    ID_MAX,
    KEYS_BYTES_MAX,
    KEYS_MAX,
    NBYTES_MAX,
    Do,
    Signal,
    Signing,
    divide,
    encode,
    parse,
)

SECRET = b"sixteen bytes and more"
SIGNING = Signing(secret=SECRET, cluster="7594081", transaction=1 << 40)
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


signings = st.builds(
    Signing,
    secret=st.binary(min_size=16, max_size=40),
    cluster=st.from_regex(r"[0-9]{1,20}", fullmatch=True),
    transaction=st.integers(3, 2**64 - 1),
)


@given(signal=repairs | others, signing=st.none() | signings)
def test_an_encoded_signal_is_parsed(signal: Signal, signing: Signing | None) -> None:
    content = encode(signal, signing)
    assert content.startswith(b"{")
    assert parse(content, signing) == signal
    assert parse(content, None) == signal  # without a secret, a signed signal is also accepted


@given(content=st.binary(max_size=200))
def test_random_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ChangelogError) as caught:
        parse(content, None)
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize("do", get_args(Do))
def test_every_action_has_a_signal(do: Do) -> None:
    assert parse(encode(Signal(do=do, id="a", entity="order"), SIGNING), SIGNING).do == do


def test_a_signature_is_valid_only_for_its_content_and_secret() -> None:
    signed = encode(ORDER, SIGNING)
    with_other_secret = encode(ORDER, replace(SIGNING, secret=b"another secret of 16"))
    for content in (encode(ORDER, None), with_other_secret, signed.replace(b'"1"', b'"2"')):
        with pytest.raises(ChangelogError) as caught:
            parse(content, SIGNING)
        assert caught.value.kind is Kind.ACCESS
        assert SECRET.decode() not in str(caught.value)


def test_a_signature_is_valid_for_one_transaction_of_one_cluster() -> None:
    signed = encode(ORDER, SIGNING)
    others_ = (replace(SIGNING, transaction=SIGNING.transaction + (1 << 32)), replace(SIGNING, cluster="7594082"))
    for signing in others_:
        with pytest.raises(ChangelogError, match="signed for another transaction") as caught:
            parse(signed, signing)
        assert caught.value.kind is Kind.ACCESS
        forged = signed.replace(b"7594081", signing.cluster.encode())
        forged = forged.replace(str(SIGNING.transaction).encode(), str(signing.transaction).encode())
        with pytest.raises(ChangelogError, match="signed with a different secret"):
            parse(forged, signing)


def test_a_signal_of_an_older_version_is_refused_with_a_remedy() -> None:
    mac = hmac.new(SECRET, b'{"do":"pause","id":"a"}', "sha256").hexdigest()
    with pytest.raises(ChangelogError, match=r"not signed for a transaction.* send it with this version") as caught:
        parse(b'{"do":"pause","id":"a","mac":"%s"}' % mac.encode(), SIGNING)
    assert caught.value.kind is Kind.ACCESS
    assert parse(b'{"do":"pause","id":"a","mac":"%s"}' % mac.encode(), None).do == "pause"


def test_a_signature_does_not_depend_on_how_the_object_is_written() -> None:
    wire = msgspec.json.decode(encode(ORDER, SIGNING))
    reformatted = msgspec.json.format(msgspec.json.encode(dict(reversed(wire.items()))))
    assert parse(reformatted, SIGNING) == ORDER


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
def test_an_invalid_signal_is_refused(change: Callable[[dict[str, object]], object]) -> None:
    wire = msgspec.json.decode(encode(ORDER, None))
    change(wire)
    with pytest.raises(ChangelogError) as caught:
        parse(msgspec.json.encode(wire), None)
    assert caught.value.kind is Kind.MALFORMED


def test_unpaired_surrogates_and_deep_nesting_are_refused() -> None:
    for content in (
        rb'{"do":"republish","id":"a","entity":"order","keys":["\ud800"]}',
        rb'{"do":"republish","id":"a","entity":"order","mac":"\ud800"}',
        rb'{"do":"republish","id":"a","entity":"order","keys":' + b"[" * 100_000,
    ):
        for signing in (None, SIGNING):
            with pytest.raises(ChangelogError):
                parse(content, signing)


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
        encode(Signal(do="republish", id="a", entity="order", keys=run), SIGNING)
    with pytest.raises(ChangelogError):
        list(divide(["x" * (KEYS_BYTES_MAX + 1)]))


@given(keys=st.lists(st.text(st.characters(codec="utf-8"), max_size=50)))
def test_divided_keys_fit_however_they_are_escaped(keys: list[str]) -> None:
    for run in divide(keys):
        assert len(encode(Signal(do="republish", id="a", entity="e", keys=run), SIGNING)) <= NBYTES_MAX
