"""The embedded sink: a log of Parquet files, with one immutable file for each commit (docs/reference/file-log.md)."""

import errno
import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from changelog.connectors.failpoints import Reach, nowhere
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
"""The boundaries between steps, at which tests make the process crash."""

ROW_GROUP_ROWS = 16_384
"""The most rows of a row group, which a reader skips, or holds in memory, as a whole."""

ROW_GROUP_BYTES = 32 << 20
"""The most bytes of a row group, more than usual rows need; a larger row gets a row group for itself."""

_MARKED = pa.array(sorted(OF_CHANGELOG))

_TEMPORARY = ".changelog-"
_BUFFER_BYTES = 1 << 20

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_log = structlog.get_logger()


class FileSink:
    """The file log at `path`, written by one process at a time. Implements `Sink`.

    `reach` is called with each of `FAIL_POINTS`, so that tests can crash there. A failure to store raises a
    ChangelogError of kind STORAGE and leaves no part of a commit; continue with a new `recover`. With `over_gap`, lost
    rows are no reason to refuse, because the caller records the gap.
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
        """Takes the lock, if it is not held, and returns the newest checkpoint; None if the log is new.

        A damaged newest file stays until the next commit, because the caller first checks whether the source still has
        the log from the checkpoint before it, and may refuse. With `over_gap`, all damaged files at the end are set
        aside at once. Raises ChangelogError: IN_USE if another process holds the lock, GAP if the only file is gone,
        MALFORMED if more than the newest file is damaged or an earlier file is missing.
        """
        with _storing(self._path):
            make_folder(log_folder(self._path))
            if self._lock is None:
                self._lock = _take_lock(self._path / "lock")
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
                "newest log file is not whole, to be set aside at the next commit",
                file=str(self._end.damage.file),
                reason=self._end.damage.reason,
            )
        return self._end.checkpoint

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Holds `rows` (`changelog.envelope.columnar.batch.SCHEMA`, in the order of their positions) until the next
        commit.
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
        """See `Sink`: all entities, if a file is gone or was set aside, because its content is unknown."""
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
        """Writes one commit.

        1. Write the file under a temporary name.
        2. Call fsync on it.
        3. Link it to its name, which fails if that name exists.
        4. Call fsync on the folder: only now the commit is durable.
        """
        sequence = self._end.sequence + 1
        marked = self._marked
        if any(pc.any(pc.is_in(batch.column("entity"), _MARKED)).as_py() for batch in rows):
            marked = [*marked, sequence]
        file = log_file(self._path, sequence)
        beside = file.with_name(f"{_TEMPORARY}{sequence}")
        try:
            make_file(beside, DATA_FILE)
            # An Arrow file, because with a Python file Arrow copies each page once more.
            with pa.OSFile(os.fspath(beside), "wb") as out, pa.BufferedOutputStream(out, _BUFFER_BYTES) as buffered:
                _write(buffered, rows, footer(sequence, with_marked(checkpoint, marked)))  # 1
                buffered.flush()
                self._reach("files:written")
                os.fsync(out.fileno())  # 2
            self._reach("files:synced")
            os.link(beside, file)  # 3
            self._reach("files:linked")
        except FileExistsError as error:
            raise _not_alone(self._path) from error
        finally:
            _remove(beside)
        sync(file.parent)  # 4
        self._reach("files:stored")
        self._marked = marked
        self._end = Recovery(sequence=sequence, checkpoint=checkpoint, damage=None, ahead=False)

    def _find_marked(self) -> Sequence[int]:
        """The files with rows of `schemas` or `gaps`, for a log whose checkpoint does not list them."""
        whole = [sequence for sequence in sequences(self._path) if sequence <= self._end.sequence]
        return [sequence for sequence in whole if holds_any(log_file(self._path, sequence), _MARKED)]

    def _store_progress(self, checkpoint: Checkpoint) -> None:
        """Replaces `resume.json` atomically."""
        stored = with_marked(checkpoint, self._marked)
        file = resume_file(self._path)
        beside = file.with_name(f"{_TEMPORARY}resume")
        try:
            make_file(beside, DATA_FILE)
            with beside.open("wb") as out:
                out.write(Resume(sequence=self._end.sequence, checkpoint=stored).to_json())
                out.flush()
                os.fsync(out.fileno())
            self._reach("files:resume-synced")
            beside.replace(file)
        finally:
            _remove(beside)
        self._reach("files:resume-replaced")
        sync(self._path)

    def _check_lock(self) -> None:
        """Raises if the lock is not held, or if its file was replaced, as another process may hold the new one."""
        if self._lock is None:
            raise ChangelogError(Kind.STORAGE, f"the file log in {self._path} is not open", hint="recover it first")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._lock), (self._path / "lock").stat()):
                return
        raise _not_alone(self._path)

    def _check_turn(self) -> None:
        """Raises if the newest file is not the one that this process wrote: it is gone, or another follows it."""
        newest = self._end.sequence
        is_gone = newest and not log_file(self._path, newest).exists()
        if is_gone or log_file(self._path, newest + 1).exists():
            raise _not_alone(self._path)

    def _tidy(self) -> None:
        """Removes temporary files of a crash, sets aside foreign files, and makes the visible files durable."""
        _remove(self._path / f"{_TEMPORARY}resume")
        for file in sorted(log_folder(self._path).iterdir()):
            if file.name.startswith(_TEMPORARY):
                file.unlink()
            elif sequence_of(file) is None:
                self._set_aside(file, "is not a log file")
        sync(log_folder(self._path))
        sync(self._path)

    def _set_aside_damaged(self) -> None:
        """Sets aside the newest files until one is whole, and a resume record that cannot be read."""
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
        """Removes from the log what recovery found to be invalid. After a crash at any point it can be repeated."""
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
    """Writes a Parquet file with the settings that measured best (docs/reference/file-log.md, *Figures*)."""
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
        pa.default_memory_pool().release_unused()  # otherwise it retains several times the size of the largest row


def _groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Halves rows until each row group is small or a single row.

    A page of Parquet cannot exceed 2 GiB, and is in memory several times while it is written.
    """
    if rows.nbytes <= ROW_GROUP_BYTES or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _groups(rows.slice(0, half))
    yield from _groups(rows.slice(half))


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Translates an error of the operating system to a ChangelogError of one line."""
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
    return "fix that, then start again: nothing is lost"


def _all_gone(path: Path) -> ChangelogError:
    return ChangelogError(
        Kind.GAP,
        f"{resume_file(path)} follows a log file that is gone or damaged, and there is no other",
        hint=f"restore it from a copy; else {OVER_GAP}",
    )


def _not_alone(path: Path) -> ChangelogError:
    return ChangelogError(
        Kind.IN_USE,
        f"something else changed the file log in {path}",
        hint="let only one service write there, and start again",
    )


def _take_lock(file: Path) -> int:
    """Takes the lock and returns its descriptor; the file holds the process id of the holder."""
    make_file(file, DATA_FILE)
    lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace") or "unknown"
        os.close(lock)
        raise ChangelogError(
            Kind.IN_USE,
            f"the file log in {file.parent} is written by process {holder}",
            hint="stop that service, or give this one another [sink] path",
        ) from error
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
