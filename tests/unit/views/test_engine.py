"""Tests that the engine over files returns the rows that `story` computes independently from the same changes."""

import json
import random
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.sinks.files import sink
from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.views.files import row_groups, tail
from changelog.connectors.views.files.engine import FileEngine
from changelog.connectors.views.files.key_runs import KeyRuns
from changelog.connectors.views.files.row_groups import RecentlyUsed
from changelog.connectors.views.served import StateRow
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, position_of
from changelog.envelope.position import Position
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice
from tests.unit.records import record
from tests.unit.views.story import BATCH, ENTITIES, KEYS, Commit, Row, Story, archive, store

ABSENT = ("0", "no such key", "\0truncate", "z")


def as_row(row: StateRow) -> Row:
    values = json.loads(row.current)
    assert not values.keys() & set(row.unavailable)
    return Row(values=values, unavailable=set(row.unavailable), position=str(row.position))


def assert_equal(engine: FileEngine, story: Story, services: ServiceChoice = ALL_SERVICES) -> None:
    """Compares every key and every range of the engine with the rows of the story."""
    for entity in ENTITIES:
        expected = story.rows[entity]
        moment = engine.view(entity, services).now()
        assert moment.reached.position == max(map(position_of, story.commits[-1]))
        gets = {key: row for key in (*KEYS, *ABSENT) if (row := moment.get(key)) is not None}
        assert {key: as_row(row) for key, row in gets.items()} == expected
        for begin in ("", *KEYS, *ABSENT):
            pairs = list(moment.rows(begin))
            assert [key for key, _ in pairs] == sorted({key for key, _ in pairs})
            rows = {key: as_row(row) for key, row in pairs if row is not None}
            assert rows == {key: row for key, row in expected.items() if key >= begin}


