"""Tests deltas, and how rows are computed from them. A delta holds a change as a JSON Patch."""

import io
import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import fastavro
import jsonpatch
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from changelog.envelope.canonical import dumps, parse, text_of
from changelog.envelope.delta import Delta, back, delta_codec, delta_of, fold, foldable, patch_columns
from changelog.envelope.delta.patch import diff
from changelog.envelope.delta.patch_text import changes, patch_text
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Envelope, Missing, Op
from changelog.envelope.position import UNPLACED
from tests.unit.envelope.strategies import envelopes, values
from tests.unit.records import record

COLUMNS = ("a", "b", "long")
HOW = ("update", "update", "unknown", "toast", "delete", "bare", "read")
"""What may happen to a row. `unknown` is an update without the old row, and `bare` a delete without it. `toast` is an
update without the value of the column `long`, which did not change.
"""


def same(a: Any, b: Any) -> bool:
    return (a is MISSING and b is MISSING) or (MISSING not in (a, b) and text_of(a) == text_of(b))


def message(
    op: Op,
    current: str | None = None,
    original: str | Missing | None = MISSING,
    *,
    commit: int = 1,
    unavailable: tuple[str, ...] = (),
    unavailable_original: tuple[str, ...] = (),
) -> Envelope:
    envelope = record(op, current, original, commit=commit, unavailable=unavailable).envelope
    source = replace(envelope.provenance.source, unavailable_original=unavailable_original)
    return replace(envelope, provenance=replace(envelope.provenance, source=source))


@pytest.mark.parametrize(
    ("envelope", "patch"),
    [
        (message(Op.CREATE, '{"a":1}'), '[{"op":"add","path":"","value":{"a":1}}]'),
        (message(Op.READ, '{"a":1}'), '[{"op":"add","path":"","value":{"a":1},"reset":true}]'),
        (message(Op.UPDATE, '{"a":1}'), '[{"op":"add","path":"","value":{"a":1},"reset":true}]'),
        (message(Op.UPDATE, '{"a":1}', None), '[{"op":"add","path":"","value":{"a":1},"reset":true}]'),
        (message(Op.UPDATE, '{"a":1}', '{"a":1}'), "[]"),
        (
            message(Op.UPDATE, '{"a":1,"b":"x"}', '{"a":1.0,"b":"x"}'),
            '[{"op":"test","path":"/a","value":1.0},{"op":"replace","path":"/a","value":1}]',
        ),
        (
            message(Op.DELETE, None, '{"a":1}'),
            '[{"op":"test","path":"","value":{"a":1}},{"op":"remove","path":""}]',
        ),
        (message(Op.DELETE), '[{"op":"remove","path":""}]'),
        (message(Op.DELETE, None, '{"a":1}', unavailable_original=("long",)), '[{"op":"remove","path":""}]'),
        (message(Op.TRUNCATE, None, None), "[]"),
        (
            message(Op.UPDATE, '{"a":2}', '{"a":1,"long":"x"}', unavailable=("long",)),
            '[{"op":"test","path":"/a","value":1},{"op":"replace","path":"/a","value":2}]',
        ),
        (
            message(Op.UPDATE, '{"a":2,"long":"x"}', '{"a":1}', unavailable_original=("long",)),
            '[{"op":"test","path":"/a","value":1},{"op":"replace","path":"/a","value":2}]',
        ),
    ],
)
def test_each_kind_of_change_has_the_expected_patch(envelope: Envelope, patch: str) -> None:
    delta = delta_of(envelope)
    assert dumps(delta.patch).decode() == patch == text_from(envelope)
    assert delta.provenance == envelope.provenance


def text_from(envelope: Envelope) -> str:
    """Returns the patch of a change, made directly from the JSON texts of its states."""
    source = envelope.provenance.source
    current, original = (
        None if isinstance(state, Missing | None) else bytes(state) for state in (envelope.current, envelope.original)
    )
    return patch_text(
        source.op,
        current,
        original,
        unavailable=frozenset((*source.unavailable, *source.unavailable_original)),
        unavailable_original=bool(source.unavailable_original),
    ).decode()


@given(envelopes())
def test_a_patch_that_is_made_from_texts_is_the_same(envelope: Envelope) -> None:
    assert same(parse(text_from(envelope)), parse(dumps(delta_of(envelope).patch)))


