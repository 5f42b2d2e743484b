"""Tests the store in RocksDB. It behaves like the store in memory, and refuses a folder that is not its own."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from changelog.connectors.state.changes import Changes
from changelog.connectors.state.rocks import RocksStore
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.state.memory_store import MemoryStore


def opened(path: Path, *, name: str = "shop", changelog: str = "files /log") -> RocksStore:
    return RocksStore(path, name=name, changelog=changelog)


def changes(random: Random) -> Changes:
    keys = [b"%b\0%d" % (random.choice([b"a", b"a-b", b"b"]), random.randrange(20)) for _ in range(8)]
    return Changes(
        rows={key: random.choice([None, b"", b"value %d" % random.randrange(99)]) for key in keys},
        forgotten={"a"} if random.random() < 0.2 else set(),
        facts={"position": b"%d" % random.randrange(99)},
    )


def test_the_store_has_the_same_rows_as_a_store_in_memory(tmp_path: Path) -> None:
    random, memory, store = Random(1), MemoryStore(), opened(tmp_path / "state")
    keys = [b"%b\0%d" % (entity, number) for entity in (b"a", b"a-b", b"b") for number in range(20)]
    for _ in range(60):
        change = changes(random)
        memory.write(change)
        store.write(change, bulk=random.random() < 0.3)
        if random.random() < 0.2:
            store.write(Changes(facts={"more": b""}))
            memory.write(Changes(facts={"more": b""}))
            store.close()
            store = opened(tmp_path / "state")
        assert store.get(keys) == memory.get(keys)
        assert store.facts() == memory.facts()
        assert list(store.scan()) == list(memory.scan())
    store.clear()
    assert store.facts() == {}
    assert store.get(keys) == [None] * len(keys)
    store.close()


def test_rows_and_facts_survive_a_kill(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from changelog.connectors.state.changes import Changes
from changelog.connectors.state.rocks import RocksStore
store = RocksStore(Path(sys.argv[1]), name="shop", changelog="files /log")
store.write(Changes(rows={b"a\\0001": b"bulk"}), bulk=True)
store.write(Changes(rows={b"a\\0002": b"row"}, facts={"position": b"7"}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "state")], check=False)
    store = opened(tmp_path / "state")
    assert store.facts() == {"position": b"7"}
    assert store.get([b"a\0001", b"a\0002"]) == [b"bulk", b"row"]
    store.close()


def refusal(path: Path, **arguments: str) -> ChangelogError:
    with pytest.raises(ChangelogError) as caught:
        opened(path, **arguments)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    error = refusal(tmp_path / "state")
    assert (error.kind, error.message) == (
        Kind.IN_USE,
        f"the state in {tmp_path}/state is used by process {os.getpid()}",
    )
    store.close()
    opened(tmp_path / "state").close()


def test_the_folder_of_another_changelog_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "state").close()
    for arguments in ({"name": "other"}, {"changelog": "kafka shop"}):
        error = refusal(tmp_path / "state", **arguments)
        assert error.kind is Kind.PRECONDITION
        assert "has the state of another changelog: shop in files /log" in error.message


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", "utf-8")
    assert refusal(tmp_path).kind is Kind.PRECONDITION
    assert (tmp_path / "letter.txt").exists()


def test_a_store_of_another_format_is_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = opened(path)
    store.write(Changes(facts={"position": b"7"}))
    store.close()
    marker = path / "changelog.json"
    marker.write_text(marker.read_text("utf-8").replace('"format":1', '"format":0'), "utf-8")
    store = opened(path)
    assert store.facts() == {}
    store.close()
    assert '"format":1' in marker.read_text("utf-8")


def test_a_marker_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "state").close()
    (tmp_path / "state" / "changelog.json").write_text("{", "utf-8")
    assert "cannot be read" in refusal(tmp_path / "state").message


def test_a_path_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal(tmp_path / "file" / "state")
    assert error.kind is Kind.STORAGE
    assert error.message == f"cannot keep the state in {tmp_path}/file/state: Not a directory"


def test_the_error_of_a_damaged_store_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = opened(path)
    store.write(Changes(rows={b"a\0001": b"row"}))
    store.close()
    (path / "rocksdb" / "CURRENT").write_text("nonsense\n", "utf-8")
    error = refusal(path)
    assert error.kind is Kind.STORAGE
    assert "delete the folder" in str(error)


def test_other_users_cannot_read_the_files(tmp_path: Path) -> None:
    opened(tmp_path / "state").close()
    assert (tmp_path / "state").stat().st_mode & 0o007 == 0
