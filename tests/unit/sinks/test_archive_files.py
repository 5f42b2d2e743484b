"""Tests readers of a log that has an archive.

The readers must return the same rows as without an archive. They may skip files that they do not need.
"""

import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.sinks.files import log
from changelog.connectors.sinks.files.bloom import bloom_filters
from changelog.connectors.sinks.files.log import FileLog, read_together
from changelog.connectors.sinks.files.manifest import read_manifest
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sinks.files.sorting import in_order
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from tests.unit.sinks.material import as_rows, batch, read, row, store, write_archive

Rows = list[dict[str, Any]]

KEYS = ("", "1", "10", "2", "é", "\U0001f600", "￿", TRUNCATE_KEY, *(f"key {n}" for n in range(8)))


def place(change: Mapping[str, Any]) -> tuple[str, int]:
    return change["position"], change["partition"]


@dataclass(frozen=True)
class Layout:
    """A log with an archive. It has `rows`, in the order of their positions, in three parts.

    The first rows are in archive files of a month, the next ones in archive files of single days, and the rest in the
    log. `ends` has the number of rows up to the end of the first part, and up to the end of the second. In the first
    part, each entity has up to `levels` files, which divide its keys.
    """

    rows: Rows
    ends: tuple[int, int]
    levels: int
    group_rows: int
    with_keys: bool
    bloom: bool

    def write(self, path: Path) -> None:
        sink = FileSink(path)
        sink.recover()
        rest = self.rows[self.ends[1] :]
        for start in range(0, len(rest), 25):
            part = rest[start : start + 25]
            last = Position.parse(part[-1]["position"])
            store(sink, [batch(part)], Checkpoint(position=last, through=commit_text(last.commit), epoch=1))
        sink.close()
        files = self._files(self.rows[: self.ends[0]], "from=2026-10-01/day=2026-10-31", self.levels)
        files |= self._files(self.rows[self.ends[0] : self.ends[1] : 2], "day=2026-11-01", 1)
        files |= self._files(self.rows[self.ends[0] + 1 : self.ends[1] : 2], "day=2026-11-02", 1)
        write_archive(path, 1, files, 0, group_rows=self.group_rows, with_keys=self.with_keys, bloom=self.bloom)

    def _files(self, rows: Rows, folder: str, count: int) -> dict[str, Rows]:
        """Divides the rows of each entity into at most `count` files. No key is in two files of an entity."""
        files: dict[str, Rows] = defaultdict(list)
        keys = sorted({change["key"] for change in rows})
        for change in sorted(rows, key=lambda change: (change["key"], place(change))):
            number = keys.index(change["key"]) * count // len(keys)
            files[f"entity={change['entity']}/{folder}/run-{number:05d}.parquet"].append(change)
        return files


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    randoms = draw(st.randoms(use_true_random=False))
    count = draw(st.integers(0, 60))
    rows = [
        row(
            Position(1, n // 3, 2 * (n % 3)),
            entity=randoms.choice(("guest", "order", "order", SCHEMAS)),
            identifier=f"req-{randoms.randrange(12)}",
        )
        | {"key": randoms.choice(KEYS)}
        for n in range(count)
    ]
    ends = sorted((draw(st.integers(0, count)), draw(st.integers(0, count))))
    return Layout(
        rows=rows,
        ends=(ends[0], ends[1]),
        levels=draw(st.integers(1, 4)),
        group_rows=draw(st.integers(1, 20)),
        with_keys=draw(st.booleans()),
        bloom=draw(st.booleans()),
    )


SELECTIONS: Sequence[dict[str, Any]] = [
    {},
    *({"entity": entity} for entity in ("guest", "order", SCHEMAS)),
    *({"entity": "order", "key": key} for key in (*KEYS, "0", "k", "no such key")),
    *({"key": key} for key in ("1", TRUNCATE_KEY)),
    *({"identifier": f"req-{n}"} for n in range(0, 13, 2)),
    {"entity": "guest", "key": "key 3", "identifier": "req-3"},
]


@settings(max_examples=25)
@given(layouts(), st.integers(0, 25))
def test_an_archive_changes_nothing_for_readers(layout: Layout, after: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        layout.write(path)
        for selection in SELECTIONS:
            entity = selection.get("entity")
            values = {name: value for name, value in selection.items() if name != "entity"}
            rows = [
                change
                for change in layout.rows
                if (change["entity"] == entity if entity else change["entity"] != SCHEMAS)
                and all(change[name] == value for name, value in values.items())
            ]
            assert read(path, **selection) == rows
            begin = Position(1, after, 1)
            assert read(path, after=begin, **selection) == [row for row in rows if row["position"] > str(begin)]
        all_rows = [row for row in layout.rows if row["entity"] != SCHEMAS]
        for entities in (["guest", "order"], None):
            assert sorted(as_rows(list(read_together(path, entities))), key=place) == all_rows
        late = as_rows(list(read_together(path, None, after=begin, identifier="req-4")))
        assert sorted(late, key=place) == [
            row for row in all_rows if row["position"] > str(begin) and row["identifier"] == "req-4"
        ]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), max_size=120), st.integers(1, 9), st.integers(1, 5_000), st.integers(0, 99))
def test_rows_that_do_not_fit_into_memory_are_sorted(
    commits: list[int], batch_rows: int, bytes_max: int, seed: int
) -> None:
    """Several rows may have the same position. For example, a truncate has a row in each partition."""
    rows = [
        row(Position(1, commit, 0), key=f"{n}", partition=commits[:n].count(commit)) for n, commit in enumerate(commits)
    ]
    unsorted = random.Random(seed).sample(rows, len(rows))
    batches = [batch(unsorted[start : start + batch_rows]) for start in range(0, len(rows), batch_rows)]
    result = list(in_order(batches, rows_max=7, bytes_max=bytes_max))
    assert as_rows(result) == sorted(rows, key=place)
    assert all(0 < part.num_rows <= 7 for part in result)


