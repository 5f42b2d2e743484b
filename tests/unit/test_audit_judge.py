"""Tests `tests.campaigns._audit`, which judges the changelogs of some fault campaigns.

The judge must accept correct changelogs, and find each kind of error.
"""

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns._audit.history import BRANCH, Event, Recorded, Restored, Transaction, events, place, with_lost
from tests.campaigns._audit.judge import Since, Verdict, judge
from tests.campaigns._audit.partitions import murmur2
from tests.campaigns._audit.rows import TRUNCATE_KEY, Gap, Row, gap_of
from tests.campaigns._audit.values import Number, State, documented, key_text, parsed, printed, same

AUDIT = Path(__file__).parents[1] / "campaigns" / "_audit"
JUDGING = ("values", "partitions", "history", "rows", "judge", "tables", "topics")
LONG = "x" * 5_000


def state(number: int, title: str, body: str | None = None) -> State:
    return {"id": Number(number), "title": title, **({} if body is None else {"body": body})}


def change(op: str, old: State | None, new: State | None, entity: str = "page", other: str | None = None) -> Event:
    key = str((new or old or {})["id"])
    return Event(entity=entity, op=op, key=key, old=old, new=new, stamp="s", other=other)


ONE, TWO, MOVED = state(1, "one"), state(1, "two"), state(2, "two")
LATE, LATE_CHANGED = state(7, "seven", LONG), state(7, "eight", LONG)
TRANSACTIONS = [
    Transaction(xid=10, first=100, end=110, committed="t", events=[change("create", None, ONE)]),
    Transaction(
        xid=12, first=105, end=120, committed="t", events=[change("update", ONE, TWO), change("update", TWO, TWO)]
    ),
    Transaction(
        xid=11,
        first=111,
        end=130,
        committed="t",
        events=[change("delete", TWO, None, other="2"), change("create", None, MOVED, other="1")],
    ),
    Transaction(xid=13, first=131, end=140, committed="t", events=[change("create", None, LATE, "late_default")]),
    Transaction(
        xid=14, first=141, end=150, committed="t", events=[change("update", LATE, LATE_CHANGED, "late_default")]
    ),
    Transaction(
        xid=15,
        first=151,
        end=160,
        committed="t",
        events=[
            Event(entity="seat", op="create", key="a", new={"code": "a"}, stamp="s"),
            Event(entity="seat", op="truncate", stamp="s"),
            Event(entity="seat", op="create", key="a", new={"code": "a"}, stamp="s"),
        ],
    ),
]
SINCE = {"page": Since(nothing=50), "seat": Since(nothing=50), "late_default": Since(nothing=132, published=140)}
TABLES: Mapping[str, Mapping[str, State]] = {
    "page": {"2": MOVED},
    "late_default": {"7": LATE_CHANGED},
    "seat": {"a": {"code": "a"}},
}


def row(commit: int, ordinal: int, op: str, xid: int, current: State | None, original: State | None = None) -> Row:
    key = str((current or original or {})["id"])
    return Row(
        entity="page",
        partition=0,
        key=key,
        op=op,
        position=f"00000001/{commit:016X}/{ordinal:08X}",
        transaction=xid,
        committed="t",
        stamp="s",
        current=current,
        original=original,
    )


def seat(ordinal: int, op: str, partition: int, current: State | None = None) -> Row:
    template = row(155, ordinal, op, 15, ONE)
    key = TRUNCATE_KEY if current is None else "a"
    return replace(template, entity="seat", partition=partition, key=key, current=current)


ROWS = [
    row(108, 0, "create", 10, ONE),
    row(118, 0, "update", 12, TWO, ONE),
    row(118, 2, "update", 12, TWO, TWO),
    replace(row(128, 0, "delete", 11, None, TWO), other="2"),
    replace(row(128, 1, "create", 11, MOVED), other="1"),
    row(134, 4, "read", 99, MOVED),
    replace(row(145, 4, "read", 98, LATE), entity="late_default"),
    replace(row(148, 0, "update", 14, state(7, "eight")), entity="late_default", unavailable=["body"]),
    seat(0, "create", 0, {"code": "a"}),
    seat(2, "truncate", 0),
    seat(2, "truncate", 1),
    seat(4, "create", 0, {"code": "a"}),
]
"""A correct changelog. The table of `late_default` was added to the changelog after the table's row had been created.
So the changelog has no create of this row: it has the row as it was read from the table.
"""


