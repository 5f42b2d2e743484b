"""Tests where the assembler cuts a stream into pieces. The service stores one piece after the other.

If the service stops after any piece, it must be possible to resume the stream there.
"""

from itertools import count, pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.sources.postgres.decode.messages import (
    Begin,
    Decoded,
    LogicalMessage,
    Relation,
    Truncate,
    TypeName,
)
from changelog.connectors.sources.postgres.values.types import PgType
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from tests.unit.postgres.messages import (
    FOREIGN,
    TRUNCATE,
    TYPES,
    UNBOUND,
    assembler,
    delete,
    entity,
    frames,
    insert,
    ops,
    relation,
    stamp,
    table,
    transaction,
    update,
)
from tests.unit.postgres.random_streams import Case, cases


def test_only_whole_transactions_are_returned_unless_one_is_too_large() -> None:
    stream = assembler(rows_max=3)
    sent = frames([*transaction(100, [relation(), insert(1)]), *transaction(200, [insert(key) for key in range(2, 8)])])
    assert stream.between
    pieces = [stream.feed(sent[at : at + 1]) for at in range(4)]
    assert ops(*pieces) == ["create 1"]
    assert (pieces[3].through, pieces[3].partial) == (commit_text(101), False)
    assert stream.between
    pieces = [stream.feed(sent[at : at + 1]) for at in range(4, 8)]
    assert ops(*pieces) == ["create 2", "create 3"]
    assert (pieces[3].through, pieces[3].partial) == (None, True)
    last = stream.feed(sent[8:])
    assert ops(last) == ["create 4", "create 5", "create 6", "create 7"]
    assert (last.through, last.partial) == (commit_text(201), False)
    assert stream.between


def test_a_transaction_of_few_large_rows_is_also_cut_into_pieces() -> None:
    stream = assembler(bytes_max=1000)
    sent = frames(transaction(100, [relation(), *(insert(key, "x" * 400) for key in range(6))]))
    pieces = [stream.feed([frame]) for frame in sent]
    assert [len(table(piece)) for piece in pieces] == [0, 0, 0, 1, 0, 2, 0, 2, 1]
    assert pieces[-2].partial
    assert not pieces[-1].partial
    assert ops(*pieces) == [f"create {key}" for key in range(6)]


def test_a_whole_transaction_is_returned_although_the_next_one_has_begun() -> None:
    stream = assembler(rows_max=2)
    unpublished: list[Decoded] = [insert(key, relid=30_000) for key in range(5)]
    sent = [*transaction(100, [relation(), UNBOUND, insert(1)]), *transaction(200, [*unpublished, insert(2)])]
    first_piece = stream.feed(frames(sent)[:9])
    assert (ops(first_piece), first_piece.through, first_piece.partial) == (["create 1"], commit_text(101), False)


def test_a_message_outside_transactions_does_not_begin_a_transaction() -> None:
    """If the assembler took such a message for the beginning of a transaction, the stream would stay inside this
    transaction while the database is idle. The confirmed position would not advance, and the slot would keep more and
    more of the log.
    """
    outside = LogicalMessage(transactional=False, lsn=0, prefix="heartbeat", content=b"x")
    stream = assembler()
    [begin, *rest] = frames(transaction(200, [insert(2)]))
    sent = [
        frames([outside]),
        frames([*transaction(100, [relation(), insert(1)]), outside, outside]),
        [*frames([outside]), begin],
        rest,
    ]
    results = [(ops(stream.feed(part)), stream.between) for part in sent]
    assert results == [([], True), (["create 1"], True), ([], False), (["create 2"], True)]


def test_a_transaction_is_open_until_its_last_frame() -> None:
    stream = assembler()
    sent = frames(transaction(100, [relation(), insert(1)]))
    for frame in sent[:-1]:
        stream.feed([frame])
        assert not stream.between
    stream.feed(sent[-1:])
    assert stream.between


keys = st.integers(1, 4)
changes = st.one_of(
    st.builds(insert, keys),
    st.builds(update, keys, keys),
    st.builds(delete, keys),
    st.just(stamp()),
    st.just(FOREIGN),
    st.just(TRUNCATE),
    st.builds(insert, keys, relid=st.just(30_000)),
    st.builds(lambda key: (delete(key), insert(key)), keys),
    st.builds(lambda key: (delete(key), relation(), TypeName(type_oid=1, namespace="p", name="t"), insert(key)), keys),
)


@st.composite
def streams(draw: st.DrawFn) -> list[Decoded]:
    sent = transaction(50, [relation(), UNBOUND], xid=650)
    for number in range(draw(st.integers(1, 4))):
        drawn_changes = draw(st.lists(changes, max_size=7))
        flat = [message for change in drawn_changes for message in (change if isinstance(change, tuple) else (change,))]
        sent += transaction(100 * (number + 1), flat, xid=701 + number)
    return sent


ORDER = entity(on_truncate="publish", partitions=2)


