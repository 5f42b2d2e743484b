"""Tests how the file log and its archive are read. Logs of older formats must stay readable."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.sinks.files import layout
from changelog.connectors.sinks.files import sink as file_sink
from changelog.connectors.sinks.files.layout import SEQUENCE, log_file
from changelog.connectors.sinks.files.log import READ_ROWS, counts, follow, read_checkpoint, read_log, read_together
from changelog.connectors.sinks.files.manifest import read_manifest
from changelog.connectors.sinks.files.sink import ROW_GROUP_ROWS, FileSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from tests.unit.envelope.format_1 import reader
from tests.unit.sinks.material import as_rows, batch, checkpoint, commit, expected, read, row, store, write_archive

GOLDEN = Path(__file__).parent / "golden" / "format-1"
GOLDEN_2 = Path(__file__).parent / "golden" / "format-2"
"""The logs of both formats have the same rows. In the log of format 1, the older rows are in an archive."""


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[FileSink]:
    sink = FileSink(tmp_path)
    sink.recover()
    yield sink
    sink.close()


def _publish(sink: FileSink, rows: list[dict[str, Any]]) -> None:
    last = Position.parse(rows[-1]["position"])
    store(
        sink,
        [batch(rows)],
        Checkpoint(position=last, through=commit_text(last.commit), epoch=last.epoch),
    )


def test_every_value_is_read_back(sink: FileSink, tmp_path: Path) -> None:
    rows = [
        row(
            Position(1, 1, 0), entity="a-b_9", key="", current='{"é":"日本\\u0000"}', original='{"a":1.10}', op="create"
        ),
        row(Position(1, 1, 2), key=TRUNCATE_KEY, current=None, original=None, op="truncate"),
        row(Position(1, 1, 4), key="\U0001f600", moved='{"movedTo":{"key":"x","partition":1}}', identifier=""),
    ]
    _publish(sink, rows)
    (batches,) = [list(read_log(tmp_path))]
    assert as_rows(batches) == rows
    assert all(rows.schema.equals(SCHEMA) for rows in batches)


def test_readers_select_by_position_entity_and_key(sink: FileSink, tmp_path: Path) -> None:
    rows = [
        row(
            Position(1 + n // 40, n % 40, 0),
            entity=("guest", "order")[n % 2],
            key=f"{n % 7}",
            op=("create", "update")[n % 2],
        )
        for n in range(80)
    ]
    for start in range(0, 80, 16):
        _publish(sink, rows[start : start + 16])

    for after in (None, Position(0, 0, 0), *(Position(e, c, o) for e in (1, 2) for c in range(41) for o in (0, 1))):
        later = [change for change in rows if after is None or change["position"] > str(after)]
        assert read(tmp_path, after=after) == later
        assert read(tmp_path, after=after, entity="guest", key="4") == [
            change for change in later if change["entity"] == "guest" and change["key"] == "4"
        ]
    assert read(tmp_path, entity="order") == rows[1::2]
    assert read(tmp_path, key="3") == rows[3::7]
    assert read(tmp_path, key="none") == []
    assert counts(tmp_path) == {"guest": {"create": 40}, "order": {"update": 40}}


def test_a_large_commit_is_read_in_bounded_batches(sink: FileSink, tmp_path: Path) -> None:
    rows = [row(Position(1, 1, 2 * n), key=f"{n:06d}") for n in range(ROW_GROUP_ROWS + 5)]
    _publish(sink, rows)
    batches = list(read_log(tmp_path))
    assert as_rows(batches) == rows
    assert max(rows.num_rows for rows in batches) <= READ_ROWS
    assert read(tmp_path, key=f"{ROW_GROUP_ROWS + 1:06d}") == [rows[ROW_GROUP_ROWS + 1]]
    metadata = pq.ParquetFile(log_file(tmp_path, 1)).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [ROW_GROUP_ROWS, 5]


def test_many_small_batches_are_one_row_group(sink: FileSink, tmp_path: Path) -> None:
    store(sink, [batch([row(Position(1, 1, 2 * n))]) for n in range(500)], checkpoint(1, rows=500))
    assert pq.ParquetFile(log_file(tmp_path, 1)).metadata.num_row_groups == 1
    assert len(read(tmp_path)) == 500


def test_other_columns_are_refused(sink: FileSink, tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowInvalid):
        store(sink, [commit(1)[0].drop_columns(["moved"])], checkpoint(1))
    assert list((tmp_path / "log").iterdir()) == []


def test_follow_returns_new_commits(sink: FileSink, tmp_path: Path) -> None:
    def publish_two() -> None:
        store(sink, commit(2), checkpoint(2))
        store(sink, commit(3), checkpoint(3))

    steps: list[Callable[[], None]] = [
        lambda: store(sink, commit(1), checkpoint(1)),
        lambda: None,
        lambda: store(sink, [], checkpoint(1)),
        publish_two,
    ]

    def wait() -> bool:
        if steps:
            steps.pop(0)()
            return True
        return False

    assert as_rows(list(follow(tmp_path, wait=wait))) == expected(1, 2, 3)
    only = list(follow(tmp_path, key="3-2", after=Position(1, 2, 0), wait=lambda: False))
    assert as_rows(only) == [expected(3)[1]]


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match="there is no file log in") as caught:
        read(tmp_path / "none")
    assert caught.value.kind is Kind.PRECONDITION
    assert read_checkpoint(tmp_path / "none") is None
    assert counts(tmp_path / "none") == {}


def test_a_file_under_another_name_is_not_read(sink: FileSink, tmp_path: Path) -> None:
    store(sink, commit(1), checkpoint(1))
    shutil.copy(log_file(tmp_path, 1), log_file(tmp_path, 2))
    with pytest.raises(ChangelogError, match="belongs to another place in a log"):
        read(tmp_path)


# The archive


@pytest.fixture
def archived(sink: FileSink, tmp_path: Path) -> list[dict[str, Any]]:
    """Writes five commits of two entities, and an archive of the first three, sorted by key. Returns all rows."""
    rows = [row(Position(1, n, 0), entity=("guest", "order")[n % 2], key=f"{9 - n}") for n in range(10)]
    for start in range(0, 10, 2):
        _publish(sink, rows[start : start + 2])
    write_archive(tmp_path, 9, {}, 0)
    write_archive(
        tmp_path,
        10,
        {
            "entity=guest/day=2026-11-21/0.parquet": rows[0:6:2][::-1],
            "entity=order/day=2026-11-21/0.parquet": rows[1:6:2],
        },
        3,
    )
    return rows


@pytest.mark.parametrize("replaced", ["there", "deleted"])
def test_readers_read_the_archive_and_then_the_log(
    archived: list[dict[str, Any]], tmp_path: Path, replaced: str
) -> None:
    if replaced == "deleted":
        for sequence in (1, 2, 3):
            log_file(tmp_path, sequence).unlink()
    assert read(tmp_path) == archived
    assert read(tmp_path, entity="guest") == archived[0::2]
    for n in range(10):
        assert read(tmp_path, after=Position(1, n, 0)) == archived[n + 1 :]
        assert read(tmp_path, key=f"{9 - n}") == [archived[n]]
    assert counts(tmp_path) == {"guest": {"update": 5}, "order": {"update": 5}}
    last = read_checkpoint(tmp_path)
    assert last is not None
    assert last.position == Position(1, 9, 0)


def test_entities_that_are_read_together_come_file_by_file(archived: list[dict[str, Any]], tmp_path: Path) -> None:
    """Several archive files may cover the same period, with too many rows to sort in memory. So the rows come in any
    order, one file after the other.
    """

    def position(change: dict[str, Any]) -> str:
        return str(change["position"])

    files = {f"entity=guest/day=2026-11-2{n}/0.parquet": archived[2 * n : 6 : 4] for n in (0, 1)}
    write_archive(tmp_path, 11, {**files, "entity=order/day=2026-11-21/0.parquet": archived[1:6:2]}, 3)
    for entities in (["guest"], ["guest", "order"]):
        expected_rows = [change for change in archived if change["entity"] in entities]
        assert sorted(as_rows(list(read_together(tmp_path, entities))), key=position) == expected_rows
    (tmp_path / "archive" / "entity=guest" / "day=2026-11-21" / "0.parquet").write_bytes(b"damaged")
    assert as_rows([next(read_together(tmp_path, ["guest"]))]) == archived[0:6:4]


@pytest.mark.parametrize("after", [None, Position(1, 1, 0)])
def test_follow_returns_versions_from_the_archive_once(sink: FileSink, tmp_path: Path, after: Position | None) -> None:
    """At first, the only version of an entity's columns is in the archive. The reader returns it once, and then waits
    for versions in the log.
    """
    for number in range(1, 4):
        store(sink, _versions(number) if number == 2 else commit(number), checkpoint(number))
    [version] = as_rows(_versions(2)[:1])
    write_archive(tmp_path, 1, {"entity=schemas/day=2026-11-21/0.parquet": [version]}, 2)
    steps: list[Callable[[], None]] = [
        lambda: store(sink, commit(4), checkpoint(4)),
        lambda: store(sink, _versions(5), checkpoint(5)),
        lambda: store(sink, commit(6), checkpoint(6)),
    ]

    def wait() -> bool:
        if steps:
            steps.pop(0)()
            return True
        return False

    followed = as_rows(list(follow(tmp_path, entity=SCHEMAS, after=after, wait=wait)))
    assert followed == [version, *as_rows(_versions(5)[:1])]


def test_a_gap_between_the_archive_and_the_log_is_an_error(archived: list[dict[str, Any]], tmp_path: Path) -> None:
    for sequence in (1, 2, 3, 4):
        log_file(tmp_path, sequence).unlink()
    with pytest.raises(ChangelogError, match="lacks sequence 4;"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "cannot be read; restore it"),
        (b'{"format": 1}', "cannot be read; restore it"),
        (b'{"format": 2, "log": {"first": 1, "last": 1}, "files": []}', "this program knows only formats up to 1"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_an_error(sink: FileSink, tmp_path: Path, text: bytes, message: str) -> None:
    store(sink, commit(1), checkpoint(1))
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "1.json").write_bytes(text)
    with pytest.raises(ChangelogError, match=message):
        read(tmp_path)


# Logs on disk stay readable


def test_the_golden_log_of_format_1_is_read() -> None:
    """An early version wrote this log once. Every later version must read the same rows from it."""
    assert read(GOLDEN) == expected(1, 2, 3)
    assert read_checkpoint(GOLDEN) == checkpoint(
        3, through=0x16_B374D848, windows={"order": {"done": [1]}}, settings={"codec": "json"}
    )
    manifest = read_manifest(GOLDEN)
    assert manifest is not None
    assert [file.rows for file in manifest.files] == [3]


def test_the_golden_log_of_format_2_is_read() -> None:
    assert read(GOLDEN_2) == expected(1, 2, 3)
    assert read_checkpoint(GOLDEN_2) == read_checkpoint(GOLDEN)


def test_the_last_version_of_format_1_refuses_a_log_of_format_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That version refuses the format in the footer of a log file and in the file `resume.json`. It changes no file."""
    shutil.copytree(GOLDEN_2, tmp_path / "log-2")
    monkeypatch.setattr(layout, "Checkpoint", reader().Checkpoint)
    before = _files(tmp_path / "log-2")
    for begin in (FileSink(tmp_path / "log-2").recover, partial(read_checkpoint, tmp_path / "log-2")):
        with pytest.raises(ChangelogError, match="has format 2; this program knows 1") as caught:
            begin()
        assert caught.value.kind is Kind.PRECONDITION
    assert _files(tmp_path / "log-2") == before


