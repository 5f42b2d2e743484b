"""Tests the JSON of messages: how it is written and read, and which JSON is refused."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from changelog.envelope import Envelope, Position, Provenance
from changelog.envelope.codec import json_codec
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Op, Source, Stamp
from changelog.envelope.position import UNPLACED
from tests.unit.envelope.strategies import HOSTILE_CONTEXTS, envelopes

UPDATE = (
    b'{"provenance":{"apiVersion":"v2","serviceName":"order-api","identifier":"req-8f1c",'
    b'"source":{"connector":"postgres","name":"booking","database":"app","table":"public.orders",'
    b'"op":"update","position":"00000001/0000000001781838/00000006",'
    b'"transaction":"765","committedAt":"2026-11-21T03:10:02.886044Z"}},'
    b'"current":{"id":42,"status":"PAID","amount":"13.50"},'
    b'"original":{"id":42,"status":"NEW","amount":"12.50"}}'
)


def source(
    *, op: Op = Op.UPDATE, committed_at: datetime = datetime(2026, 11, 21, 3, 10, 2, 886044, UTC), **more: object
) -> Source:
    return Source(
        connector="postgres",
        name="booking",
        database="app",
        table="public.orders",
        op=op,
        position=Position.parse("00000001/0000000001781838/00000006"),
        transaction="765",
        committed_at=committed_at,
        **more,  # type: ignore[arg-type]
    )


def provenance(source: Source) -> Provenance:
    return Provenance(stamp=Stamp(api_version="v2", service_name="order-api", identifier="req-8f1c"), source=source)


def test_the_documented_example_message_is_encoded_and_decoded() -> None:
    envelope = Envelope(
        provenance=provenance(source()),
        current=Raw('{"id":42,"status":"PAID","amount":"13.50"}'),
        original=Raw('{"id":42,"status":"NEW","amount":"12.50"}'),
    )
    assert json_codec.encode(envelope) == UPDATE
    assert json_codec.decode(UPDATE) == envelope


def test_optional_source_fields_follow_the_commit_time() -> None:
    full = source(
        unavailable=("a",),
        unavailable_original=("b", "c"),
        json_null=("d",),
        json_null_original=("e",),
        mask="0123456789abcdef",
    )
    assert json_codec.provenance_json(provenance(full)).endswith(
        b'"committedAt":"2026-11-21T03:10:02.886044Z","unavailable":["a"],"unavailableOriginal":["b","c"],'
        b'"jsonNull":["d"],"jsonNullOriginal":["e"],"mask":"0123456789abcdef"}}'
    )


@pytest.mark.parametrize(
    ("current", "original", "tail"),
    [
        (Raw("{}"), MISSING, b'"current":{}}'),
        (None, Raw("{}"), b'"current":null,"original":{}}'),
        (None, None, b'"current":null,"original":null}'),
    ],
)
def test_absent_states_nulls_and_objects_are_distinct(current: Raw | None, original: Raw | None, tail: bytes) -> None:
    envelope = Envelope(provenance=provenance(source()), current=current, original=original)
    text = json_codec.encode(envelope)
    assert text.endswith(b"," + tail)
    assert json_codec.decode(text) == envelope


@pytest.mark.parametrize(
    "state",
    [
        '{"n":1.50, "big":123456789012345678901234567890, "e":1E+2}',
        '{"t":"\\u00e9\\/\\u0000"}',
        '{"s":"\\ud800", "\\\\ud800":"\\\\\\uDC00"}',
    ],
)
def test_a_state_keeps_its_bytes(state: str) -> None:
    envelope = Envelope(provenance=provenance(source()), current=Raw(state), original=Raw(state))
    decoded = json_codec.decode(json_codec.encode(envelope))
    assert isinstance(decoded.current, Raw)
    assert bytes(decoded.current).decode() == state
    assert decoded == envelope


@pytest.mark.parametrize("context", HOSTILE_CONTEXTS)
def test_a_context_is_written_unchanged_before_the_source(context: str) -> None:
    plain = provenance(source(json_null=("é",)))
    stamped = replace(plain, stamp=replace(plain.stamp, context=context))
    text = json_codec.provenance_json(stamped)
    assert text == json_codec.provenance_json(plain).replace(
        b'"req-8f1c",', b'"req-8f1c","context":%b,' % context.encode()
    )
    assert json_codec.decode_provenance(text) == json_codec.decode_provenance(text.decode()) == stamped
    for state in ("{}", '{"half":"\\ud800"}', f'{{"deep":{"[" * 5000}{"]" * 5000}}}'):
        envelope = Envelope(provenance=stamped, current=Raw(state), original=MISSING)
        assert json_codec.decode(json_codec.encode(envelope)) == envelope


@pytest.mark.parametrize(("context", "kind"), [("[]", Kind.MALFORMED), ('"{}"', Kind.MALFORMED), ("null", None)])
def test_a_context_is_an_object_or_absent(context: str, kind: Kind | None) -> None:
    text = UPDATE.replace(b'"req-8f1c",', b'"req-8f1c","context":%b,' % context.encode())
    if kind is None:
        assert json_codec.decode(text) == json_codec.decode(UPDATE)
        return
    with pytest.raises(ChangelogError) as caught:
        json_codec.decode(text)
    assert caught.value.kind is kind


def test_a_context_that_nests_too_deep_is_refused() -> None:
    deep = b'"context":{"a":%b%b},"source"' % (b"[" * 200_000, b"]" * 200_000)
    text = UPDATE.replace(b'"source"', deep)
    inside = text.removeprefix(b'{"provenance":').partition(b',"current"')[0]
    with pytest.raises(ChangelogError) as caught:
        json_codec.decode(text)
    assert caught.value.kind is Kind.LIMIT
    with pytest.raises(ChangelogError) as caught:
        json_codec.decode_provenance(inside)
    assert caught.value.kind is Kind.LIMIT


@given(envelopes())
def test_round_trip(envelope: Envelope) -> None:
    text = json_codec.encode(envelope)
    assert json_codec.decode(text) == envelope
    assert json.loads(text)["provenance"]["source"]["op"] == envelope.provenance.source.op
    assert json_codec.decode_provenance(json_codec.provenance_json(envelope.provenance)) == envelope.provenance


def test_times_have_microseconds_and_z() -> None:
    assert json_codec.time_text(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00.000000Z"
    east = timezone(timedelta(hours=2))
    assert json_codec.time_text(datetime(33, 1, 2, 1, tzinfo=east)) == "0033-01-01T23:00:00.000000Z"
    with pytest.raises(ValueError, match="zone"):
        json_codec.time_text(datetime(2026, 1, 2))  # noqa: DTZ001


def test_members_of_later_versions_are_ignored() -> None:
    later = UPDATE.replace(b'"current"', b'"later":[{}],"current"').replace(b'"op"', b'"more":{"x":1},"op"')
    assert json_codec.decode(later) == json_codec.decode(UPDATE)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"{}",
        UPDATE[:-1],
        UPDATE + b"x",
        UPDATE.replace(b"00000001/", b"1/"),
        UPDATE.replace(b'"update"', b'"upsert"'),
        UPDATE.replace(b'"765"', b"765"),
        UPDATE.replace(b"886044Z", b"886044"),
        UPDATE.replace(b"2026-11-21T", b"soon"),
        UPDATE.replace(b"order-api", b"\xff"),
        UPDATE.replace(b'"current"', b'"now"'),
    ],
)
def test_an_invalid_envelope_is_malformed(text: bytes) -> None:
    with pytest.raises(ChangelogError) as caught:
        json_codec.decode(text)
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize(("depth", "closed", "kind"), [(200_000, 200_000, None), (200_000, 1, Kind.MALFORMED)])
def test_a_state_may_nest_to_any_depth(depth: int, closed: int, kind: Kind | None) -> None:
    text = UPDATE.replace(b"42", b"[" * depth + b"]" * closed)
    if kind is None:
        assert json_codec.encode(json_codec.decode(text)) == text
        return
    with pytest.raises(ChangelogError) as caught:
        json_codec.decode(text)
    assert caught.value.kind is kind


def test_deep_nesting_outside_the_states_is_refused() -> None:
    deep = b'"provenance":{"more":' + b"[" * 200_000 + b"]" * 200_000 + b","
    with pytest.raises(ChangelogError) as caught:
        json_codec.decode(UPDATE.replace(b'"provenance":{', deep))
    assert caught.value.kind is Kind.LIMIT


@given(st.integers(0, len(UPDATE) - 1), st.binary(min_size=1, max_size=2))
def test_damaged_bytes_raise_only_changelog_errors(at: int, damage: bytes) -> None:
    with suppress(ChangelogError):
        json_codec.decode(UPDATE[:at] + damage + UPDATE[at + len(damage) :])


def test_an_event_that_a_service_published_has_an_id_instead_of_a_position() -> None:
    direct = Envelope(
        provenance=provenance(replace(source(op=Op.CREATE), position=UNPLACED, id="e-1")),
        current=Raw("{}"),
        original=MISSING,
    )
    text = json_codec.encode(direct)
    assert b"position" not in text
    assert b'"id":"e-1"' in text
    assert json_codec.decode(text) == direct


def test_without_an_id_a_position_is_needed() -> None:
    text = UPDATE.replace(b'"position":"00000001/0000000001781838/00000006",', b"")
    assert text != UPDATE
    with pytest.raises(ChangelogError, match="not an envelope") as caught:
        json_codec.decode(text)
    assert caught.value.kind is Kind.MALFORMED