tricky = st.text(alphabet='a,":{}[]~/%\\ é\n', max_size=5)
names = st.sampled_from(["a", "b", "a,", "~/", "%d", "é", '"']) | tricky
flat = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | tricky


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draws two states that differ in a few columns, as JSON texts. Equal values may be escaped in different ways."""
    before = draw(st.dictionaries(names, flat | values, max_size=5))
    after = dict(before)
    for name in draw(st.lists(names | st.sampled_from([*before, "a"]), max_size=3)):
        if draw(st.booleans()):
            after[name] = draw(flat | values)
        else:
            after.pop(name, None)
    escaped, blanks = draw(st.tuples(*[st.booleans()] * 2)), draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    a, b = (
        json.dumps(state, ensure_ascii=ascii_, separators=blanks)
        for state, ascii_ in zip((before, after), escaped, strict=True)
    )
    return a.encode(), b.encode()


@given(pairs(), st.frozensets(names, max_size=2))
def test_changes_of_texts_are_the_diff_of_their_values(pair: tuple[bytes, bytes], left_out: frozenset[str]) -> None:
    a, b = ({name: value for name, value in parse(side).items() if name not in left_out} for side in pair)
    patch = parse(changes(*pair, left_out))
    assert text_of(patch) == text_of(diff(a, b))
    assert jsonpatch.apply_patch(json.loads(dumps(a)), json.loads(dumps(patch))) == json.loads(dumps(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('{"n":"x,","b":1}', '{"n":"x","b":1}'),
        ('{"n":"x,","b":1}', '{"n":"x,","b":2}'),
        ('{"n":",","b":1,"c":",,"}', '{"n":",","b":2,"c":",,"}'),
        ('{"n,":5,"b":1}', '{"n,":6,"b":1}'),
        ('{"d":{"x":1,"y":2,"z":3}}', '{"d":{"x":1,"y":3,"z":3}}'),
        ('{"a":1,"a":2}', '{"a":1,"a":3}'),
        ('{"a":1,"b":2,"a":2}', '{"a":3,"b":2,"a":2}'),
        ('{"a":"\\u00e9"}', '{"a":"é"}'),
        ('{"a":"\\ud800"}', '{"a":"\\udfff"}'),
        ('{"\\ud800":1}', '{"\\ud800":2}'),
        ("1", "2"),
        ("{}", '{"a":1}'),
        ("[1]", '{"a":1}'),
        ('{"a":"[","b":1}', '{"a":"[","b":2}'),
        ('{"a":1}', '{"b":1}'),
        ('{"a":"x","b":"y"}', '{"a":"y","b":"x"}'),
    ],
)
def test_similar_texts_are_not_confused(a: str, b: str) -> None:
    patch = changes(a.encode(), b.encode())
    assert text_of(parse(patch)) == text_of(diff(parse(a), parse(b)))
    patches, is_plain = patch_columns.changes(pa.array([a]), pa.array([b]))
    assert patches.to_pylist() == [patch.decode()] * int(is_plain[0])


plain = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([1.5, "", "x", "é", "a b", "late, or not"])


@st.composite
def rows_of_a_table(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draws a row before and after a change, in JSON as sources write it. A few values have characters to escape."""
    table = draw(st.sampled_from([("a", "b~", "a longer name"), ("a", "é/"), ("%d",)]))
    before, after = ({name: draw(plain | tricky) for name in table} for _ in range(2))
    unchanged = draw(st.sets(st.sampled_from(table)))
    return dumps(before), dumps(after | {name: before[name] for name in unchanged})


@given(st.lists(rows_of_a_table() | pairs(), max_size=8), st.integers(0, 2))
def test_patches_that_are_made_from_columns_are_the_same(states: list[tuple[bytes, bytes]], skipped: int) -> None:
    original, current = (pa.array([pair[side].decode() for pair in states], pa.utf8())[skipped:] for side in (0, 1))
    patches, plain_rows = patch_columns.changes(original, current)
    expected = [changes(*pair) for pair, is_plain in zip(states[skipped:], plain_rows, strict=True) if is_plain]
    assert patches.cast(pa.binary()).to_pylist() == expected