@given(streams(), st.sampled_from([1, 2, 3, 100]), st.data())
@settings(max_examples=150, deadline=None)
def test_a_stream_that_is_resumed_after_any_piece_loses_and_repeats_nothing(
    sent: list[Decoded], rows_max: int, data: st.DataObject
) -> None:
    """After a crash, any piece may be the last one that was stored. The server then sends the stream again, from the
    start of a transaction.
    """
    expected = table(assembler([ORDER], partitioned=["orders"]).feed(frames(sent)))
    stream = assembler([ORDER], partitioned=["orders"], rows_max=rows_max)
    stored = table()
    published: Position | None = None
    partial = False
    lost_at = data.draw(st.sets(st.integers(0, len(sent) - 1), max_size=3))
    for number, frame in enumerate(frames(sent)):
        piece = stream.feed([frame])
        stored = pa.concat_tables([stored, table(piece)])
        if len(table(piece)):
            published, partial = Position.parse(stored["position"][-1].as_py()), piece.partial
        elif piece.through is not None:
            partial = piece.partial
        if number not in lost_at:
            continue
        resent = _from_a_begin(data, sent, published)
        cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(resent)), max_size=2))), len(resent)]
        resumed = assembler(
            [ORDER],
            partitioned=["orders"],
            published=published,
            partial=partial,
            rows_max=data.draw(st.sampled_from([1, 2, 100])),
        )
        rest = table(*(resumed.feed(frames(resent, _lsns(resent, sent))[begin:end]) for begin, end in pairwise(cuts)))
        assert pa.concat_tables([stored, rest]).equals(expected)
    assert stored.equals(expected)


def _from_a_begin(data: st.DataObject, sent: list[Decoded], published: Position | None) -> list[Decoded]:
    """Returns the messages that the server sends in a new session. They begin with the transaction of the position
    `published`, or with an earlier transaction.
    """
    begins = [number for number, message in enumerate(sent) if isinstance(message, Begin)]
    candidates = [number for number in begins if published is None or _commit(sent[number]) <= published.commit]
    first = data.draw(st.sampled_from(candidates)) if candidates and published is not None else begins[0]
    described = [] if first == 0 else [relation(), UNBOUND]
    return [sent[first], *described, *sent[first + 1 :]]


def _commit(message: Decoded) -> int:
    assert isinstance(message, Begin)
    return message.final_lsn


def _lsns(resent: list[Decoded], sent: list[Decoded]) -> list[int]:
    skipped = len(sent) - len(resent)
    return list(range(1000 + skipped, 1000 + len(sent)))


def test_transactions_that_are_published_are_skipped() -> None:
    sent = [*transaction(100, [relation(), insert(1)]), *transaction(200, [insert(2)]), *transaction(300, [insert(3)])]
    assembled = assembler(published=Position(1, 200, 0)).feed(frames(sent))
    assert ops(assembled) == ["create 3"]
    assert assembled.through == commit_text(301)


@given(cases(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_lost_connection_to_the_catalogue_loses_and_repeats_no_row(case: Case, data: st.DataObject) -> None:
    """After the error of the catalogue, the test resumes the stream where a source would resume it.

    A policy of an entity may also stop the stream inside a transaction. How much of this transaction is published
    depends on where the stream was cut, so the test compares only the rows of earlier transactions.
    """
    sent, rows_max = frames(*_described_late(case)), data.draw(st.sampled_from([1, 3, 100]))
    cut, lost_at, lookups = data.draw(st.integers(0, len(sent))), data.draw(st.integers(0, 40)), count()

    def resolve(type_oid: int) -> PgType:
        if next(lookups) == lost_at:
            raise ChangelogError(Kind.CONNECTION, "the connection broke")
        return TYPES[type_oid]

    stream = assembler(case.entities, partitioned=case.partitioned, resolve=resolve, rows_max=rows_max)
    pieces = [stream.feed(sent[:cut]), stream.feed(sent[cut:])]
    if stream.stop is None or stream.stop.kind is not Kind.CONNECTION:
        return
    through = max((int(piece.through, 16) for piece in pieces if piece.through is not None), default=1)
    rows = table(*pieces)
    last = Position.parse(rows["position"][-1].as_py()) if len(rows) else Position(1, 0, 0)
    partial = any(piece.partial for piece in pieces) and last.commit >= through
    resumed = assembler(
        case.entities,
        partitioned=case.partitioned,
        published=last if partial else max(last, Position(1, through - 1, 0)),
        partial=partial,
    ).feed(sent)
    uncut = assembler(case.entities, partitioned=case.partitioned)
    whole = uncut.feed(sent)
    stopped = None if uncut.stop is None else uncut.stop.position
    end = 1 << 62 if stopped is None else stopped.commit
    assert _rows_before(end, *pieces, resumed) == _rows_before(end, whole)


def _rows_before(commit: int, *pieces: Assembled) -> list[tuple[str, ...]]:
    return [row for row in _rows(*pieces) if Position.parse(row[3]).commit < commit]


def _described_late(case: Case) -> tuple[list[Decoded], list[int]]:
    """Returns the messages and their log positions. Moves the description of each table to where it is first used."""
    described = {message.relid: message for message in case.messages[:4] if isinstance(message, Relation)}
    late: list[tuple[Decoded, int]] = []
    for message, lsn in zip(case.messages, case.lsns, strict=True):
        relids = message.relids if isinstance(message, Truncate) else [getattr(message, "relid", -1)]
        for relid in relids:
            description = described.get(relid)
            if description is not message and relid in described:
                late += [] if isinstance(message, Relation) else [(described[relid], lsn)]
                del described[relid]
        if all(message is not description for description in described.values()):
            late.append((message, lsn))
    return [message for message, _ in late], [lsn for _, lsn in late]


def _rows(*pieces: Assembled) -> list[tuple[str, ...]]:
    columns = table(*pieces).select(["entity", "key", "op", "position", "partition"])
    return [tuple(row.values()) for row in columns.to_pylist()]
