"""Random JSON, envelopes and records."""

from datetime import UTC
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import Raw

from envelope import Envelope, Position, Provenance
from envelope.model import MISSING, Op, Place, Record, Source, Stamp

texts = st.text(max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=10
)
objects = st.dictionaries(texts, values, max_size=4)

_names = st.lists(texts, max_size=2).map(tuple)


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
        stamp=Stamp(api_version=draw(texts), service_name=draw(texts), identifier=draw(texts)),
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
        entity=draw(texts),
        place=draw(places),
        envelope=draw(envelopes()),
        moved_to=draw(places) if to else None,
        moved_from=draw(places) if from_ else None,
    )


positions = st.builds(Position, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
places = st.builds(Place, key=texts, partition=st.integers(0, 2**31 - 1))
