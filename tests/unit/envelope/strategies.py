"""Draws random JSON, envelopes and records for property tests."""

from datetime import UTC
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import Raw

from changelog.envelope import Envelope, Position, Provenance
from changelog.envelope.model import MISSING, Op, Place, Record, Source, Stamp

texts = st.text(max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=10
)
objects = st.dictionaries(texts, values, max_size=4)

_names = st.lists(texts, max_size=2).map(tuple)

HOSTILE_CONTEXTS = (
    "{}",
    '{ "ticket" : "PAY-7",\n\t"amount" : 1.10, "big": 123456789012345678901234567890, "e": 1E+999, "z": -0 }',
    '{"a":1,"a":{"a":2},"A":[]}',
    '{"half":"\\ud800","pair":"\\ud83d\\ude00","nul":"\\u0000","slash":"\\/","é":"日本 😀 \u2028"}',
    f'{{"deep":{"[" * 31}{"]" * 31}}}',
    # Our own readers search a provenance for these texts, and must not find them in a context.
    '{"x":1,"source":{"connector":"x","op":"create","position":"00000001/0000000000000001/00000000"}}',
    '{"unavailable":["id","status"],"jsonNull":["id"],"committedAt":"2026-11-21T03:10:02.886044Z"}',
    '{"context":{"context":{}},"identifier":"\\"","id":"e-1","mask":"m"}',
)
"""Valid contexts of a stamp that are easily mishandled, for example because of blanks, escapes or repeated names."""

_tokens = st.sampled_from(
    [*HOSTILE_CONTEXTS, "null", "true", "-1.50", "1e-400", "9" * 40, '"\\uDC00"', '"\\u0000"', '"{"', "[ ]", '"\\\\"']
)
_labels = texts.map(lambda text: msgspec.json.encode(text).decode()) | st.sampled_from(['"a"', '"\\ud800"', '"source"'])


def _objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.tuples(_labels, inner), max_size=3).map(
        lambda members: f"{{{','.join(f'{name}: {value}' for name, value in members)}}}"
    )


contexts = _objects(st.recursive(_tokens, lambda inner: _objects(inner) | inner.map(lambda text: f"[{text}]")))
"""Contexts as an application may write them, of any size."""


@st.composite
def raw_states(draw: st.DrawFn) -> Raw:
    text = msgspec.json.encode(draw(st.dictionaries(texts, scalars, max_size=3)))
    return Raw(msgspec.json.format(text, indent=draw(st.sampled_from([-1, 2]))))


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    op = draw(st.sampled_from(Op))
    state, absent = draw(raw_states()), st.just(MISSING)
    current = None if op in (Op.DELETE, Op.TRUNCATE) else state
    original: Any = MISSING
    if op in (Op.UPDATE, Op.DELETE):
        original = draw(raw_states() | absent)
    elif op is Op.TRUNCATE:
        original = None
    return Envelope(provenance=draw(provenances(op)), current=current, original=original)


@st.composite
def provenances(draw: st.DrawFn, op: Op) -> Provenance:
    return Provenance(
        stamp=draw(stamps),
        source=Source(
            connector="postgres",
            name=draw(texts),
            database=draw(texts),
            table=draw(texts),
            op=op,
            position=draw(positions),
            transaction=str(draw(st.integers(0, 2**64 - 1))),
            committed_at=draw(st.datetimes(timezones=st.just(UTC))),
            unavailable=draw(_names),
            unavailable_original=draw(_names),
            json_null=draw(_names),
            json_null_original=draw(_names),
            mask=draw(st.none() | texts),
        ),
    )


@st.composite
def records(draw: st.DrawFn) -> Record:
    to, from_ = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    return Record(
        entity=draw(entities),
        place=draw(places),
        envelope=draw(envelopes()),
        moved_to=draw(places) if to else None,
        moved_from=draw(places) if from_ else None,
    )


stamps = st.builds(Stamp, api_version=texts, service_name=texts, identifier=texts, context=st.none() | contexts)
positions = st.builds(Position, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
entities = texts.map(lambda name: name.replace(".", "-"))  # names of entities have no dots
places = st.builds(Place, key=texts, partition=st.integers(0, 2**31 - 1))
