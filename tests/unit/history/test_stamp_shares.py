"""Tests how `stamp_shares` counts the stamps of the newest changes. A simple count must give the same numbers."""

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.history.stamp_shares import StampShare, stamp_shares
from changelog.connectors.sinks.files.log import FileLog
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Place, Record, Stamp, position_of
from tests.unit.history.stored import COMMITS, store
from tests.unit.records import record

SESSION = '{"session": {"user": "app", "application": "psql"}}'
OWN_CONTEXT = '{"user": "u-17"}'


def change(
    number: int, service: str = "shop", context: str | None = None, *, entity: str = "order", op: Op = Op.CREATE
) -> Record:
    plain = record(op, '{"id":42}', commit=number, entity=entity, service=service)
    provenance = plain.envelope.provenance
    stamped = replace(provenance, stamp=replace(provenance.stamp, context=context))
    return replace(plain, envelope=replace(plain.envelope, provenance=stamped))


changes = st.tuples(
    st.sampled_from(["shop", "psql", "unknown"]),
    st.sampled_from([None, SESSION, OWN_CONTEXT]),
    st.sampled_from(["order", "guest"]),
    st.sampled_from([Op.CREATE, Op.READ]),
)


@settings(max_examples=25)
@given(st.lists(changes, min_size=COMMITS, max_size=12), st.integers(1, 15))
def test_the_shares_are_those_of_the_newest_changes(drawn: list[tuple[str, str | None, str, Op]], newest: int) -> None:
    records = [
        change(n, service, context, entity=entity, op=op) for n, (service, context, entity, op) in enumerate(drawn, 1)
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = store(Path(folder), records)
        shares = stamp_shares(log, newest=newest)
        rows = sorted(position.as_py() for rows in log.recent(newest) for position in rows.column("position"))
    assert rows == [str(position_of(item)) for item in records][-len(rows) :]  # only the newest files, each as a whole
    assert len(rows) >= min(newest, len(records))
    counts = Counter[tuple[str, str, str]]()
    for item in records[-len(rows) :]:
        provenance = item.envelope.provenance
        stamp = provenance.stamp
        if provenance.source.op is not Op.READ:
            none = "none" if stamp.service_name == "unknown" else "application"
            counts[item.entity, stamp.service_name, "session" if stamp.context == SESSION else none] += 1
    assert sum(share.changes for share in shares) == counts.total()
    assert {
        (share.entity, share.service, kind): getattr(share, kind)
        for share in shares
        for kind in ("application", "session", "none")
        if getattr(share, kind)
    } == dict(counts)


def test_an_archive_is_left_out(tmp_path: Path) -> None:
    log = store(tmp_path, [change(number, f"service-{number}") for number in (1, 2, 3)], archived=2)
    assert [share.service for share in stamp_shares(log)] == ["service-3"]


def test_the_default_stamp_of_an_entity_does_not_count_as_a_stamp(tmp_path: Path) -> None:
    log = store(tmp_path, [change(1, "legacy"), change(2, "legacy", entity="guest"), change(3, "unknown")])
    legacy = Stamp(api_version="", service_name="legacy", identifier="")
    assert stamp_shares(log, defaults={"order": legacy}) == [
        StampShare(entity="guest", service="legacy", application=1, session=0, none=0),
        StampShare(entity="order", service="legacy", application=0, session=0, none=1),
        StampShare(entity="order", service="unknown", application=1, session=0, none=0),
    ]


def test_a_move_counts_once(tmp_path: Path) -> None:
    here, there = Place(key="42", partition=0), Place(key="43", partition=0)
    moved = [
        record(Op.UPDATE, None, '{"id":42}', commit=3, service="shop", moved_to=there),
        replace(record(Op.UPDATE, '{"id":43}', commit=3, key="43", service="shop"), moved_from=here),
    ]
    log = store(tmp_path, [change(1), change(2), *moved])
    assert [share.changes for share in stamp_shares(log)] == [3]


def test_a_folder_without_a_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match="there is no file log"):
        stamp_shares(FileLog(tmp_path))
