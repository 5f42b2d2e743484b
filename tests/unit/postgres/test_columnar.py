"""Tests the two ways in which rows are decoded. The fast path (`columnar`) must give the same rows and errors as the
plain path (`row_records`).

The result must not depend on how the stream is divided among calls of `feed`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.capture.rows.row_change import Delete, Insert, Update
from changelog.connectors.sources.postgres.decode import columnar
from changelog.connectors.sources.postgres.decode.messages import (
    Decoded,
    Relation,
)
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from tests.unit.postgres.messages import (
    INT,
    TEXT,
    assembler,
    entity,
    frames,
    insert,
    relation,
    table,
    transaction,
    update,
)
from tests.unit.postgres.pgoutput_encoder import encode
from tests.unit.postgres.random_streams import Case, cases
from tests.unit.postgres.server_texts import SERVER_TEXTS

ROWS_EVER = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an assembler returned for a stream."""

    rows: pa.Table
    through: str | None
    altered: Sequence[object]
    unstamped: Mapping[str, int]
    invalid_stamps: list[tuple[str, int]]
    stop: tuple[str, Position | None] | None

    def comparable(self) -> tuple[object, ...]:
        return (
            self.rows.to_pylist(),
            self.through,
            self.altered,
            self.unstamped,
            self.invalid_stamps,
            self.stop,
        )


def _feed(
    case: Case, decisions: Mapping[Position, str], sent: Sequence[bytes], cuts: Sequence[int], rows_max: int
) -> Outcome:
    stream = assembler(case.entities, partitioned=case.partitioned, decisions=decisions, rows_max=rows_max)
    bounds = [0, *cuts, len(sent)]
    pieces = [stream.feed(sent[begin:end]) for begin, end in pairwise(bounds)]
    rows = table(*pieces)
    rows.validate(full=True)
    through = [piece.through for piece in pieces if piece.through is not None]
    unstamped = sum((piece.unstamped for piece in pieces[1:]), start=pieces[0].unstamped)
    return Outcome(
        rows=rows,
        through=max(through, default=None),
        altered=[altered for piece in pieces for altered in piece.altered],
        unstamped=dict(unstamped),
        invalid_stamps=[invalid for piece in pieces for invalid in piece.invalid_stamps],
        stop=None if stream.stop is None else (str(stream.stop), stream.stop.position),
    )


@pytest.fixture(scope="module", autouse=True)
def _fast() -> Iterator[None]:
    """Lets the fast path handle few rows, too. Otherwise, the plain path would handle most cases of these tests."""
    with mock.patch.object(columnar, "FEW_ROWS", 0):
        yield


@contextmanager
def _plain() -> Iterator[None]:
    """Lets the plain path handle all rows."""
    with mock.patch.object(columnar, "FEW_ROWS", ROWS_EVER):
        yield


