"""Tests `make_folder`, which makes folders that survive a crash."""

import threading
from pathlib import Path

import pytest

from changelog.connectors.sinks.files.fsync import make_folder


def test_concurrent_writers_make_one_folder(tmp_path: Path) -> None:
    together = threading.Barrier(4)
    errors: list[OSError] = []

    def make() -> None:
        for number in range(200):
            together.wait()
            try:
                make_folder(tmp_path / str(number) / "a" / "b")
            except OSError as error:
                errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(together.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(1 for _ in tmp_path.glob("*/a/b")) == 200


def test_a_file_with_the_name_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/folder"):
        with pytest.raises(NotADirectoryError, match="Not a directory"):
            make_folder(tmp_path / folder)
