"""Folders that must be on disk."""

import threading
from pathlib import Path

import pytest

from changelog.connectors.sinks.files.fsync import make_folder


def test_writers_at_once_make_one_folder(tmp_path: Path) -> None:
    together = threading.Barrier(4)
    refused: list[OSError] = []

    def make() -> None:
        for each in range(200):
            together.wait()
            try:
                make_folder(tmp_path / str(each) / "a" / "b")
            except OSError as error:
                refused.append(error)

    threads = [threading.Thread(target=make) for _ in range(together.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == []
    assert sum(1 for _ in tmp_path.glob("*/a/b")) == 200


def test_a_file_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/folder"):
        with pytest.raises(NotADirectoryError, match="Not a directory"):
            make_folder(tmp_path / folder)