def test_columns_report_which_pairs_are_plain() -> None:
    """`patch_columns` makes patches only for some pairs of states, which are called plain here. If it found no pair
    plain, `test_patches_that_are_made_from_columns_are_the_same` would compare nothing.
    """
    states = [
        ('{"a":1,"long name":"x"}', '{"a":2,"long name":"é"}', True),
        ('{"a":1,"long name":"x\\n"}', '{"a":1,"long name":"x"}', False),
        ('{"b":null}', '{"b":true}', True),
        ('{"a":1,"long name":"x\\n"}', '{"a":-2.5,"long name":"x\\n"}', True),
        ('{"a":1,"long nane":"x"}', '{"a":2,"long nane":"x"}', True),
        ('{"a":1,"a":2}', '{"a":1,"a":3}', False),
        ('{"a":1,"long name":[1]}', '{"a":2,"long name":[1]}', False),
        ('{"b":"[{"}', '{"b":"[{"}', False),
        ('{"b":1}', '{"b":1}', True),
    ]
    original, current, expected = zip(*states, strict=True)
    patches, is_plain = patch_columns.changes(pa.array(original), pa.array(current))
    assert is_plain.tolist() == list(expected)
    assert patches.to_pylist()[1:] == [
        '[{"op":"test","path":"/b","value":null},{"op":"replace","path":"/b","value":true}]',
        '[{"op":"test","path":"/a","value":1},{"op":"replace","path":"/a","value":-2.5}]',
        '[{"op":"test","path":"/a","value":1},{"op":"replace","path":"/a","value":2}]',
        "[]",
    ]


def test_names_that_are_prefixes_of_each_other_are_distinguished() -> None:
    names = ["a" * length for length in (1, 4, 5, 6, 7, 8, 14, 16, 40)]
    for long in names:
        for short in names:
            sides = [pa.array([f'{{"{name}":{value}}}' for name in (long, short)]) for value in (1, 2)]
            patches, is_plain = patch_columns.changes(*sides)
            assert is_plain.all()
            assert [json.loads(patch)[0]["path"] for patch in patches.to_pylist()] == [f"/{long}", f"/{short}"]


def test_numbers_keep_their_spelling() -> None:
    patch = changes(b'{"n":1.50,"m":[1]}', b'{"n":1e400,"m":[1,-0]}')
    assert patch == (
        b'[{"op":"test","path":"/n","value":1.50},{"op":"replace","path":"/n","value":1e400},'
        b'{"op":"add","path":"/m/1","value":-0}]'
    )


def test_a_text_that_is_not_json_is_refused_without_its_content() -> None:
    with pytest.raises(ChangelogError) as caught:
        changes(b'{"a":"secret', b'{"a":1}')
    assert (caught.value.kind, str(caught.value)) == (Kind.MALFORMED, "a value is not JSON")


@pytest.mark.parametrize("op", [Op.CREATE, Op.UPDATE, Op.READ])
def test_a_change_without_its_state_is_refused(op: Op) -> None:
    for make in (delta_of, text_from):
        with pytest.raises(ChangelogError, match=f"a change \\({op}\\) has no current state"):
            make(message(op))


# The next tests use random histories of one key. A history lists the changes of the key's row.
columns = st.fixed_dictionaries({name: st.none() | st.integers(0, 2) | tricky | values for name in COLUMNS})


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Envelope, Any]]:
    """Draws the messages of one key in order, each with the row after the message."""
    history: list[tuple[Envelope, Any]] = []
    row: Any = MISSING
    for commit in range(1, draw(st.integers(2, 9))):
        envelope, row = draw(steps(row, commit))
        history.append((envelope, row))
    return history


@st.composite
def steps(draw: st.DrawFn, row: Any, commit: int) -> tuple[Envelope, Any]:
    if row is MISSING:
        new = draw(columns)
        return message(draw(st.sampled_from([Op.CREATE, Op.READ])), text(new), commit=commit), new
    old, how = text(row), draw(st.sampled_from(HOW))
    if how in ("delete", "bare"):
        return message(Op.DELETE, None, old if how == "delete" else MISSING, commit=commit), MISSING
    if how == "read":
        return message(Op.READ, old, commit=commit), row
    new = row | draw(columns.map(lambda values: {name: values[name] for name in COLUMNS[:2]}))
    unavailable = ("long",) if how == "toast" or draw(st.booleans()) else ()
    current = text({name: value for name, value in new.items() if name not in unavailable})
    original = MISSING if how == "unknown" else old
    return message(Op.UPDATE, current, original, commit=commit, unavailable=unavailable), new