@given(cases(), st.data())
@settings(max_examples=60, deadline=None)
def test_the_fast_path_gives_what_the_plain_path_gives(case: Case, data: st.DataObject) -> None:
    sent = frames(case.messages, case.lsns)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent)), max_size=6)))
    rows_max = data.draw(st.sampled_from([1, 2, 5, ROWS_EVER]))
    decisions: dict[Position, str] = {}
    for _ in range(4):
        fast = _feed(case, decisions, sent, [], ROWS_EVER)
        with _plain():
            slow = _feed(case, decisions, sent, [], ROWS_EVER)
            slow_cut = _feed(case, decisions, sent, cuts, rows_max)
        assert fast.comparable() == slow.comparable()
        _are_json(fast.rows)
        assert _feed(case, decisions, sent, cuts, rows_max).comparable() == slow_cut.comparable()
        one_by_one = _feed(case, decisions, sent, range(1, len(sent)), rows_max)
        _same_whatever_the_cuts(fast, one_by_one)
        _same_whatever_the_cuts(fast, slow_cut)
        if fast.stop is None:
            return
        position = fast.stop[1]
        assert position is not None
        decisions[position] = data.draw(st.sampled_from(["skip", "dead-letter", "default"]))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_column_that_was_not_logged_is_not_published_as_null(data: st.DataObject) -> None:
    """A partitioned table may log whole rows, but one of its partitions may log fewer columns. In the log, a row does
    not name its partition, and a column that was not logged looks like a null.

    So a null in an old row must be published as unavailable if the row may come from such a partition.
    """
    names = ["id", "a", "b", "c"]
    root = relation(columns=dict.fromkeys(names, TEXT))
    logged = data.draw(st.lists(st.none() | st.sets(st.sampled_from("abc")), min_size=1, max_size=3))
    leaves = [
        relation(
            30_000 + number,
            f"leaf{number}",
            dict.fromkeys(names, TEXT),
            key={"id", *(names_logged or ())},
            identity=kind,
        )
        for number, names_logged in enumerate(logged)
        for kind in ["f" if names_logged is None else "d"]
    ]
    changes: list[Decoded] = []
    truth: list[dict[str, str | None]] = []
    for number in range(data.draw(st.integers(1, 6))):
        leaf = data.draw(st.sampled_from(leaves))
        optional = st.sampled_from(["x", "y"]) if leaf.replica_identity == "d" else st.sampled_from(["x", None])
        row: dict[str, str | None] = {"id": str(number)}
        row |= {name: data.draw(optional if _logs(leaf, name) else st.sampled_from(["x", None])) for name in names[1:]}
        truth.append(row)
        old = tuple(value.encode() if value and _logs(leaf, name) else None for name, value in row.items())
        changes += [root, leaf, Delete(relid=root.relid, old_kind="O", old=old)]
    messages = transaction(100, changes)
    case = Case(entities=[entity()], partitioned=["orders"], messages=messages, lsns=range(len(messages)))
    for rows in (_feed(case, {}, frames(messages), [], ROWS_EVER).rows, _plain_rows(case)):
        for published, row in zip(rows.to_pylist(), truth, strict=True):
            original = json.loads(published["original"])
            unavailable = json.loads(published["provenance"])["source"].get("unavailableOriginal", [])
            assert original == {name: value for name, value in row.items() if name not in unavailable}
            assert not unavailable or any(leaf.replica_identity == "d" for leaf in leaves)
            assert not unavailable or None not in original.values()


def _logs(leaf: Relation, name: str) -> bool:
    return any(column.key for column in leaf.columns if column.name == name)


def _plain_rows(case: Case) -> pa.Table:
    with _plain():
        return _feed(case, {}, frames(case.messages), [], ROWS_EVER).rows


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_both_paths_convert_values_of_every_type_alike(data: st.DataObject) -> None:
    """Each row has a value of every type. The columns are in random order, so any two types can be neighbours."""
    oids = data.draw(st.permutations(sorted(SERVER_TEXTS)))
    relation_ = relation(columns={"id": INT, **{f"of_{oid}": oid for oid in oids}})
    row = st.tuples(SERVER_TEXTS[INT].map(str.encode), *(st.none() | SERVER_TEXTS[oid].map(str.encode) for oid in oids))
    values = data.draw(st.lists(row, min_size=20, max_size=20))
    changes: list[Decoded] = [Insert(relid=relation_.relid, new=new) for new in values]
    changes += [Update(relid=relation_.relid, old_kind="O", old=old, new=new) for old, new in pairwise(values)]
    changes += [Update(relid=relation_.relid, old_kind=None, old=None, new=new) for new in values]
    changes += [Delete(relid=relation_.relid, old_kind="O", old=old) for old in values]
    messages = transaction(100, [relation_, *changes])
    case = Case(entities=[entity()], partitioned=[], messages=messages, lsns=range(len(messages)))
    fast = _feed(case, {}, frames(messages), [], ROWS_EVER)
    with _plain():
        assert fast.comparable() == _feed(case, {}, frames(messages), [], ROWS_EVER).comparable()
    _are_json(fast.rows)
    assert len(fast.rows) >= len(changes)


def _are_json(rows: pa.Table) -> None:
    """Checks that the current and the original state of each row is a JSON object or null."""
    for text in [*rows.column("current").to_pylist(), *rows.column("original").to_pylist()]:
        assert text is None or isinstance(json.loads(text), dict)


