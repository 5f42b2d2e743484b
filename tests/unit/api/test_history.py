"""Tests the histories and blames of rows in the Python API.

A history is a table with a row for each change. A blame is a table with a row for each attribute. This row names the
change that set the attribute.
"""

import json
from dataclasses import replace
from pathlib import Path

import jsonpatch
import pytest

import changelog
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op, Place
from changelog.schemas.types import Primitive
from tests.unit.api.shop import ORDER, created, shop, workload
from tests.unit.records import BEGIN, record

RECORDS = [change for commit in workload(5, 80) for change in commit]
COLUMNS = {"id": Primitive.INT, "status": Primitive.STRING, "address": Primitive.JSON, "long": Primitive.STRING}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> changelog.ChangelogReader:
    return shop(tmp_path_factory.mktemp("shop"), [RECORDS], order=ORDER, guest=ORDER)


def test_a_history_has_a_row_for_each_change(log: changelog.ChangelogReader) -> None:
    changes = [change for change in RECORDS if (change.entity, change.place.key) == ("order", "4")]
    rows = [row for row in log.history("order", 4).to_pylist() if row["key"] == "4"]
    assert len(rows) == len(changes)
    for row, change in zip(rows, changes, strict=True):
        envelope = change.envelope
        stamp, source = envelope.provenance.stamp, envelope.provenance.source
        assert row["position"] == str(source.position)
        assert (row["op"], row["transaction"], row["committed_at"]) == (
            source.op,
            source.transaction,
            source.committed_at,
        )
        assert (row["service_name"], row["api_version"]) == (stamp.service_name, stamp.api_version)
        assert (row["identifier"], row["context"]) == (stamp.identifier, stamp.context)
        assert row["current"] == (envelope.current and bytes(envelope.current).decode())
        if row["patch"] is not None:
            left_out = {*source.unavailable, *source.unavailable_original}
            states = [json.loads(row[name]) for name in ("original", "current")]
            before, after = ({k: v for k, v in state.items() if k not in left_out} for state in states)
            assert jsonpatch.apply_patch(before, json.loads(row["patch"])) == after
    assert any(row["patch"] for row in rows)


def test_a_history_can_be_limited_to_a_span(log: changelog.ChangelogReader) -> None:
    rows = log.history("order", 4).to_pylist()
    since, until = rows[2]["position"], rows[-2]["committed_at"]
    cut = log.history("order", 4, since=since, until=until).to_pylist()
    assert cut == [row for row in rows if row["position"] >= since and row["committed_at"] <= until]
    assert 0 < len(cut) < len(rows)


@pytest.fixture
def story(tmp_path: Path) -> changelog.ChangelogReader:
    """An order that two services write. It moves to another key, and then its table is truncated."""
    first = created("order", '{"id":1,"status":"NEW","address":{"street":"a","no":7}}', key="1", service="web")
    second = replace(
        record(Op.UPDATE, '{"id":1,"status":"PAID","address":{"street":"a","no":8}}', key="1", commit=2, service="pay"),
    )
    second = replace(second, envelope=replace(second.envelope, original=first.envelope.current))
    places = [Place(key="1", partition=0), Place(key="2", partition=0)]
    leaves = record(Op.DELETE, None, key="1", commit=3, moved_to=places[1], service="web")
    arrives = created(
        "order",
        '{"id":2,"status":"PAID","address":{"street":"a","no":8}}',
        key="2",
        commit=3,
        ordinal=3,
        service="web",
    )
    end = record(Op.TRUNCATE, None, None, key=TRUNCATE_KEY, commit=4, service="web")
    return shop(tmp_path, [[first, second, leaves, replace(arrives, moved_from=places[0]), end]], order=COLUMNS)


def test_a_blame_says_who_set_each_attribute(story: changelog.ChangelogReader) -> None:
    blame = story.blame("order", 1, at=BEGIN.replace(second=4, microsecond=886044))
    rows = [
        (row["path"], row["value"], row["before"], row["existed"], row["service_name"]) for row in blame.to_pylist()
    ]
    assert rows == [
        ("/id", "1", None, False, "web"),
        ("/status", '"PAID"', '"NEW"', True, "pay"),
        ("/address/street", '"a"', None, False, "web"),
        ("/address/no", "8", "7", True, "pay"),
    ]
    assert set(blame["identifier"].to_pylist()) == {"req-1", "req-2"}


def test_histories_and_blames_follow_moves(story: changelog.ChangelogReader) -> None:
    history = story.history("order", 2)
    assert history["key"].to_pylist() == ["1", "1", "1", "2", None]
    assert history["op"].to_pylist() == ["create", "update", "delete", "create", "truncate"]
    moved = story.blame("order", 2, at=history["position"].to_pylist()[3])
    assert dict(zip(moved["path"].to_pylist(), moved["service_name"].to_pylist(), strict=True)) == {
        "/id": "web",
        "/status": "pay",
        "/address/street": "web",
        "/address/no": "pay",
    }
    assert story.blame("order", 2).num_rows == 0


def test_keys_that_never_existed_are_refused(log: changelog.ChangelogReader, story: changelog.ChangelogReader) -> None:
    for ask in (log.history, log.blame, lambda *names: list(log.changes(*names, since=BEGIN))):
        with pytest.raises(changelog.ChangelogError, match=r"the changelog in .* has no change of order 4711"):
            ask("order", 4711)
        with pytest.raises(changelog.ChangelogError, match=r"the key of the entity order has 1 column, not 2"):
            ask("order", (1, 2))
        with pytest.raises(changelog.ChangelogError, match=r"has no entity orders"):
            ask("orders", 1)
    with pytest.raises(changelog.ChangelogError, match=r"has no change of order 1 up to .*; its first change is at"):
        story.blame("order", 1, at=BEGIN)