@given(histories(), st.data())
def test_folding_gives_the_row_at_each_point(history: list[tuple[Envelope, Any]], data: st.DataObject) -> None:
    deltas = [delta_codec.decode(delta_codec.encode(delta_of(envelope))) for envelope, _ in history]
    for count, (_, row) in enumerate(history, 1):
        assert same(fold(deltas[:count]), row)
    half = data.draw(st.integers(0, len(deltas)))
    assert same(fold(deltas[half:], fold(deltas[:half])), history[-1][1])


@given(histories(), st.data())
def test_repeats_change_nothing(history: list[tuple[Envelope, Any]], data: st.DataObject) -> None:
    deltas = [delta_of(envelope) for envelope, _ in history]
    repeat_from = data.draw(st.integers(0, len(deltas) - 1))
    repeat_until = data.draw(st.integers(repeat_from + 1, len(deltas)))
    repeated = [*deltas[:repeat_until], *deltas[repeat_from:]]
    assert same(fold(repeated), history[-1][1])


@given(histories())
def test_inverted_deltas_give_the_earlier_rows_until_a_delta_lacks_the_old_value(
    history: list[tuple[Envelope, Any]],
) -> None:
    deltas = [delta_of(envelope) for envelope, _ in history]
    rows = [MISSING, *(row for _, row in history)]
    for place in range(len(deltas) - 1, -1, -1):
        if is_lossy(deltas[place]):
            with pytest.raises(ChangelogError, match="lacks the value that it removes"):
                back(deltas[place:], rows[-1])
            return
        assert same(back(deltas[place:], rows[-1]), rows[place])


def text(row: Any) -> str:
    return dumps(row).decode()


def is_lossy(delta: Delta) -> bool:
    return any(operation.get("reset") for operation in delta.patch) or delta.patch == [{"op": "remove", "path": ""}]


def test_a_missing_delta_is_noticed() -> None:
    create = message(Op.CREATE, '{"a":1}', commit=1)
    update = message(Op.UPDATE, '{"a":3}', '{"a":2}', commit=3)
    delete = message(Op.DELETE, None, '{"a":2}', commit=3)
    for last in (update, delete):
        for first in ([create], []):
            with pytest.raises(ChangelogError, match="a patch does not apply: operation 1 of 2 fails"):
                fold([delta_of(envelope) for envelope in (*first, last)])


def test_an_unknown_column_is_learnt_when_its_whole_value_changes() -> None:
    create = message(Op.CREATE, '{"a":1}', commit=1, unavailable=("long",))
    nested_update = message(Op.UPDATE, '{"a":2,"long":{"x":2}}', '{"a":1,"long":{"x":1}}', commit=2)
    full_update = message(Op.UPDATE, '{"a":2,"long":"y"}', '{"a":2,"long":{"x":2}}', commit=3)
    deltas = [delta_of(envelope) for envelope in (create, nested_update, full_update)]
    assert same(fold(deltas[:2]), {"a": 2})
    assert same(fold(deltas), {"a": 2, "long": "y"})
    delete = delta_of(message(Op.DELETE, None, '{"a":2,"long":{"x":2}}', commit=3))
    assert fold([*deltas[:2], delete]) is MISSING


def test_a_column_that_was_added_is_learnt_when_it_changes() -> None:
    create = message(Op.CREATE, '{"a":1}', commit=1)
    update = message(Op.UPDATE, '{"a":1,"b":5}', '{"a":1,"b":null}', commit=2)
    deltas = [delta_of(envelope) for envelope in (create, update)]
    assert same(fold(deltas), {"a": 1, "b": 5})
    assert same(back(deltas[1:], {"a": 1, "b": 5}), {"a": 1, "b": None})


def test_a_column_whose_original_is_unavailable_is_not_known_afterwards() -> None:
    create = message(Op.CREATE, '{"a":1,"long":"x"}', commit=1)
    update = message(Op.UPDATE, '{"a":2,"long":"y"}', '{"a":1}', commit=2, unavailable_original=("long",))
    deltas = [delta_of(envelope) for envelope in (create, update)]
    assert same(fold(deltas), {"a": 2})
    assert same(back(deltas[1:], {"a": 2, "long": "y"}), {"a": 1})