def verdict_on(rows: list[Row], since: Mapping[str, Since] = SINCE) -> Verdict:
    return judge(rows, TRANSACTIONS, since, TABLES)


def test_a_correct_changelog_passes() -> None:
    verdict = verdict_on(ROWS)
    verdict.check()
    assert (verdict.changes, verdict.reads, verdict.transactions) == (10, 2, 5)


def with_fields(number: int, **fields: object) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [*rows[:number], replace(rows[number], **fields), *rows[number + 1 :]]  # type: ignore[arg-type]


def exchanged_rows(number: int, other: int) -> Callable[[list[Row]], list[Row]]:
    """Returns a function that exchanges the positions of two rows."""

    def swap(rows: list[Row]) -> list[Row]:
        first, second = rows[number].position, rows[other].position
        exchanged = list(rows)
        exchanged[number] = replace(rows[other], position=first)
        exchanged[other] = replace(rows[number], position=second)
        return exchanged

    return swap


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("lost", lambda rows: rows[1:]),
        ("lost", lambda rows: rows[:2] + rows[3:]),
        ("lost", lambda rows: rows[:3] + rows[5:]),
        ("lost", lambda rows: rows[:7] + rows[8:]),
        ("lost", lambda rows: rows[:10] + rows[11:]),
        ("folded_wrong", lambda rows: rows[:-1]),
        ("repeated", lambda rows: [*rows[:2], *rows[1:]]),
        ("repeated", lambda rows: [*rows[:2], replace(rows[1], position=rows[1].position[:-1] + "1"), *rows[2:]]),
        ("repeated", with_fields(0, transaction=17)),
        ("reordered", lambda rows: [rows[1], rows[0], *rows[2:]]),
        ("reordered", exchanged_rows(1, 2)),
        ("repeated", exchanged_rows(0, 1)),
        ("reordered", with_fields(8, position="00000001/000000000000009B/00000003")),
        ("wrong", with_fields(1, current=ONE)),
        ("wrong", with_fields(1, current={**TWO, "body": None})),
        ("wrong", with_fields(1, original=TWO)),
        ("wrong", with_fields(1, original=None)),
        ("wrong", with_fields(1, op="create")),
        ("wrong", with_fields(1, stamp="another")),
        ("wrong", with_fields(1, committed="u")),
        ("wrong", with_fields(1, unavailable=["title"], current={"id": Number(1)})),
        ("wrong", with_fields(1, current={"id": "1", "title": "two"})),
        ("wrong", with_fields(3, other=None)),
        ("wrong", with_fields(3, unavailable_original=["title"])),
        ("wrong", with_fields(7, original={"id": Number(7)})),
        ("wrong", with_fields(7, unavailable=["title"])),
        ("wrong", with_fields(4, partition=1)),
        ("stale", with_fields(5, current=TWO)),
        ("stale", with_fields(6, current=LATE_CHANGED)),
        ("stale", with_fields(5, key="1")),
        ("wrong", with_fields(5, original=MOVED)),
        ("repeated", with_fields(5, op="update")),
        ("folded_wrong", lambda rows: [*rows, row(170, 0, "read", 97, state(3, "ghost"))]),
        ("folded_wrong", lambda rows: [*rows, row(170, 0, "read", 97, ONE)]),
    ],
)
def test_every_error_is_found(kind: str, spoil: Callable[[list[Row]], list[Row]]) -> None:
    verdict = verdict_on(spoil(ROWS))
    assert getattr(verdict, kind), verdict
    with pytest.raises(AssertionError, match=kind):
        verdict.check()