def _same_whatever_the_cuts(expected: Outcome, cut: Outcome) -> None:
    """Checks that cutting the stream in another way changes nothing.

    There is one exception. If the stream stops inside a transaction, the rows of this transaction before the stop may
    be returned or not.
    """
    assert cut.stop == expected.stop
    assert cut.through == expected.through
    assert cut.rows.slice(0, len(expected.rows)).equals(expected.rows)
    more = {Position.parse(text) for text in cut.rows.slice(len(expected.rows)).column("position").to_pylist()}
    if expected.stop is None or expected.stop[1] is None:
        assert not more
    else:
        assert {position.commit for position in more} <= {expected.stop[1].commit}
        assert all(position < expected.stop[1] for position in more)


def _outcome(case: Case, sent: Sequence[bytes]) -> object:
    """Returns what the assembler returns for the stream. If the stream is malformed, returns the kind of the error."""
    try:
        return _feed(case, {}, sent, [], ROWS_EVER).comparable()
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED:
            raise
        return error.kind


def _structure(message: Decoded) -> set[int]:
    """Returns the offsets of all bytes of a row's message except those of the table's OID and of the values."""
    payload = encode(message)
    values = [
        value for side in ("old", "new") for value in getattr(message, side, None) or () if isinstance(value, bytes)
    ]
    at = 5
    offsets = {0}
    for value in values:
        begin = payload.index(b"t" + len(value).to_bytes(4, "big") + value, at)
        offsets |= set(range(at, begin + 5))
        at = begin + 5 + len(value)
    return offsets | set(range(at, len(payload)))


@given(cases(), st.data())
@settings(max_examples=60, deadline=None)
def test_both_paths_refuse_bytes_that_no_server_sends(case: Case, data: st.DataObject) -> None:
    rows = [number for number, message in enumerate(case.messages) if isinstance(message, Insert | Update | Delete)]
    if not rows:
        return
    number = data.draw(st.sampled_from(rows))
    sent = frames(case.messages, case.lsns)
    header = 25
    payload = sent[number][header:]
    match data.draw(st.sampled_from(["cut", "grown", "changed"])):
        case "cut":
            broken = payload[: data.draw(st.integers(0, len(payload) - 1))]
        case "grown":
            broken = payload + data.draw(st.binary(min_size=1, max_size=3))
        case _:
            at = data.draw(st.sampled_from(sorted(_structure(case.messages[number]))))
            broken = payload[:at] + bytes([data.draw(st.integers(0, 255))]) + payload[at + 1 :]
    sent[number] = sent[number][:header] + broken
    fast = _outcome(case, sent)
    with _plain():
        assert fast == _outcome(case, sent)


@pytest.mark.parametrize("length", range(27))
def test_a_frame_that_lacks_bytes_of_its_header_or_its_message_is_malformed(length: int) -> None:
    sent = frames(transaction(100, [relation(), insert(1)]))
    for place in range(len(sent)):
        with pytest.raises(ChangelogError) as caught:
            assembler(rows_max=1).feed([*sent[:place], sent[place][:length], *sent[place + 1 :]])
        assert caught.value.kind is Kind.MALFORMED


def test_a_row_that_lacks_its_last_bytes_is_malformed() -> None:
    for row in (insert(1), update(1, 1), update(1, 2)):
        before, [sent], after = frames([relation()]), frames([row]), frames(transaction(100, []))
        for length in range(25, len(sent)):
            with pytest.raises(ChangelogError) as caught:
                assembler().feed([after[0], *before, sent[:length], after[1]])
            assert caught.value.kind is Kind.MALFORMED


def test_rows_that_do_not_have_the_columns_of_their_table_are_malformed() -> None:
    for values in ((b"1",), (b"1", b"NEW", b"more")):
        with pytest.raises(ChangelogError) as caught:
            assembler().feed(frames(transaction(100, [relation(), Insert(relid=20_000, new=values)])))
        assert caught.value.kind is Kind.MALFORMED


def test_rows_of_a_large_block_keep_their_bytes() -> None:
    """Long values make a buffer grow, and move the rows in it. Each row must keep its own bytes."""
    rows = [insert(number, "x" * (number % 7) * 1000) for number in range(300)]
    [published] = assembler().feed(frames(transaction(100, [relation(), *rows]))).rows
    assert np.array_equal(published.column("key").to_numpy(zero_copy_only=False).astype(int), np.arange(300))
    assert published.column("current")[6].as_py() == '{"id":6,"status":"%s"}' % ("x" * 6000)
