"""Tests the file sink: its commits, its lock, damaged and missing files, and the file `resume.json`."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from changelog.connectors.sinks.files import layout
from changelog.connectors.sinks.files import sink as file_sink
from changelog.connectors.sinks.files.layout import NotWholeError, Resume, log_file, resume_file, verify, with_marked
from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import FORMAT, Checkpoint, Decisions
from changelog.envelope.columnar.batch import with_shapes
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.schemas.types import Struct
from tests.unit.sinks.material import batch, checkpoint, commit, expected, read, store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "changelog"


@pytest.fixture
def sink(path: Path) -> Iterator[FileSink]:
    sink = FileSink(path)
    assert sink.recover() is None
    yield sink
    sink.close()


def test_a_commit_stores_rows_and_their_checkpoint(sink: FileSink, path: Path) -> None:
    last = checkpoint(
        2,
        windows={"order": {"done": 3}},
        settings={"a": [1]},
        decisions=Decisions({Position(1, 1, 0): "skip"}),
        partial=True,
    )
    store(sink, commit(1), checkpoint(1))
    store(sink, commit(2), last)
    assert read(path) == expected(1, 2)
    assert read_checkpoint(path) == last
    assert sorted(file.name for file in (path / "log").iterdir()) == [f"{n:020d}.parquet" for n in (1, 2)]
    sink.close()
    assert FileSink(path).recover() == last


def test_shapes_are_not_stored(sink: FileSink, path: Path) -> None:
    """A batch may declare the columns of its entities (its *shapes*). The batches of a commit can have different
    shapes. The file of such a commit is like any other.
    """
    store(sink, commit(1), checkpoint(1))
    first, second = commit(2)
    store(sink, [with_shapes(first, {"order": Struct(fields=())}), second], checkpoint(2))
    assert read(path) == expected(1, 2)
    first_file, second_file = (pq.read_metadata(log_file(path, number)) for number in (1, 2))
    assert first_file.schema == second_file.schema
    assert first_file.metadata.keys() == second_file.metadata.keys()


def test_large_rows_are_row_groups_by_themselves(sink: FileSink, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sink, "ROW_GROUP_BYTES", 1)
    sink.recover()
    store(sink, commit(1), checkpoint(1))
    assert pq.read_metadata(log_file(path, 1)).num_row_groups == sum(rows.num_rows for rows in commit(1))
    assert read(path) == expected(1)


def test_checkpoints_without_rows_are_stored_beside_the_log(sink: FileSink, path: Path) -> None:
    store(sink, [], checkpoint(0, through=4))
    assert _recovered_after_restart(path, sink) == checkpoint(0, through=4)
    sink.recover()
    store(sink, commit(1), checkpoint(1))
    assert read_checkpoint(path) == checkpoint(1)
    store(sink, [batch([])], checkpoint(1, through=15))
    assert _recovered_after_restart(path, sink) == checkpoint(1, through=15)
    assert len(list((path / "log").iterdir())) == 1


def test_a_file_that_is_moved_away_while_it_is_read_is_no_error(
    sink: FileSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(sink, commit(1), checkpoint(1))
    store(sink, commit(2), checkpoint(2))

    def moved_away(file: Path) -> Checkpoint:
        monkeypatch.undo()
        file.unlink()
        return verify(file)

    monkeypatch.setattr(layout, "verify", moved_away)
    assert read_checkpoint(path) == checkpoint(1)


def test_only_one_process_may_write(sink: FileSink, path: Path) -> None:
    with pytest.raises(ChangelogError, match=f"written by process {os.getpid()}; stop that service") as caught:
        FileSink(path).recover()
    assert caught.value.kind is Kind.IN_USE
    sink.close()
    other = FileSink(path)
    other.recover()
    other.close()


def test_the_holder_of_the_lock_can_recover_again(sink: FileSink, path: Path) -> None:
    store(sink, commit(1), checkpoint(1))
    sink.add(commit(2))
    assert sink.recover() == checkpoint(1)
    store(sink, [], checkpoint(1, through=15))
    assert read(path) == expected(1), "rows that were added but not committed must be dropped"
    (path / "lock").unlink()
    with pytest.raises(ChangelogError, match="something else changed the file log"):
        sink.recover()


def test_a_sink_that_is_not_open_refuses_rows(path: Path) -> None:
    with pytest.raises(ChangelogError, match="is not open; recover it first"):
        store(FileSink(path), commit(1), checkpoint(1))


def _add_file(path: Path) -> None:
    log_file(path, 2).write_bytes(b"")


def _remove_file(path: Path) -> None:
    log_file(path, 1).unlink()


def _replace_lock(path: Path) -> None:
    (path / "lock").unlink()
    (path / "lock").touch()


def _remove_lock(path: Path) -> None:
    (path / "lock").unlink()


@pytest.mark.parametrize("interfere", [_add_file, _remove_file, _replace_lock, _remove_lock])
def test_a_second_writer_is_detected_even_without_the_lock(
    sink: FileSink, path: Path, interfere: Callable[[Path], None]
) -> None:
    store(sink, commit(1), checkpoint(1))
    interfere(path)
    for rows in (commit(2), []):
        with pytest.raises(ChangelogError, match="something else changed the file log") as caught:
            store(sink, rows, checkpoint(2))
        assert caught.value.kind is Kind.IN_USE


def test_a_file_that_appears_while_we_write_is_not_replaced(path: Path) -> None:
    def intrude(point: str) -> None:
        if point == "files:synced":
            log_file(path, 1).write_bytes(b"theirs")

    sink = FileSink(path, reach=intrude)
    sink.recover()
    with pytest.raises(ChangelogError, match="something else changed"):
        store(sink, commit(1), checkpoint(1))
    assert log_file(path, 1).read_bytes() == b"theirs"
    assert len(list((path / "log").iterdir())) == 1
    sink.close()


def _cut(size: int) -> Callable[[Path], None]:
    def cut(file: Path) -> None:
        os.truncate(file, size if size >= 0 else file.stat().st_size + size)

    return cut


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    offset = content.index(b"req-2")  # the offset is in a page that zstd stores without compression
    content[offset] ^= 1
    file.write_bytes(content)


def _zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _foreign(file: Path) -> None:
    file.write_bytes(log_file(file.parent.parent, 1).read_bytes())


DAMAGES = [_cut(0), _cut(3), _cut(200), _cut(-1), _flip, _zero, _foreign]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_file_is_set_aside_by_the_next_commit(
    sink: FileSink, path: Path, damage: Callable[[Path], None]
) -> None:
    store(sink, commit(1), checkpoint(1))
    store(sink, [], checkpoint(1, through=12))
    store(sink, commit(2), checkpoint(2))
    store(sink, [], checkpoint(2, through=25))
    sink.close()
    damage(log_file(path, 2))
    damaged = log_file(path, 2).read_bytes()

    with capture_logs() as logs:
        assert sink.recover() == checkpoint(1)
    assert [log["log_level"] for log in logs] == ["warning"]
    assert log_file(path, 2).read_bytes() == damaged  # it stays until the caller continues from the checkpoint
    with pytest.raises(ChangelogError, match="restore the file from a copy; if it is the newest one"):
        read(path)

    store(sink, [], checkpoint(1, through=13))
    assert (path / "aside" / log_file(path, 2).name).read_bytes() == damaged
    assert _recovered_after_restart(path, sink) == checkpoint(1, through=13)
    sink.recover()
    store(sink, commit(2), checkpoint(2))
    assert read(path) == expected(1, 2)
    assert read_checkpoint(path) == checkpoint(2)


def test_a_changed_byte_is_detected_or_leaves_the_checkpoint_unchanged(sink: FileSink, path: Path) -> None:
    store(sink, commit(1), checkpoint(1))
    file = log_file(path, 1)
    undamaged = file.read_bytes()
    for offset in range(len(undamaged)):
        content = bytearray(undamaged)
        content[offset] ^= 0x81
        file.write_bytes(content)
        try:
            assert verify(file) == with_marked(checkpoint(1), [])
        except NotWholeError:
            continue


def test_a_damaged_first_file_leaves_a_new_log(sink: FileSink, path: Path) -> None:
    store(sink, commit(1), checkpoint(1))
    sink.close()
    _zero(log_file(path, 1))
    assert sink.recover() is None
    store(sink, commit(1), checkpoint(1))
    assert read(path) == expected(1)


def test_files_that_are_set_aside_replace_no_earlier_ones(sink: FileSink, path: Path) -> None:
    for number in (1, 2, 3):
        sink.close()
        (path / "log" / "notes.txt").write_text(str(number))
        with capture_logs() as logs:
            sink.recover()
        assert [log["event"] for log in logs] == ["file set aside"]
    names = {file.name: file.read_text() for file in (path / "aside").iterdir()}
    assert names == {"notes.txt": "1", "notes.txt.1": "2", "notes.txt.2": "3"}


def test_two_damaged_files_are_an_error(sink: FileSink, path: Path) -> None:
    for number in (1, 2, 3):
        store(sink, commit(number), checkpoint(number))
    sink.close()
    _zero(log_file(path, 2))
    _zero(log_file(path, 3))
    with pytest.raises(ChangelogError, match="restore them from a copy") as caught:
        sink.recover()
    assert caught.value.kind is Kind.GAP
    assert len(list((path / "log").iterdir())) == 3
    other = FileSink(path)  # the failed sink has released the lock
    with pytest.raises(ChangelogError, match="restore them"):
        other.recover()


def test_missing_files_are_an_error(sink: FileSink, path: Path) -> None:
    for number in (1, 2, 3, 4):
        store(sink, commit(number), checkpoint(number))
    sink.close()
    log_file(path, 2).unlink()
    log_file(path, 3).unlink()
    with pytest.raises(ChangelogError, match="lacks sequence 2 to 3; restore the missing files"):
        sink.recover()
    log_file(path, 1).unlink()
    with pytest.raises(ChangelogError, match="lacks sequence 1 to 3"):
        read(path)


def test_a_file_of_a_newer_format_is_refused_and_not_set_aside(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("changelog.envelope.checkpoint._FORMAT_WITHOUT_GENERATIONS", FORMAT + 1)
        store(sink, commit(1), checkpoint(1))
    sink.close()
    with pytest.raises(ChangelogError, match="run the newer version that wrote it") as caught:
        sink.recover()
    assert caught.value.kind is Kind.PRECONDITION


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"sequence": 0}',
        b'{"sequence": 0, "checkpoint": {}, "crc32": 0}',
        Resume(sequence=0, checkpoint=checkpoint(0)).to_json().replace(b"0000000000", b"0000000001"),
        Resume(sequence=0, checkpoint=checkpoint(0)).to_json().replace(b"timeline", b"timelin\xff"),
    ],
)
def test_a_damaged_resume_record_is_an_error(sink: FileSink, path: Path, text: bytes) -> None:
    sink.close()
    resume_file(path).write_bytes(text)
    with pytest.raises(ChangelogError, match=r"resume.json is damaged; remove this file"):
        sink.recover()


@pytest.mark.parametrize("position", [None, checkpoint(1).position, checkpoint(3).position])
def test_a_resume_record_of_another_copy_is_an_error(sink: FileSink, path: Path, position: Position | None) -> None:
    """With an older record, the service would publish rows again. With a newer record, it would omit rows."""
    store(sink, commit(1), checkpoint(1))
    store(sink, commit(2), checkpoint(2))
    foreign = replace(checkpoint(2), position=position)
    resume_file(path).write_bytes(Resume(sequence=2, checkpoint=foreign).to_json())
    with pytest.raises(ChangelogError, match=r"resume.json ends at .* to another copy of the log; remove this file"):
        _recovered_after_restart(path, sink)
    resume_file(path).unlink()
    assert FileSink(path).recover() == checkpoint(2)


def test_the_resume_record_is_dropped_if_its_log_file_was_set_aside(sink: FileSink, path: Path) -> None:
    """The next log file gets the number of the file that was set aside. So if the record were kept, it would seem to
    follow the new file.
    """
    store(sink, commit(1), checkpoint(1))
    store(sink, commit(2), checkpoint(2))
    store(sink, [], checkpoint(2, through=99))
    _zero(log_file(path, 2))
    assert _recovered_after_restart(path, sink) == checkpoint(1)
    sink.recover()
    store(sink, commit(2), checkpoint(2))
    assert _recovered_after_restart(path, sink) == checkpoint(2)


def test_the_resume_record_names_the_log_file_that_it_follows(sink: FileSink, path: Path) -> None:
    store(sink, commit(1), checkpoint(1))
    store(sink, [], checkpoint(1, through=0x16_B374D848))
    stored = msgspec.json.decode(resume_file(path).read_bytes())
    assert stored["sequence"] == 1
    assert stored["checkpoint"]["through"] == "00000016B374D848"


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ChangelogError, match=r"cannot store in .*: Not a directory") as caught:
        FileSink(tmp_path / "file" / "changelog").recover()
    assert caught.value.kind is Kind.STORAGE
    with pytest.raises(ChangelogError, match="cannot store in") as caught:
        FileSink(tmp_path / "file").recover()


def test_a_folder_in_which_the_service_may_not_write_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:  # root may write everywhere
        os.seteuid(65534)
    try:
        with pytest.raises(ChangelogError, match="Permission denied; give the service the right") as caught:
            FileSink(tmp_path / "changelog").recover()
    finally:
        os.seteuid(user)
    assert caught.value.kind is Kind.STORAGE


def _recovered_after_restart(path: Path, sink: FileSink) -> object:
    """Closes the sink and returns the checkpoint that a new one recovers."""
    sink.close()
    other = FileSink(path)
    recovered = other.recover()
    other.close()
    return recovered
