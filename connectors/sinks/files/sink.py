"""Writes a changelog as a log of Parquet files in a folder: one immutable file for each commit with rows.

docs/reference/file-log.md describes the files.
"""

import errno
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.locking import take_lock
from changelog.connectors.permissions import DATA_FILE, make_file
from changelog.connectors.sinks.files.fsync import make_folder, sync
from changelog.connectors.sinks.files.layout import (
    NotWholeError,
    Recovery,
    Resume,
    find_recovery,
    footer,
    holds_any,
    log_file,
    log_folder,
    read_resume,
    resume_file,
    sequence_of,
    sequences,
    verify,
    with_marked,
)
from changelog.connectors.sinks.files.selection import texts
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import OF_CHANGELOG, Entity
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

FAIL_POINTS = (
    "files:written",
    "files:synced",
    "files:linked",
    "files:stored",
    "files:resume-synced",
    "files:resume-replaced",
    "files:resume-dropped",
    "files:set-aside",
)
"""The places between two steps at which tests make the process crash."""

ROW_GROUP_ROWS = 16_384
"""The most rows in one row group. A reader either skips a row group, or holds all of it in memory."""

ROW_GROUP_BYTES = 32 << 20
"""The most bytes in one row group. With rows of usual size, a row group reaches `ROW_GROUP_ROWS` first. A row that is
larger than this limit has a row group for itself."""

_MARKED = texts(sorted(OF_CHANGELOG))

_TEMPORARY = ".changelog-"
_BUFFER_BYTES = 1 << 20

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_log = structlog.get_logger()


