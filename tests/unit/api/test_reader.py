"""Tests how a `ChangelogReader` selects changes, follows new changes, and finds changes by key. The reader's errors
must say what to do.
"""

import re
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import changelog
from changelog.connectors.api.key_values import key_texts
from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest, Replaced
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.columnar.batch import from_records
from changelog.envelope.key import key_text
from changelog.envelope.model import Record, position_of
from changelog.envelope.position import Position
from changelog.schemas.types import Primitive
from tests.unit.api.shop import ORDER, created, shop, version_of, workload
from tests.unit.records import BEGIN, checkpoint

COMMITS = workload(3, 40)
RECORDS = [change for commit in COMMITS for change in commit]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> changelog.ChangelogReader:
    return shop(tmp_path_factory.mktemp("shop"), [RECORDS], order=ORDER, guest=ORDER)


def test_without_arguments_all_changes_are_read(log: changelog.ChangelogReader) -> None:
    assert list(log.changes()) == RECORDS
    assert log.entities() == ["guest", "order"]
    assert log.position() == position_of(RECORDS[-1])
    assert re.fullmatch(r"<the changelog in .*>", repr(log))


@pytest.mark.parametrize(
    ("chosen", "is_chosen"),
    [
        ({"entity": "guest"}, lambda change: change.entity == "guest"),
        ({"entity": "order", "key": 4}, lambda change: (change.entity, change.place.key) == ("order", "4")),
        ({"service": "admin"}, lambda change: change.envelope.provenance.stamp.service_name == "admin"),
        ({"identifier": "req-3"}, lambda change: change.envelope.provenance.stamp.identifier == "req-3"),
        ({"since": position_of(RECORDS[9])}, lambda change: position_of(change) >= position_of(RECORDS[9])),
        (
            {"since": Position(1, 5, 0), "entity": "order"},
            lambda change: position_of(change).commit >= 5 and change.entity == "order",
        ),
        ({"since": Position(0, 0, 0)}, lambda change: True),
        ({"until": str(position_of(RECORDS[9]))}, lambda change: position_of(change) <= position_of(RECORDS[9])),
        (
            {"since": BEGIN + timedelta(seconds=9), "until": (BEGIN + timedelta(seconds=20)).isoformat()},
            lambda change: 9 <= position_of(change).commit <= 20,
        ),
    ],
)
def test_changes_can_be_selected(log: changelog.ChangelogReader, chosen: dict[str, Any], is_chosen: Any) -> None:
    expected = list(filter(is_chosen, RECORDS))
    assert list(log.changes(**chosen)) == expected
    assert expected


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (42, "42"),
        (np.int64(42), "42"),
        ("a b", "a b"),
        (True, "true"),
        (Decimal("13.50"), "13.50"),
        (Decimal("1E+3"), "1000"),
        (1e23, "9.999999999999999e+22"),
        (np.float32(0.1), "0.1"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (date(2026, 11, 21), "2026-11-21"),
        (datetime(2026, 11, 21, 3, 10), "2026-11-21T03:10:00.000000"),  # noqa: DTZ001
        (datetime(2026, 11, 21, 5, 10, tzinfo=timezone(timedelta(hours=2))), "2026-11-21T03:10:00.000000Z"),
        (time(3, 10, 2), "03:10:02"),
        (time(3, 10, 2, 500000), "03:10:02.5"),
        (b"\x00\xff", "AP8="),
        (["DE", 7], '["DE","7"]'),
        (("DE",), "DE"),
    ],
)
def test_keys_are_converted_to_the_texts_that_are_published(key: Any, text: str) -> None:
    assert key_text(key_texts(key)) == text


@pytest.mark.parametrize("key", [None, {}, object(), [None], datetime.now(UTC).timetz()])
def test_keys_cannot_have_values_of_other_types(key: Any) -> None:
    with pytest.raises(changelog.ChangelogError, match="a key cannot have a value of the type"):
        key_texts(key)


def test_an_empty_key_is_refused(log: changelog.ChangelogReader) -> None:
    with pytest.raises(changelog.ChangelogError, match="the key has no value; give a value for each column"):
        log.changes("order", ())


def test_changes_that_are_stored_after_the_call_are_followed(tmp_path: Path) -> None:
    first, second, third = ([created("order", '{"id":1}', commit=number)] for number in (1, 2, 3))
    log = shop(tmp_path, [first, second], order={"id": Primitive.INT})
    following = {last: log.follow("order", last=last, timeout=0) for last in (9, 1, 0)}
    unknown = log.follow(service="nobody", last=9, timeout=0.01)
    store(tmp_path, third, 3)
    assert {last: list(changes) for last, changes in following.items()} == {
        9: [*first, *second, *third],
        1: [*second, *third],
        0: third,
    }
    assert list(unknown) == []