@settings(max_examples=20)
@given(
    st.randoms(use_true_random=False),
    st.booleans(),
    st.booleans(),
    st.integers(1, 20),
    st.sampled_from([ALL_SERVICES, ServiceChoice(drop=(BATCH,)), ServiceChoice(keep=("order-api",))]),
)
def test_rows_are_those_of_an_independent_fold(
    randoms: random.Random, with_keys: bool, bloom: bool, group_rows: int, services: ServiceChoice
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "ROW_GROUP_ROWS", max(group_rows // 4, 1))
        path, story = Path(folder), Story(randoms, batch_share=0.4 if services.names else 0.0)
        engine, archived = FileEngine(path), 0
        for number in range(1, randoms.randint(2, 4)):
            store(path, story.more(randoms.randint(1, 20)))
            assert_equal(engine, story, services)
            archived = randoms.randint(archived, len(story.commits))
            if archived:
                options = {"with_keys": with_keys, "bloom": bloom, "group_rows": group_rows}
                archive(path, story.commits[:archived], randoms, number=number, settings=options)
            assert_equal(engine, story, services)
        assert_equal(FileEngine(path), story, services)


@given(st.lists(st.lists(st.sampled_from(KEYS), max_size=9), max_size=9), st.integers(0, 40))
def test_key_runs_return_the_places_of_each_key(parts: list[list[str]], since: int) -> None:
    runs, place = KeyRuns(), 0
    places: dict[str, list[int]] = {}
    for keys in parts:
        numbers = range(place, place + len(keys))
        runs = runs.add([pa.array(keys, pa.utf8())], [pa.array(numbers, pa.int64()).to_numpy()])
        for key, number in zip(keys, numbers, strict=True):
            places.setdefault(key, []).insert(0, number)
        place += len(keys)
    for begin in (0, since):
        later = {key: left for key, of_key in places.items() if (left := [at for at in of_key if at >= begin])}
        some = runs.since(begin) if begin else runs
        assert {key: list(some.places_of(key)) for key in KEYS if list(some.places_of(key))} == later
        for key in KEYS:
            assert list(some.keys_from(key)) == sorted(other for other in later if other >= key)
    assert len(runs.runs) <= 1 + place.bit_length()


def test_the_cache_keeps_what_was_used_last() -> None:
    makes: list[str] = []

    def make(name: str) -> str:
        makes.append(name)
        return name

    contents = RecentlyUsed[str, str](5, len)
    for name in ("aa", "bb", "aa", "cc", "aa", "bb", "too long", "aa"):
        assert contents.get(name, partial(make, name)) == name
    assert makes == ["aa", "bb", "cc", "bb", "too long", "aa"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store(tmp_path, [[record(Op.CREATE, '{"id":1}', commit=1)], [record(Op.CREATE, '{"id":2}', commit=2, key="2")]])
    return tmp_path


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_log_that_was_replaced_is_read_from_its_beginning(path: Path, count: int) -> None:
    engine = FileEngine(path)
    assert len(list(engine.view("order").now().rows(""))) == 2
    for file in (path / "log").iterdir():
        file.unlink()
    store(path, [[record(Op.CREATE, f'{{"n":{n}}}', commit=n, key=f"new {n}")] for n in range(1, count + 1)])
    moment = engine.view("order").now()
    rows = {key: row and row.current.decode() for key, row in moment.rows("")}
    assert rows == {f"new {n}": f'{{"n":{n}}}' for n in range(1, count + 1)}
    assert moment.reached.position == Position(1, count, 2)


def test_a_reader_continues_after_its_files_were_archived(path: Path) -> None:
    engine = FileEngine(path)
    moment = engine.view("order").now()
    rows = moment.rows("")
    assert next(rows)[0] == "2"
    commits = [[record(Op.CREATE, '{"id":1}', commit=1)], [record(Op.CREATE, '{"id":2}', commit=2, key="2")]]
    archive(path, commits, random.Random(1), number=1, settings={})  # the archive replaces the file that has the key 42
    row = moment.get("42")
    assert row is not None
    assert row.current == b'{"id":1}'
    assert [key for key, _ in rows] == ["42"]


def test_readers_miss_nothing_while_the_archive_replaces_files(tmp_path: Path) -> None:
    def make(commit: int) -> Commit:
        rows = [(f"key {n}", 2 * n) for n in range(3)]
        return [record(Op.CREATE, f"{commit}", commit=commit, ordinal=ordinal, key=key) for key, ordinal in rows]

    def follow(engine: FileEngine) -> int:
        count = 0
        while not is_over.is_set() or not count:
            moment = engine.view("order").now()
            position = moment.reached.position
            rows = list(moment.rows(""))
            assert [key for key, _ in rows] == ["key 0", "key 1", "key 2"]
            assert all(row and position and int(row.current) >= position.commit for _, row in rows)
            count += 1
        return count

    commits, randoms, is_over = [make(1)], random.Random(3), threading.Event()
    store(tmp_path, commits)
    with ThreadPoolExecutor(2) as pool:
        engine = FileEngine(tmp_path)
        readers = [pool.submit(follow, engine) for _ in range(2)]
        try:
            for number in range(2, 40):
                commits.append(make(number))
                store(tmp_path, commits[-1:])
                if number % 5 == 0:
                    archive(tmp_path, commits[:-1], randoms, number=number, settings={"with_keys": True})
        finally:
            is_over.set()
        assert all(reader.result() for reader in readers)


def test_a_folder_without_a_changelog_has_no_rows(tmp_path: Path) -> None:
    engine = FileEngine(tmp_path)
    assert engine.entities() == {}
    with pytest.raises(ChangelogError, match="is empty; start the service") as caught:
        engine.view("order").now()
    assert caught.value.kind is Kind.PRECONDITION


def test_a_missing_and_a_damaged_file_are_reported_in_one_line(path: Path) -> None:
    log_file(path, 1).unlink()
    with pytest.raises(ChangelogError, match="lacks sequence 1; restore"):
        FileEngine(path).view("order").now()
    log_file(path, 1).write_bytes(b"PAR1")
    with pytest.raises(ChangelogError, match="is damaged; restore the file"):
        FileEngine(path).view("order").now()


def test_a_tail_that_is_too_large_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "TAIL_BYTES", 20)
    with pytest.raises(ChangelogError, match="not archived than fit into 0 MiB; archive them"):
        FileEngine(path).view("order").now()


def test_rows_are_right_although_nothing_is_cached(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "GROUPS_BYTES", 0)
    monkeypatch.setattr(row_groups, "FOOTERS_MAX", 0)
    monkeypatch.setattr(tail, "ADDED_ROWS", 1)
    moment = FileEngine(path).view("order").now()
    assert {key: row and row.current for key, row in moment.rows("")} == {"2": b'{"id":2}', "42": b'{"id":1}'}
