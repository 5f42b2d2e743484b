"""Where a stream is cut into pieces, and how it goes on after any of them."""

from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.sources.postgres.decode.messages import (
    Begin,
    Decoded,
    LogicalMessage,
    TypeName,
)
from changelog.envelope.position import Position, commit_text
from tests.unit.postgres.messages import (
    FOREIGN,
    TRUNCATE,
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


def test_only_whole_transactions_are_given_until_one_is_too_large() -> None:
    fed = assembler(rows_max=3)
    sent = frames([*transaction(100, [relation(), insert(1)]), *transaction(200, [insert(key) for key in range(2, 8)])])
    assert fed.between
    pieces = [fed.feed(sent[at : at + 1]) for at in range(4)]
    assert ops(*pieces) == ["create 1"]
    assert (pieces[3].through, pieces[3].partial) == (commit_text(101), False)
    assert fed.between
    pieces = [fed.feed(sent[at : at + 1]) for at in range(4, 8)]
    assert ops(*pieces) == ["create 2", "create 3"]
    assert (pieces[3].through, pieces[3].partial) == (None, True)
    last = fed.feed(sent[8:])
    assert ops(last) == ["create 4", "create 5", "create 6", "create 7"]
    assert (last.through, last.partial) == (commit_text(201), False)
    assert fed.between


def test_a_transaction_of_few_large_rows_comes_in_pieces_too() -> None:
    fed = assembler(bytes_max=1000)
    sent = frames(transaction(100, [relation(), *(insert(key, "x" * 400) for key in range(6))]))
    pieces = [fed.feed([each]) for each in sent]
    assert [len(table(piece)) for piece in pieces] == [0, 0, 0, 1, 0, 2, 0, 2, 1]
    assert pieces[-2].partial
    assert not pieces[-1].partial
    assert ops(*pieces) == [f"create {key}" for key in range(6)]


def test_the_last_row_may_be_of_a_whole_transaction_though_another_has_begun() -> None:
    fed = assembler(rows_max=2)
    unheard: list[Decoded] = [insert(key, relid=30_000) for key in range(5)]
    sent = [*transaction(100, [relation(), UNBOUND, insert(1)]), *transaction(200, [*unheard, insert(2)])]
    begun = fed.feed(frames(sent)[:9])
    assert (ops(begun), begun.through, begun.partial) == (["create 1"], commit_text(101), False)


def test_a_message_outside_any_transaction_leaves_none_open() -> None:
    """Else the position of an idle database stood still, and its slot kept log, from the first such message on."""
    outside = LogicalMessage(transactional=False, lsn=0, prefix="heartbeat", content=b"x")
    fed = assembler()
    [begin, *rest] = frames(transaction(200, [insert(2)]))
    sent = [
        frames([outside]),
        frames([*transaction(100, [relation(), insert(1)]), outside, outside]),
        [*frames([outside]), begin],
        rest,
    ]
    told = [(ops(fed.feed(part)), fed.between) for part in sent]
    assert told == [([], True), (["create 1"], True), ([], False), (["create 2"], True)]


def test_nothing_is_between_transactions_while_frames_of_one_wait() -> None:
    fed = assembler()
    sent = frames(transaction(100, [relation(), insert(1)]))
    for each in sent[:-1]:
        fed.feed([each])
        assert not fed.between
    fed.feed(sent[-1:])
    assert fed.between


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
        drawn = draw(st.lists(changes, max_size=7))
        flat = [each for change in drawn for each in (change if isinstance(change, tuple) else (change,))]
        sent += transaction(100 * (number + 1), flat, xid=701 + number)
    return sent


MADE = entity(on_truncate="publish", partitions=2)


@given(streams(), st.sampled_from([1, 2, 3, 100]), st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_resumed_anywhere_goes_on_without_a_loss_or_a_repeat(
    sent: list[Decoded], rows_max: int, data: st.DataObject
) -> None:
    """Any piece may be the last one stored; the server then sends again from a transaction's begin."""
    whole = table(assembler([MADE], partitioned=["orders"]).feed(frames(sent)))
    fed = assembler([MADE], partitioned=["orders"], rows_max=rows_max)
    stored = table()
    published: Position | None = None
    partial = False
    lost_at = data.draw(st.sets(st.integers(0, len(sent) - 1), max_size=3))
    for number, each in enumerate(frames(sent)):
        piece = fed.feed([each])
        stored = pa.concat_tables([stored, table(piece)])
        if len(table(piece)):
            published, partial = Position.parse(stored["position"][-1].as_py()), piece.partial
        elif piece.through is not None:
            partial = piece.partial
        if number not in lost_at:
            continue
        again = _from_a_begin(data, sent, published)
        cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(again)), max_size=2))), len(again)]
        resumed = assembler(
            [MADE],
            partitioned=["orders"],
            published=published,
            partial=partial,
            rows_max=data.draw(st.sampled_from([1, 2, 100])),
        )
        rest = table(*(resumed.feed(frames(again, _lsns(again, sent))[begin:end]) for begin, end in pairwise(cuts)))
        assert pa.concat_tables([stored, rest]).equals(whole)
    assert stored.equals(whole)


def _from_a_begin(data: st.DataObject, sent: list[Decoded], published: Position | None) -> list[Decoded]:
    """What a new session sends: from some transaction not behind the one to go on with, relations first."""
    begins = [number for number, message in enumerate(sent) if isinstance(message, Begin)]
    wanted = [number for number in begins if published is None or _commit(sent[number]) <= published.commit]
    first = data.draw(st.sampled_from(wanted)) if wanted and published is not None else begins[0]
    described = [] if first == 0 else [relation(), UNBOUND]
    return [sent[first], *described, *sent[first + 1 :]]


def _commit(message: Decoded) -> int:
    assert isinstance(message, Begin)
    return message.final_lsn


def _lsns(again: list[Decoded], sent: list[Decoded]) -> list[int]:
    skipped = len(sent) - len(again)
    return list(range(1000 + skipped, 1000 + len(sent)))


def test_transactions_that_are_published_are_passed_over_whole() -> None:
    sent = [*transaction(100, [relation(), insert(1)]), *transaction(200, [insert(2)]), *transaction(300, [insert(3)])]
    given_ = assembler(published=Position(1, 200, 0)).feed(frames(sent))
    assert ops(given_) == ["create 3"]
    assert given_.through == commit_text(301)