def _files(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*.*")}


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_2], ids=["format 1", "format 2"])
def test_a_golden_log_can_be_continued(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "log-1")
    sink = FileSink(tmp_path / "log-1")
    sink.recover()
    added = batch([row(Position(1, 4, 0), key="added", context='{"ticket": "PAY-7"}')])
    store(sink, [added], checkpoint(4, rows=1))
    sink.close()
    assert read(tmp_path / "log-1") == [*expected(1, 2, 3), *added.to_pylist()]
    assert read(tmp_path / "log-1", key="added") == added.to_pylist()


def test_any_parquet_reader_can_query_the_log() -> None:
    """The files are plain Parquet with the documented columns, without a schema that only Arrow can read."""
    metadata = pq.ParquetFile(log_file(GOLDEN, 3)).metadata
    columns = [
        *("entity", "partition", "key", "op", "position", "transaction", "committed_at", "api_version"),
        *("service_name", "identifier", "provenance", "current", "original", "moved"),
    ]
    assert [metadata.schema.column(n).name for n in range(metadata.num_columns)] == columns
    assert SCHEMA.names == [*columns, "context"]  # older versions did not write the last column
    assert metadata.metadata[SEQUENCE] == b"3"
    assert b"ARROW:schema" not in metadata.metadata


@settings(max_examples=30)  # each example takes several fsyncs
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12), st.data())
def test_rows_are_the_same_however_they_are_divided_into_commits(
    tmp_path_factory: pytest.TempPathFactory, spread: list[tuple[int, int]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log")
    rows = [row(Position(1, n, 0), entity=f"e{e}", key=f"k{k}") for n, (e, k) in enumerate(spread)]
    sink = FileSink(path)
    sink.recover()
    start = 0
    while start < len(rows):
        end = data.draw(st.integers(start + 1, len(rows)))
        _publish(sink, rows[start:end])
        start = end
    sink.close()
    after = data.draw(st.none() | st.builds(Position, st.just(1), st.integers(0, 13), st.just(0)))
    entity = data.draw(st.none() | st.sampled_from(["e0", "e1"]))
    assert read(path, entity=entity, after=after) == [
        change
        for change in rows
        if (entity is None or change["entity"] == entity) and (after is None or change["position"] > str(after))
    ]


def _versions(number: int) -> list[pa.RecordBatch]:
    """Returns the rows of a commit. The first row describes a version of an entity's columns."""
    return [batch([row(Position(1, number, 0), entity=SCHEMAS, key="order")]), *commit(number)[1:]]


def _store_versions(path: Path) -> None:
    sink = FileSink(path)
    sink.recover()
    for number in range(1, 6):
        store(sink, _versions(number) if number in (2, 4) else commit(number), checkpoint(number))
    sink.close()


def _commits_with_versions(path: Path) -> list[int]:
    """Returns the commits in which a reader finds versions of columns."""
    return [Position.parse(version["position"]).commit for version in read(path, entity=SCHEMAS)]


def test_versions_are_found_in_any_copy_of_the_log_and_no_other_file_is_read(tmp_path: Path) -> None:
    """The checkpoint in each file of the log says which files have versions of columns."""
    path, copy = tmp_path / "changelog", tmp_path / "copy"
    _store_versions(path)
    shutil.copytree(path / "log", copy / "log")
    assert _commits_with_versions(copy) == [2, 4]
    sink = FileSink(copy)
    assert sink.recover() == checkpoint(5)
    store(sink, _versions(6), checkpoint(6))
    store(sink, [], checkpoint(6, through=99))
    sink.close()
    log_file(copy, 3).write_bytes(b"never read")
    assert _commits_with_versions(copy) == [2, 4, 6]
    log_file(copy, 6).write_bytes(b"cut off by a crash")
    assert _commits_with_versions(copy) == [2, 4], "a damaged file is ignored"


def test_versions_are_found_in_a_log_of_an_older_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions did not note in checkpoints which files have versions of columns, so the reader must search."""
    with monkeypatch.context() as older:
        older.setattr(file_sink, "with_marked", lambda stored, _: stored)
        _store_versions(tmp_path)
    assert _commits_with_versions(tmp_path) == [2, 4]
    sink = FileSink(tmp_path)
    sink.recover()
    store(sink, commit(6), checkpoint(6))
    sink.close()
    log_file(tmp_path, 3).write_bytes(b"never read")
    assert _commits_with_versions(tmp_path) == [2, 4]
