"""Tests the file sink with crashes and full disks. Each commit must be stored completely or not at all, once and in
order.
"""

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from changelog.connectors.sinks.files.layout import Resume, log_file, resume_file
from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.connectors.sinks.files.sink import FAIL_POINTS, FileSink
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from tests.patience import PATIENCE_S
from tests.servers.disks import small_disk
from tests.unit.sinks.doomed_writer import write
from tests.unit.sinks.material import batch, checkpoint, commit, expected, read, row, store

MENDING = ("files:resume-dropped", "files:set-aside")
"""The fail points that a sink reaches only while it mends its log."""

LAST = 4
LARGE = 200


def _write(path: Path, point: str, nth: int) -> tuple[int, list[str]]:
    """Runs `doomed_writer`, which kills itself when it passes the fail point `point` for the `nth` time.

    Returns its exit code, and the words of the last line that it printed, for example `commit` and `3`.
    """
    process = subprocess.run(
        [sys.executable, "-m", "tests.unit.sinks.doomed_writer", str(path), str(LAST), point, str(nth)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in process.stderr
    return process.returncode, (process.stdout.splitlines() or ["commit 0"])[-1].split()


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", [point for point in FAIL_POINTS if point not in MENDING])
def test_a_writer_that_is_killed_at_a_fail_point_loses_no_commit(tmp_path: Path, point: str, nth: int) -> None:
    code, (kind, number) = _write(tmp_path, point, nth)
    assert code == -signal.SIGKILL

    stored = read_checkpoint(tmp_path)
    last_stored = stored.position.commit if stored and stored.position else 0
    assert read(tmp_path) == expected(*range(1, last_stored + 1))
    assert last_stored - int(number) in (0, 1)
    if stored:
        acknowledged = 10 * int(number) + (5 if kind == "idle" else 0)
        assert stored.complete_before.commit >= acknowledged

    _check_continues(tmp_path)


@pytest.mark.parametrize("point", MENDING)
def test_a_writer_may_be_killed_while_it_mends_the_log(tmp_path: Path, point: str) -> None:
    sink = FileSink(tmp_path)
    sink.recover()
    for number in (1, 2):
        store(sink, commit(number), checkpoint(number))
    sink.close()
    resume_file(tmp_path).write_bytes(Resume(sequence=2, checkpoint=checkpoint(2, through=25)).to_json())
    os.truncate(log_file(tmp_path, 2), 100)

    assert _write(tmp_path, point, 1)[0] == -signal.SIGKILL
    assert read_checkpoint(tmp_path) == checkpoint(1)
    _check_continues(tmp_path)
    assert (tmp_path / "aside" / log_file(tmp_path, 2).name).stat().st_size == 100


def _check_continues(path: Path) -> None:
    """Finishes the work, and checks that the killed process has left nothing behind."""
    write(path, LAST)
    assert read(path) == expected(*range(1, LAST + 1))
    assert read_checkpoint(path) == checkpoint(LAST, through=10 * LAST + 5)
    assert sorted(file.name for file in (path / "log").iterdir()) == [f"{n:020d}.parquet" for n in range(1, LAST + 1)]
    assert {file.name for file in path.iterdir()} <= {"aside", "lock", "log", "resume.json"}


@contextmanager
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 1 MiB and yields its folder. Skips the test if this process may not mount."""
    with small_disk(tmp_path / "disk", 1) as mounted:
        if not mounted:
            pytest.skip("only root may mount a small file system; in a container, root also needs CAP_SYS_ADMIN")
        yield tmp_path / "disk"


def _large(number: int) -> list[pa.RecordBatch]:
    """Returns a commit of `LARGE` rows, about 100 kB in all. The rows cannot be compressed."""
    noise = random.Random(number)
    return [batch(row(Position(1, number, 2 * n), current=f'"{noise.randbytes(400).hex()}"') for n in range(LARGE))]


def _fill(sink: FileSink) -> tuple[ChangelogError, int]:
    """Stores commits until the disk is full. Returns the error and the number of the commit that failed."""
    for number in range(1, 100):
        try:
            store(sink, _large(number), checkpoint(number, LARGE))
        except ChangelogError as error:
            return error, number
    raise AssertionError("the disk did not become full")


def test_on_a_full_disk_the_sink_stops_cleanly_and_can_continue(tmp_path: Path) -> None:
    with _small_disk(tmp_path) as disk:
        (disk / "filler").write_bytes(bytes(300_000))
        path = disk / "changelog"
        sink = FileSink(path)
        sink.recover()
        error, number = _fill(sink)
        assert str(error).endswith("No space left on device; free space, then start again: nothing is lost")
        assert error.kind is Kind.STORAGE
        sink.close()
        assert number > 1
        _check_log(path, number - 1)

        (disk / "filler").unlink()
        sink = FileSink(path)
        assert sink.recover() == checkpoint(number - 1, LARGE)
        store(sink, _large(number), checkpoint(number, LARGE))
        sink.close()
        _check_log(path, number)


def test_on_a_full_disk_the_old_resume_record_stays(tmp_path: Path) -> None:
    with _small_disk(tmp_path) as disk:
        path = disk / "changelog"
        sink = FileSink(path)
        sink.recover()
        store(sink, [], checkpoint(0, through=7))
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(bytes(2_000_000))
        with pytest.raises(ChangelogError, match="No space left on device"):
            store(sink, [], checkpoint(0, through=8))
        assert read_checkpoint(path) == checkpoint(0, through=7)
        assert {file.name for file in path.iterdir()} == {"lock", "log", "resume.json"}
        sink.close()


def test_a_file_that_grows_too_large_stops_cleanly(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    sink.recover()
    store(sink, _large(1), checkpoint(1, LARGE))
    with _file_size_limit(50_000), pytest.raises(ChangelogError, match="File too large; free space") as full:
        store(sink, _large(2), checkpoint(2, LARGE))
    assert full.value.kind is Kind.STORAGE
    _check_log(tmp_path, 1)
    store(sink, _large(2), checkpoint(2, LARGE))
    sink.close()
    _check_log(tmp_path, 2)


@contextmanager
def _file_size_limit(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _check_log(path: Path, last: int) -> None:
    """Checks that the log has exactly the large commits up to `last`, and no part of another one."""
    assert [change["position"] for change in read(path)] == [
        str(Position(1, number, 2 * n)) for number in range(1, last + 1) for n in range(LARGE)
    ]
    assert len(list((path / "log").iterdir())) == last