HIDDEN = {**SINCE, "page": Since(nothing=50, hidden=((112, 125),))}
SWEPT = row(134, 6, "delete", 99, None, ONE)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (None, lambda rows: rows),
        (None, lambda rows: [rows[0], *rows[2:]]),
        (None, lambda rows: [rows[0], *rows[3:]]),
        (None, lambda rows: [*rows[:3], replace(rows[3], other=None), *rows[5:]]),
        (None, lambda rows: [*rows[:3], *rows[5:6], SWEPT, *rows[6:]]),
        ("lost", lambda rows: rows[1:]),
        ("lost", lambda rows: rows[:7] + rows[8:]),
        ("repeated", exchanged_rows(1, 2)),
        ("repeated", with_fields(1, current=ONE)),
        ("repeated", lambda rows: [*rows[:6], replace(SWEPT, key="2", original=MOVED), *rows[6:]]),
        ("folded_wrong", lambda rows: [*rows[:3], *rows[6:]]),
    ],
)
def test_only_hidden_changes_may_be_missing(kind: str | None, spoil: Callable[[list[Row]], list[Row]]) -> None:
    verdict = verdict_on(spoil(ROWS), HIDDEN)
    if kind is None:
        verdict.check()
    else:
        assert getattr(verdict, kind), verdict


def test_a_sweep_deletes_no_key_if_nothing_was_hidden() -> None:
    assert verdict_on([*ROWS[:6], SWEPT, *ROWS[6:]]).repeated


GAP = Gap(
    last="00000001/0000000000000076/00000004",
    position="00000002/000000000000007F/00000000",
    start=120,
    end=130,
    entities=("page", "seat"),
)
EMPTIED = replace(GAP, emptied=frozenset(GAP.entities))

PARTIAL = replace(GAP, last=ROWS[3].position)
"""A gap that begins within a transaction. Only a part of the transaction is published."""


def over_gap(rows: list[Row]) -> list[Row]:
    """Returns the rows before and after the gap. The rows after the gap have the next epoch."""
    return [*rows[:3], *(replace(row, position=f"00000002{row.position[8:]}") for row in rows[5:])]


def truncates(*places: tuple[str, int]) -> list[Row]:
    """Returns messages that truncate these partitions. They are at the position of the gap."""
    template = replace(seat(0, "truncate", 0), position=GAP.position, transaction=0)
    return [replace(template, entity=entity, partition=partition) for entity, partition in places]


EMPTYING = truncates(("page", 0), ("seat", 0), ("seat", 1))
DELETED = over_gap([*ROWS[:6], SWEPT, *ROWS[6:]])


@pytest.mark.parametrize(
    ("kind", "gap", "rows"),
    [
        (None, GAP, DELETED),
        (None, PARTIAL, [*DELETED[:3], replace(ROWS[3], other=None), *DELETED[3:]]),
        ("folded_wrong", GAP, over_gap(ROWS)),
        ("lost", replace(GAP, end=129), DELETED),
        ("lost", replace(GAP, start=130, end=140), DELETED),
        ("lost", GAP, DELETED[:2] + DELETED[3:]),
        ("lost", GAP, DELETED[:-1]),
        ("repeated", PARTIAL, [*DELETED[:3], replace(ROWS[3], original=ONE), *DELETED[3:]]),
        ("reordered", GAP, [*DELETED[:3], ROWS[3], *DELETED[3:]]),
        (None, EMPTIED, [*DELETED[:3], *EMPTYING, *DELETED[3:]]),
        (None, EMPTIED, [*DELETED[:3], *EMPTYING, *over_gap(ROWS)[3:]]),
        ("wrong", EMPTIED, [*DELETED[:3], *EMPTYING[1:], *DELETED[3:]]),
        ("wrong", EMPTIED, DELETED),
        ("wrong", GAP, [*DELETED[:3], *EMPTYING, *DELETED[3:]]),
        ("repeated", GAP, [*DELETED[:3], replace(ROWS[5], position=GAP.position, op="create"), *DELETED[3:]]),
        ("reordered", replace(GAP, last=ROWS[1].position), DELETED),
        ("reordered", replace(GAP, position="00000002/00000000000000FF/00000000"), DELETED),
        ("reordered", replace(GAP, position="00000001/000000000000007F/00000000"), DELETED),
    ],
)
def test_only_changes_in_a_gap_may_be_missing(kind: str | None, gap: Gap, rows: list[Row]) -> None:
    verdict = judge(rows, TRANSACTIONS, SINCE, TABLES, [gap])
    if kind is None:
        verdict.check()
        assert verdict.in_gaps == 1
    else:
        assert getattr(verdict, kind), verdict