def test_a_temporary_file_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [batch([row(Position(1, n, 0))]) for n in range(9)]
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        with pytest.raises(ChangelogError, match=r"to sort the archive's rows in .*: No space left on device") as error:
            list(in_order(rows, rows_max=9, bytes_max=1))
    assert error.value.kind is Kind.STORAGE


@given(st.lists(st.text(max_size=80), min_size=1, max_size=200), st.integers(1, 300))
@settings(max_examples=50)
def test_bloom_filters_of_arrow_hold_what_was_written(values: list[str], ndv: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "0.parquet"
        options = {"text": {"ndv": ndv, "fpp": 0.05}}
        pq.write_table(pa.table({"text": values, "other": values}), file, bloom_filter_options=options)
        with pq.ParquetFile(file) as parquet, bloom_filters(file) as filters:
            group = parquet.metadata.row_group(0)
            assert all(filters.may_hold(group.column(0), value) for value in values)
            assert filters.may_hold(group.column(1), "it has no filter")


def test_bloom_filters_exclude_most_other_values(tmp_path: Path) -> None:
    file = tmp_path / "0.parquet"
    values = [f"value {n}" for n in range(1_000)]
    pq.write_table(pa.table({"text": values}), file, bloom_filter_options={"text": {"ndv": 1_000, "fpp": 0.01}})
    with pq.ParquetFile(file) as parquet, bloom_filters(file) as filters:
        column = parquet.metadata.row_group(0).column(0)
        assert sum(filters.may_hold(column, f"other {n}") for n in range(1_000)) < 50


def test_a_reader_of_one_key_opens_only_files_that_can_have_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(Position(1, n, 0), key=f"{n:02d}") for n in range(60)]
    Layout(rows=rows, ends=(0, 60), levels=1, group_rows=5, with_keys=False, bloom=False).write(tmp_path)
    files = {f"entity=order/from=2026-10-01/day=2026-10-31/run-{n}.parquet": rows[n : n + 20] for n in (0, 20, 40)}
    write_archive(tmp_path, 2, files, 0, with_keys=True, bloom=True)
    opened: list[str] = []
    read_whole = log._read_whole

    def noted(file: Path) -> Any:
        opened.append(file.name)
        return read_whole(file)

    monkeypatch.setattr(log, "_read_whole", noted)
    assert read(tmp_path, key="25") == [rows[25]]
    assert opened == ["run-20.parquet"]
    assert read(tmp_path, key="99") == []
    assert opened == ["run-20.parquet"]


def test_a_repair_finds_a_row_outside_the_range_of_keys_in_the_manifest(tmp_path: Path) -> None:
    """A comparison of the changelog with the table reads every file. So it may find a row whose key is outside the
    range that the manifest gives for the file. The repair must find this row, too.
    """
    rows = [row(Position(1, n, 0), key=f"{n}") for n in range(4)]
    Layout(rows=rows, ends=(4, 4), levels=1, group_rows=5, with_keys=True, bloom=True).write(tmp_path)
    file = tmp_path / "manifest" / "1.json"
    manifest = json.loads(file.read_bytes())
    manifest["files"][0]["keys"] = ["0", "2"]
    del manifest["crc32"]
    file.write_text(json.dumps(manifest), "utf-8")
    assert read(tmp_path, entity="order", key="3") == []
    assert as_rows(list(FileLog(tmp_path).read_together(["order"], key="3"))) == [rows[3]]
    assert as_rows(list(FileLog(tmp_path).read_together(["order"], key="4"))) == []


def test_a_damaged_archive_file_is_named(tmp_path: Path) -> None:
    rows = [row(Position(1, n, 0), key=f"{n}") for n in range(9)]
    Layout(rows=rows, ends=(9, 9), levels=1, group_rows=5, with_keys=True, bloom=True).write(tmp_path)
    [file] = (tmp_path / "archive").rglob("*.parquet")
    whole = file.read_bytes()
    for damaged in (whole[:-100], b"", whole[:200] + bytes(200) + whole[400:]):
        file.write_bytes(damaged)
        with pytest.raises(ChangelogError, match=f"{file} is damaged; restore the file") as error:
            list(FileLog(tmp_path).read(entity="order", key="3"))
        assert error.value.kind is Kind.MALFORMED
        assert "\n" not in str(error.value)
    file.unlink()
    with pytest.raises(ChangelogError, match=r"cannot read .*: No such file") as error:
        list(FileLog(tmp_path).read(entity="order", key="3"))
    assert error.value.kind is Kind.STORAGE


def test_manifests_with_and_without_keys_can_be_read(tmp_path: Path) -> None:
    """Older versions wrote no keys into manifests. Every version ignores members that it does not know."""
    rows = [row(Position(1, n, 0), key=f"{n}") for n in range(4)]
    Layout(rows=rows, ends=(4, 4), levels=1, group_rows=5, with_keys=True, bloom=False).write(tmp_path)
    file = tmp_path / "manifest" / "1.json"
    manifest = json.loads(file.read_bytes())
    assert manifest["files"][0].pop("keys") == ["0", "3"]
    manifest["files"][0]["a later member"] = manifest["another"] = 1
    del manifest["crc32"]
    file.write_text(json.dumps(manifest), "utf-8")
    stored = read_manifest(tmp_path)
    assert stored is not None
    assert stored.files[0].keys is None
    assert read(tmp_path, key="2") == [rows[2]]