def test_a_truncate_removes_the_row() -> None:
    deltas = [delta_of(message(Op.CREATE, '{"a":1}')), delta_of(message(Op.TRUNCATE, None, None, commit=2))]
    assert fold(deltas) is MISSING
    with pytest.raises(ChangelogError, match="a truncate does not hold the state that it removes"):
        back(deltas, MISSING)


def test_no_event_without_a_position_is_dropped() -> None:
    create, read = (delta_of(message(op, text)) for op, text in ((Op.CREATE, '{"a":1}'), (Op.READ, '{"a":2}')))
    unplaced = [
        replace(delta, provenance=replace(delta.provenance, source=replace(delta.provenance.source, position=UNPLACED)))
        for delta in (create, read)
    ]
    assert same(fold(unplaced), {"a": 2})
    assert same(fold([create, read]), {"a": 1})


@given(envelopes())
def test_a_delta_survives_serialization(envelope: Envelope) -> None:
    delta = delta_of(envelope)
    decoded = delta_codec.decode(delta_codec.encode(delta))
    assert decoded.provenance == delta.provenance
    assert dumps(decoded.patch) == dumps(delta.patch)


SCHEMA: Any = fastavro.parse_schema(json.loads(files("changelog.schemas").joinpath("delta.avsc").read_text()))


@given(envelopes())
def test_a_delta_in_avro_fits_its_schema(envelope: Envelope) -> None:
    delta = delta_of(envelope)
    stream = io.BytesIO(delta_codec.avro(delta.provenance, delta.patch))
    datum: Any = fastavro.schemaless_reader(stream, SCHEMA, None)
    assert stream.read() == b""
    source = delta.provenance.source
    assert datum["provenance"]["source"]["position"] == str(source.position)
    assert datum["provenance"]["source"]["committedAt"] == source.committed_at
    assert datum["provenance"]["source"]["unavailable"] == list(source.unavailable)
    for operation, avro in zip(delta.patch, datum["patch"], strict=True):
        assert (avro["op"], avro["path"], avro["reset"]) == (
            operation["op"],
            operation["path"],
            bool(operation.get("reset")),
        )
        assert avro["value"] == (dumps(operation["value"]).decode() if "value" in operation else None)


@pytest.mark.parametrize("junk", [b"", b"{}", b'{"provenance":{},"patch":[]}', b'{"provenance":{},"patch":{}}'])
def test_an_invalid_delta_is_refused(junk: bytes) -> None:
    with pytest.raises(ChangelogError) as caught:
        delta_codec.decode(junk)
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize("deep_member", ["patch", "provenance", "unknown"])
def test_a_delta_that_is_nested_too_deeply_is_refused(deep_member: str) -> None:
    members = {"provenance": "{}", "patch": "[]", deep_member: "[" * 100_000 + "]" * 100_000}
    text = ",".join(f'"{name}":{value}' for name, value in members.items())
    with pytest.raises(ChangelogError, match="nested too deeply") as caught:
        delta_codec.decode(b"{%b}" % text.encode())
    assert caught.value.kind is Kind.LIMIT


def test_an_unpaired_surrogate_is_preserved() -> None:
    envelope = message(Op.CREATE, '{"a":"\\ud800"}')
    encoded = delta_codec.encode(delta_of(envelope))
    assert delta_codec.encode(delta_codec.decode(encoded)) == encoded
    assert fold([delta_codec.decode(encoded)]) == parse(Raw('{"a":"\\ud800"}'))


def test_changes_before_a_row_was_read_are_left_out() -> None:
    """`foldable` leaves out everything before the first whole state, including deletions. It leaves out nothing after
    that state.
    """
    after = [message(Op.READ, '{"a":2}', commit=3), message(Op.UPDATE, '{"a":3}', '{"a":2}', commit=4)]
    before_read = [message(Op.UPDATE, '{"a":2}', '{"a":1}', commit=1), message(Op.DELETE, None, '{"a":9}', commit=2)]
    deltas = [delta_of(envelope) for envelope in [*before_read, *after]]
    assert list(foldable(deltas)) == deltas[2:]
    assert list(foldable(deltas[2:])) == deltas[2:]
    assert list(foldable(deltas[:2])) == []
    assert same(fold(foldable(deltas)), {"a": Raw("3")})
    with pytest.raises(ChangelogError, match="a patch does not apply"):
        fold(deltas)