RESTORED = Restored(at=115, transactions=TRANSACTIONS[:3])
"""The database was restored, and so lost the last two of three transactions.

After that, `AFTER_RESTORE` was committed at the log position that the first lost transaction had had.
"""

AFTER_RESTORE = Transaction(xid=12, first=117, end=125, committed="t", events=[change("delete", ONE, None)])
RESTORE = Gap(
    last=ROWS[2].position,
    position="00000002/000000000000007F/00000000",
    start=120,
    end=BRANCH + 126,
    entities=("page",),
    restored=True,
)
GHOST = replace(row(130, 0, "delete", 0, None, TWO), position="00000002/0000000000000082/00000000")


@pytest.mark.parametrize(
    ("kind", "gap", "rows"),
    [
        (None, RESTORE, [*ROWS[:3], GHOST]),
        ("folded_wrong", RESTORE, ROWS[:3]),
        ("lost", RESTORE, [*ROWS[:2], GHOST]),
        ("lost", replace(RESTORE, end=BRANCH + 124), [*ROWS[:3], GHOST]),
        ("lost", replace(RESTORE, start=130), [*ROWS[:3], GHOST]),
        ("stale", RESTORE, [*ROWS[:3], replace(GHOST, op="read", current=TWO, original=None)]),
    ],
)
def test_a_changelog_may_continue_after_its_database_was_restored(kind: str | None, gap: Gap, rows: list[Row]) -> None:
    transactions = with_lost([TRANSACTIONS[0], AFTER_RESTORE], [RESTORED])
    assert [transaction.end for transaction in transactions] == [110, 120, 130, BRANCH, BRANCH + 125]
    verdict = judge(rows, transactions, {"page": Since(nothing=50)}, {"page": {}}, [gap])
    if kind is None:
        verdict.check()
    else:
        assert getattr(verdict, kind), verdict


def test_log_positions_before_and_after_a_restore_differ() -> None:
    assert [place(lsn, [10, 20]) for lsn in (10, 11, 20, 21)] == [10, BRANCH + 11, BRANCH + 20, 2 * BRANCH + 21]


def test_a_gap_is_read_from_the_states_before_and_after_it() -> None:
    state: dict[str, Any] = {
        "entities": ["page", "seat"],
        "before": {"position": GAP.last, "through": "0/78"},
        "after": {"position": GAP.position, "through": "0/82"},
    }
    assert gap_of(state) == GAP
    assert gap_of({**state, "after": {**state["after"], "through": "1/82"}}).end == (1 << 32) + 130


@pytest.mark.parametrize(
    ("text", "agrees"),
    [
        ('(5,"a b")', True),
        ('(5,"a c")', False),
        ("(5,)", False),
        ({"x": Number(5), "label": "a b"}, True),
        ({"y": Number(5), "label": "a b"}, False),
        (None, False),
    ],
)
def test_a_composite_may_be_the_text_that_the_database_prints(text: object, agrees: bool) -> None:
    spot = {"spot": {"x": Number(5), "label": "a b"}}
    assert same(spot, {"spot": text}, ["spot"]) == agrees
    assert same(spot, {"spot": text}, []) == (agrees and not isinstance(text, str))


@pytest.mark.parametrize(
    ("text", "values"),
    [("(5,)", ["", "5"]), ("(,)", ["", ""]), (r'("a""b\\c",7)', ["7", r'a"b\c']), ('("1,2",x)', ["1,2", "x"])],
)
def test_the_text_of_a_composite_is_split(text: str, values: list[str]) -> None:
    assert printed(text) == values


def test_very_long_texts_are_compared_by_digest() -> None:
    first, second = ({"body": "x" * 2_000_000 + end} for end in "ab")
    assert parsed(json.dumps(first)) == parsed(json.dumps(first))
    assert parsed(json.dumps(first)) != parsed(json.dumps(second))
    assert len(parsed(json.dumps(first))["body"]) < 2_000


def test_an_audit_that_contradicts_the_tables_is_refused() -> None:
    with pytest.raises(AssertionError, match="does not add up"):
        judge(ROWS, TRANSACTIONS, SINCE, {**TABLES, "page": {"2": ONE}})