def test_a_negative_number_of_changes_is_refused(log: changelog.ChangelogReader) -> None:
    with pytest.raises(changelog.ChangelogError, match="last=-1 is not a number of changes; give 0 or more"):
        log.follow(last=-1)


def test_following_ends_when_stop_returns_true(tmp_path: Path) -> None:
    first, second = ([created("order", '{"id":1}', commit=number)] for number in (1, 2))
    log = shop(tmp_path, [first], order={"id": Primitive.INT})
    answers = iter([False, True])

    def stop() -> bool:
        is_over = next(answers)
        if not is_over:
            store(tmp_path, second, 2)
        return is_over

    assert list(log.follow("order", stop=stop)) == second


def store(path: Path, records: list[Record], number: int) -> None:
    """Stores the records in one commit, which has this number."""
    sink = FileSink(path)
    sink.recover()
    sink.add([from_records(records)])
    sink.commit(replace(checkpoint(number), settings={"order": {}}))
    sink.close()


def test_an_empty_changelog_has_no_entities(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    log = changelog.open(tmp_path)
    assert (log.entities(), log.position(), list(log.changes()), list(log.follow(timeout=0))) == ([], None, [], [])
    with pytest.raises(changelog.ChangelogError, match="has no change of the entity order yet"):
        log.table("order")


def test_unknown_entities_are_refused(log: changelog.ChangelogReader) -> None:
    with pytest.raises(changelog.ChangelogError, match="has no entity orders; it has: guest, order"):
        next(log.changes("orders"))
    with pytest.raises(changelog.ChangelogError, match="has no entity orders; it has: guest, order"):
        log.follow("orders")


def test_a_path_without_a_changelog_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(changelog.ChangelogError, match=r"cannot be opened \(File name too long\)"):
        changelog.open("a" * 5000)
    with pytest.raises(changelog.ChangelogError, match=r"changelog.toml: no such file or folder; name the folder of"):
        changelog.open()
    with pytest.raises(
        changelog.ChangelogError, match=r"there is no changelog in .*; name the folder that \[sink\] path"
    ):
        changelog.open(tmp_path)
    Path("changelog.toml").write_text("name = 7", "utf-8")
    with pytest.raises(changelog.ChangelogError, match=r"changelog.toml: 3 problems"):
        changelog.open()


def test_a_configuration_names_the_changelog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop(tmp_path / "log", COMMITS[:3])
    text = """
        name = "shop"
        source = { kind = "postgres", dsn = "host=db" }
        sink = { path = "log" }
        tables = { include = ["public.*"] }
    """
    (tmp_path / "changelog.toml").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    expected = [change for commit in COMMITS[:3] for change in commit]
    assert list(changelog.open().changes()) == list(changelog.open("changelog.toml").changes()) == expected


@pytest.fixture
def archive(tmp_path: Path) -> changelog.ChangelogReader:
    """Returns the reader of an archive like those that the job `archive` fills from Kafka. The folder has the files of
    an archive, and no log files. Some changes are in two of the files.
    """
    versions = [version_of("order", ORDER, RECORDS[0]), version_of("guest", ORDER, RECORDS[0])]
    files = []
    for number, records in enumerate((versions, RECORDS[:50], RECORDS[40:])):
        for entity in sorted({change.entity for change in records}):
            rows = [change for change in records if change.entity == entity]
            path = f"data/{entity}-{number}.parquet"
            (tmp_path / "data").mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_batches([from_records(rows)]), tmp_path / path)
            first, last = str(position_of(rows[0])), str(position_of(rows[-1]))
            files.append(ArchiveFile(path=path, entity=entity, rows=len(rows), first=first, last=last))
    (tmp_path / "manifest").mkdir()
    manifest = Manifest(format=1, log=Replaced(first=1, last=0), files=tuple(files))
    (tmp_path / "manifest" / "00000001.json").write_bytes(manifest.to_json())
    return changelog.open(tmp_path)


def test_an_archive_of_topics_is_read_like_a_log(
    archive: changelog.ChangelogReader, log: changelog.ChangelogReader
) -> None:
    at = position_of(RECORDS[60])
    assert archive.entities() == ["guest", "order"]
    assert archive.position() is None
    table = archive.table("order", as_of=at).sort_by("_key")
    assert table.equals(log.table("order", as_of=at).sort_by("_key"))
    assert {position_of(change) for change in archive.changes("guest")} == {
        position_of(change) for change in log.changes("guest")
    }
    with pytest.raises(changelog.ChangelogError, match="has no entity orders; it has: guest, order"):
        archive.table("orders")