class FileSink:
    """The writer of the file log at `path`; only one process can write at a time. Implements `Sink`.

    If the sink cannot store a commit, it raises a ChangelogError of kind STORAGE and leaves no part of the commit; call
    `recover` before the next commit. With `over_gap`, the sink does not refuse a log that has lost rows, because the
    caller records the gap. `reach` is called with the name of each fail point (`FAIL_POINTS`), so that tests can make
    the process crash there.
    """

    def __init__(self, path: Path, *, over_gap: bool = False, reach: Reach = nowhere) -> None:
        self._path, self._over_gap = path, over_gap
        self._reach = reach
        self._lock: int | None = None
        self._added: list[pa.RecordBatch] = []
        self._end = Recovery(sequence=0, checkpoint=None, damage=None, ahead=False)
        self._marked: Sequence[int] = ()

    def prepare(self, entities: Sequence[Entity]) -> None:
        """See `Sink`: nothing has to be prepared for an entity."""

    def recover(self) -> Checkpoint | None:
        """Takes the lock, if this sink does not hold it yet, and returns the newest checkpoint; None if the log is new.

        If the newest file is damaged, the sink ignores it, and sets it aside only at the next commit. So the file is
        still in its place if the caller stops before that commit, because the source no longer has the database's log
        after the returned checkpoint. With `over_gap`, all damaged files at the end are set aside at once.

        Raises ChangelogError: IN_USE if another process holds the lock; GAP if `resume.json` was written after a log
        file and no whole log file is left, or if the two newest log files are damaged; MALFORMED if an earlier file is
        missing or `resume.json` is damaged.
        """
        with _storing(self._path):
            make_folder(log_folder(self._path))
            if self._lock is None:
                self._lock = take_lock(self._path / "lock", self._in_use)
        try:
            self._added = []
            with _storing(self._path):
                self._check_lock()
                self._tidy()
                if self._over_gap:
                    self._set_aside_damaged()
                self._end = find_recovery(self._path)
                self._marked = self._find_marked() if self._end.marked is None else self._end.marked
            if self._end.ahead and self._end.checkpoint is None and not self._over_gap:
                raise _all_gone(self._path)
        except ChangelogError:
            self.close()
            raise
        if self._end.damage:
            _log.warning(
                "the newest log file is not whole, and will be set aside at the next commit",
                file=str(self._end.damage.file),
                reason=self._end.damage.reason,
            )
        return self._end.checkpoint

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Keeps `rows` in memory until the next commit.

        The rows have the columns of `changelog.envelope.columnar.batch.SCHEMA`, in the order of the rows' positions.
        """
        self._added += rows

    def commit(self, checkpoint: Checkpoint) -> None:
        """Stores the added rows and `checkpoint` as one file. Without rows, the checkpoint goes to `resume.json`."""
        rows, self._added = self._added, []
        with _storing(self._path):
            self._check_lock()
            self._mend()
            self._check_turn()
            if any(batch.num_rows for batch in rows):
                self._commit(rows, checkpoint)
            else:
                self._store_progress(checkpoint)

    def lost(self, entities: Collection[str]) -> Collection[str]:
        """See `Sink`. Returns all entities if a log file is gone or was set aside, because its content is unknown."""
        folder = self._path / "aside"
        aside = [sequence_of(file) or 0 for file in folder.iterdir()] if folder.is_dir() else []
        return entities if self._end.ahead or max(aside, default=0) > self._end.sequence else ()

    def abandon(self) -> None:
        """See `Sink`."""
        self._added = []

    def close(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _commit(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint) -> None:
        """Writes one commit with rows.

        1. Write the file under a temporary name.
        2. Call fsync on the file.
        3. Link the file to its final name. This fails if a file with that name exists.
        4. Call fsync on the folder. Only after this step is the commit durable.
        """
        sequence = self._end.sequence + 1
        marked = self._marked
        if any(pc.any(pc.is_in(batch.column("entity"), _MARKED)).as_py() for batch in rows):
            marked = [*marked, sequence]
        file = log_file(self._path, sequence)
        temporary = file.with_name(f"{_TEMPORARY}{sequence}")
        try:
            make_file(temporary, DATA_FILE)
            # Arrow opens the file, because it copies each page once more if it writes to a file object of Python.
            with pa.OSFile(os.fspath(temporary), "wb") as out, pa.BufferedOutputStream(out, _BUFFER_BYTES) as buffered:
                _write(buffered, rows, footer(sequence, with_marked(checkpoint, marked)))  # 1
                buffered.flush()
                self._reach("files:written")
                os.fsync(out.fileno())  # 2
            self._reach("files:synced")
            os.link(temporary, file)  # 3
            self._reach("files:linked")
        except FileExistsError as error:
            raise _not_alone(self._path) from error
        finally:
            _remove(temporary)
        sync(file.parent)  # 4
        self._reach("files:stored")
        self._marked = marked
        self._end = Recovery(sequence=sequence, checkpoint=checkpoint, damage=None, ahead=False)

    def _find_marked(self) -> Sequence[int]:
        """Finds the files with rows of `schemas` or `gaps` by reading all files.

        This is necessary if an older version of this program wrote the checkpoint, because it did not list these files.
        """
        whole = [sequence for sequence in sequences(self._path) if sequence <= self._end.sequence]
        return [sequence for sequence in whole if holds_any(log_file(self._path, sequence), _MARKED)]

    def _store_progress(self, checkpoint: Checkpoint) -> None:
        """Stores a commit without rows: replaces `resume.json` atomically."""
        marked_checkpoint = with_marked(checkpoint, self._marked)
        file = resume_file(self._path)
        temporary = file.with_name(f"{_TEMPORARY}resume")
        try:
            make_file(temporary, DATA_FILE)
            with temporary.open("wb") as out:
                out.write(Resume(sequence=self._end.sequence, checkpoint=marked_checkpoint).to_json())
                out.flush()
                os.fsync(out.fileno())
            self._reach("files:resume-synced")
            temporary.replace(file)
        finally:
            _remove(temporary)
        self._reach("files:resume-replaced")
        sync(self._path)

    def _in_use(self, holder: str) -> ChangelogError:
        return ChangelogError(
            Kind.IN_USE,
            f"the file log in {self._path} is written by {holder}",
            hint="stop that service, or give this one another [sink] path",
        )

    def _check_lock(self) -> None:
        """Raises ChangelogError: STORAGE if the lock is not held, IN_USE if somebody replaced the lock's file.

        If the file was replaced, another process may hold a lock on the new file.
        """
        if self._lock is None:
            raise ChangelogError(Kind.STORAGE, f"the file log in {self._path} is not open", hint="recover it first")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._lock), (self._path / "lock").stat()):
                return
        raise _not_alone(self._path)

    def _check_turn(self) -> None:
        """Raises ChangelogError (IN_USE) if another process changed the log since `recover` or the last commit.

        The sink knows the newest file. If this file is gone, or another file follows it, the log was changed.
        """
        newest = self._end.sequence
        is_gone = newest and not log_file(self._path, newest).exists()
        if is_gone or log_file(self._path, newest + 1).exists():
            raise _not_alone(self._path)

    def _tidy(self) -> None:
        """Removes temporary files that a crash left, and sets aside files that are not log files.

        Then calls fsync on the folders. After that, every file that this sink sees is durable.
        """
        _remove(self._path / f"{_TEMPORARY}resume")
        for file in sorted(log_folder(self._path).iterdir()):
            if file.name.startswith(_TEMPORARY):
                file.unlink()
            elif sequence_of(file) is None:
                self._set_aside(file, "is not a log file")
        sync(log_folder(self._path))
        sync(self._path)

    def _set_aside_damaged(self) -> None:
        """Sets aside all files after the newest whole file, and a resume record that cannot be read."""
        for sequence in reversed(sequences(self._path)):
            try:
                verify(log_file(self._path, sequence))
                break
            except NotWholeError as damage:
                self._set_aside(damage.file, damage.reason)
        try:
            read_resume(self._path)
        except ChangelogError as error:
            if error.kind is not Kind.MALFORMED:
                raise
            self._set_aside(resume_file(self._path), error.message)
        sync(log_folder(self._path))
        self._reach("files:set-aside")

    def _mend(self) -> None:
        """Removes a resume record that `recover` ignored, and sets aside a damaged newest file.

        After a crash at any point, the method can be called again.
        """
        if self._end.ahead:
            _remove(resume_file(self._path))
            sync(self._path)
            self._reach("files:resume-dropped")
        if self._end.damage:
            self._set_aside(self._end.damage.file, self._end.damage.reason)
            sync(log_folder(self._path))
            self._reach("files:set-aside")
        self._end = Recovery(sequence=self._end.sequence, checkpoint=self._end.checkpoint, damage=None, ahead=False)

    def _set_aside(self, file: Path, reason: str) -> None:
        folder = self._path / "aside"
        make_folder(folder)
        target = folder / file.name
        number = 0
        while target.exists():
            number += 1
            target = folder / f"{file.name}.{number}"
        file.rename(target)
        sync(folder)
        _log.warning("file set aside", file=str(file), reason=reason, now=str(target))


def _write(out: pa.NativeFile, rows: Sequence[pa.RecordBatch], metadata: dict[bytes, bytes]) -> None:
    """Writes a Parquet file. Measurements decided the settings (docs/reference/file-log.md, *Figures*)."""
    with pq.ParquetWriter(
        out,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=["entity", "partition", "op", "api_version", "service_name"],
        write_statistics=["entity", "key", "position", "committed_at"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        table = pa.Table.from_batches(rows, SCHEMA)
        for start in range(0, table.num_rows, ROW_GROUP_ROWS):
            for group in _groups(table.slice(start, ROW_GROUP_ROWS)):
                # Arrow writes many short chunks at a third of the speed of one long chunk.
                writer.write_table(group.combine_chunks())
        writer.add_key_value_metadata(metadata)
    if table.nbytes > ROW_GROUP_BYTES:
        # Without this call, Arrow's memory pool would retain several times the size of the largest row.
        pa.default_memory_pool().release_unused()


def _groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Divides rows into halves, repeatedly, until each part has at most ROW_GROUP_BYTES or is a single row.

    A page of Parquet cannot exceed 2 GiB, and memory holds several copies of a page while Arrow writes it.
    """
    if rows.nbytes <= ROW_GROUP_BYTES or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _groups(rows.slice(0, half))
    yield from _groups(rows.slice(half))


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Translates an error of the operating system to a ChangelogError (STORAGE) with a message of one line."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ChangelogError(Kind.STORAGE, f"cannot store in {path}: {reason}", hint=_remedy(error.errno)) from error


def _remedy(number: int | None) -> str:
    if number in _FULL:
        return "free space, then start again: nothing is lost"
    if number in _FORBIDDEN:
        return "give the service the right to write there, on a file system that has hard links"
    return "remove the cause, then start again: nothing is lost"


def _all_gone(path: Path) -> ChangelogError:
    return ChangelogError(
        Kind.GAP,
        f"the record {resume_file(path)} follows a log file that is gone or damaged, and no other log file is whole",
        hint=f"restore the log files from a copy; else {OVER_GAP}",
    )


def _not_alone(path: Path) -> ChangelogError:
    return ChangelogError(
        Kind.IN_USE,
        f"something else changed the file log in {path}",
        hint="let only one service write there, and start again",
    )


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