def audit_entry(op: str, old: State | None, new: State | None, entity: str = "place") -> Recorded:
    types = {"id": "bigint", "region": "integer", "name": "text"}
    return Recorded(op=op, entity=entity, stamp="", types=types, old=old, new=new)


def test_in_a_partitioned_table_a_delete_and_an_insert_of_one_key_are_an_update() -> None:
    place = {"id": Number(1), "region": Number(2), "name": "here"}
    delete, insert = audit_entry("DELETE", place, None), audit_entry("INSERT", None, {**place, "name": "there"})
    message = Recorded(op="MESSAGE", entity="", stamp="", types=None, old=None, new=None)
    assert [(event.op, event.key) for event in events([delete, insert])] == [("update", '["1","2"]')]
    assert [event.op for event in events([delete, message, insert])] == ["delete", "create"]
    elsewhere = audit_entry("INSERT", None, {**place, "region": Number(3)})
    assert [(event.op, event.other) for event in events([delete, elsewhere])] == [("delete", None), ("create", None)]


def test_another_partition_or_key_is_a_move() -> None:
    before = {"id": Number(1), "customer_id": Number(2)}
    types = {"id": "bigint", "customer_id": "bigint"}
    update = Recorded(
        op="UPDATE", entity="purchase", stamp="", types=types, old=before, new={**before, "customer_id": Number(3)}
    )
    assert [(event.op, event.key, event.other) for event in events([update])] == [
        ("delete", "1", "1"),
        ("create", "1", "1"),
    ]


@pytest.mark.parametrize(
    ("type_name", "audited", "form"),
    [
        ("numeric", "13.50", '"13.50"'),
        ("numeric", '"NaN"', '"NaN"'),
        ("bigint", "9223372036854775807", "9223372036854775807"),
        ("double precision", "0.0000001", "1e-07"),
        ("timestamp with time zone", '"2026-11-21T03:10:02.5+00:00"', '"2026-11-21T03:10:02.500000Z"'),
        ("timestamp without time zone", '"2026-11-21T03:10:02"', '"2026-11-21T03:10:02.000000"'),
        ("timestamp with time zone", '"infinity"', '"infinity"'),
        ("bytea", '"\\\\x00ff10"', '"AP8Q"'),
        ("int4range", '"[1,10)"', '{"lower": 1, "upper": 10, "bounds": "[)"}'),
        ("int4range", '"(,5]"', '{"lower": null, "upper": 5, "bounds": "(]"}'),
        ("int4range", '"empty"', '{"lower": null, "upper": null, "bounds": "empty"}'),
        ("numeric[]", "[1.0, null]", '["1.0", null]'),
        ("text", "null", "null"),
    ],
)
def test_values_take_the_form_that_docs_types_describes(type_name: str, audited: str, form: str) -> None:
    assert documented({"value": parsed(audited)}, {"value": type_name}) == {"value": parsed(form)}


@pytest.mark.parametrize(
    ("key", "hashed"),
    [("21", -973932308), ("foobar", -790332482), ("a-little-bit-long-string", -985981536), ("abc", 479470107)],
)
def test_the_hash_agrees_with_kafkas_own_tests(key: str, hashed: int) -> None:
    assert murmur2(key.encode()) == hashed & 0xFFFFFFFF


def test_a_number_equals_only_numbers_of_the_same_value() -> None:
    assert parsed("[1.50, 1e2]") == parsed("[1.5, 100]")
    assert parsed("[1]") != parsed("[2]")
    assert parsed("1") != "1"
    assert parsed("true") != parsed("1")
    assert key_text({"a": Number(1), "b": 'x"'}, ("a", "b")) == '["1","x\\""]'


@pytest.mark.parametrize("name", JUDGING)
def test_the_oracle_shares_no_code_with_the_product(name: str) -> None:
    tree = ast.parse((AUDIT / f"{name}.py").read_text("utf-8"))
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    ours = {module for module in imported if module.split(".")[0] in {"changelog", "tests"}}
    assert ours <= {f"tests.campaigns._audit.{other}" for other in JUDGING}
