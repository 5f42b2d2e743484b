"""Tests the store in which Debezium's engine keeps its progress as files. After any crash, the store must have
everything that was committed. Only one engine at a time may use a store.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from changelog.debezium import FileStore, Progress
from changelog.envelope.errors import ChangelogError, Kind

PARTITION, OTHER = b'{"server":"a"}', b'{"server":"b"}'


def stored(folder: Path) -> Progress:
    store = FileStore(folder)
    try:
        return store.open()
    finally:
        store.close()


def filled(folder: Path) -> FileStore:
    """Returns an open store with two commits."""
    store = FileStore(folder)
    assert store.open() == Progress(offsets={}, history=[])
    store.commit({PARTITION: b'{"lsn":1}'}, [b'{"ddl":"CREATE TABLE a"}', b'{"ddl":"CREATE TABLE \xc3\xa4"}'])
    store.commit({OTHER: b'{"lsn":18446744073709551615}'}, [b'{"ddl":"DROP TABLE a"}'])
    return store


def test_offsets_and_history_come_back_as_the_same_bytes(tmp_path: Path) -> None:
    filled(tmp_path / "deep" / "state").close()
    progress = stored(tmp_path / "deep" / "state")
    assert progress.offsets == {PARTITION: b'{"lsn":1}', OTHER: b'{"lsn":18446744073709551615}'}
    assert [record[8:-2] for record in progress.history] == [
        b"CREATE TABLE a",
        b"CREATE TABLE \xc3\xa4",
        b"DROP TABLE a",
    ]


def test_bytes_that_a_crash_left_after_the_history_are_removed(tmp_path: Path) -> None:
    filled(tmp_path).close()
    whole = (tmp_path / "history.jsonl").read_bytes()
    (tmp_path / "history.jsonl").write_bytes(whole + b'{"ddl":"never comm')
    (tmp_path / "offsets.json.new").write_bytes(b"{")
    assert len(stored(tmp_path).history) == 3
    assert (tmp_path / "history.jsonl").read_bytes() == whole


def test_a_commit_after_a_crash_replaces_the_file_that_the_crash_left(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / "offsets.json.new").write_bytes(b"{")
    store = FileStore(tmp_path)
    store.open()
    store.commit({PARTITION: b'{"lsn":3}'}, [b"{}"])
    store.close()
    progress = stored(tmp_path)
    assert (progress.offsets[PARTITION], progress.history[3:]) == (b'{"lsn":3}', [b"{}"])


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("offsets.json", b"{", "offsets.json is damaged, or another program wrote it"),
        ("offsets.json", b'{"format":2,"history_bytes":0,"offsets":[]}', "format 2"),
        ("history.jsonl", b"{}\n", "history.jsonl is shorter than"),
        ("history.jsonl", b"{}" * 100, "history.jsonl is damaged: no line ends at byte"),
    ],
)
def test_the_error_names_the_damaged_file(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    filled(tmp_path).close()
    (tmp_path / name).write_bytes(content)
    for _ in range(2):  # the first failure must release the lock
        with pytest.raises(ChangelogError, match=problem) as error:
            stored(tmp_path)
        assert error.value.kind is Kind.MALFORMED


def test_only_one_engine_can_use_a_store(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(ChangelogError, match="is used by") as error:
        stored(tmp_path)
    assert error.value.kind is Kind.IN_USE
    code = "import sys; from changelog.debezium import FileStore; FileStore(sys.argv[1]).open()"
    process = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert f"is used by process {os.getpid()}" in process.stderr
    store.close()
    assert len(stored(tmp_path).history) == 3


def test_the_error_names_the_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(ChangelogError) as error:
        stored(tmp_path / "file" / "state")
    assert (error.value.kind, str(tmp_path / "file") in error.value.message) == (Kind.STORAGE, True)
