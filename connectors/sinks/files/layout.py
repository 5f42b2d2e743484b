"""The file log on disk: its names, what makes a file whole, and where a log ends.

docs/reference/file-log.md describes it for readers. Nothing here writes, so a reader needs neither the lock nor the
right to write.
"""

import os
import re
import zlib
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changelog.connectors.sinks.files.manifest import read_manifest
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import is_stored
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind
from changelog.envelope.position import Position

CHECKPOINT = b"changelog.checkpoint"
"""The footer metadata that holds the checkpoint, as JSON."""

SEQUENCE = b"changelog.sequence"
"""The footer metadata that holds the file's own sequence, as decimal text."""

CHECKSUM = b"changelog.crc32"
"""The footer metadata that holds the CRC-32 of the checkpoint's JSON, as decimal text. Parquet checks only pages."""

MARKED = "marked"
"""The member of a checkpoint's `sink` that lists the log files with rows of `schemas` or `gaps`.

A reader of these entities reads no other file. The list is in the footer of the file that has such a row, so every copy
has both or neither."""

_FILE = re.compile(r"(\d{20})\.parquet")
_REMOVE_RESUME = "remove it: changes after the newest log file are read again"


def log_folder(path: Path) -> Path:
    """The folder of the log files, one for each commit."""
    return path / "log"


def log_file(path: Path, sequence: int) -> Path:
    """The file of the commit `sequence`, counted from 1."""
    return log_folder(path) / f"{sequence:020d}.parquet"


def resume_file(path: Path) -> Path:
    """The file with the checkpoint of commits without rows."""
    return path / "resume.json"


def sequence_of(file: Path) -> int | None:
    """The sequence in a file's name, None if it is not the name of a log file."""
    match = _FILE.fullmatch(file.name)
    return int(match[1]) or None if match else None


def sequences(path: Path) -> list[int]:
    """The sequences in the log's folder, ascending; empty if there is no log."""
    try:
        numbers = [sequence_of(file) for file in log_folder(path).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(sequence for sequence in numbers if sequence is not None)


# One commit


def footer(sequence: int, checkpoint: Checkpoint) -> dict[bytes, bytes]:
    """The metadata that makes a Parquet file the commit `sequence`."""
    record = checkpoint.to_json()
    return {CHECKPOINT: record, CHECKSUM: b"%d" % zlib.crc32(record), SEQUENCE: b"%d" % sequence}


class NotWholeError(Exception):
    """A log file is not whole, or does not belong to this log; `reason` says why in a few words."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"log file {file} {reason}")
        self.file = file
        self.reason = reason

    def error(self, hint: str) -> ChangelogError:
        """The same as a ChangelogError, which stops the program."""
        return ChangelogError(Kind.MALFORMED, str(self), hint=hint)


def read_checkpoint_of(file: Path) -> Checkpoint:
    """The checkpoint in the footer of a log file. Raises NotWholeError."""
    with opened(file) as parquet:
        return _checkpoint(file, parquet)


def verify(file: Path) -> Checkpoint:
    """The checkpoint of a log file, after reading every page and comparing its checksum. Raises NotWholeError."""
    with opened(file, page_checksum_verification=True) as parquet:
        checkpoint = _checkpoint(file, parquet)
        if not is_stored(parquet.schema_arrow):
            raise NotWholeError(file, "has other columns")
        for _ in parquet.iter_batches(use_threads=False):
            pass
    pa.default_memory_pool().release_unused()  # otherwise it retains several times the size of the largest row
    return checkpoint


def _checkpoint(file: Path, parquet: Any) -> Checkpoint:
    metadata = parquet.metadata.metadata or {}
    record = metadata.get(CHECKPOINT)
    if record is None:
        raise NotWholeError(file, "has no recovery record")
    if metadata.get(CHECKSUM) != b"%d" % zlib.crc32(record):
        raise NotWholeError(file, "has a damaged recovery record")
    if metadata.get(SEQUENCE) != str(sequence_of(file)).encode():
        raise NotWholeError(file, "belongs to another place in a log")
    checkpoint = Checkpoint.from_json(record)
    if checkpoint.position is None:
        raise NotWholeError(file, "has no position")
    return checkpoint


@contextmanager
def opened(file: Path, **options: Any) -> Iterator[Any]:
    """Opens a Parquet file. Raises NotWholeError if Arrow cannot read it, STORAGE if the operating system cannot."""
    try:
        with pq.ParquetFile(file, **options) as parquet:
            yield parquet
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise NotWholeError(file, "is damaged") from error
    except OSError as error:
        if error.errno is None:  # Arrow raises this for pages that are inconsistent
            raise NotWholeError(file, "is damaged") from error
        raise ChangelogError(Kind.STORAGE, f"cannot read {file}: {os.strerror(error.errno)}") from error


# Where the log ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Where a log ends: the `sequence` of the newest whole file (0 without one) and the `checkpoint` to resume from.

    `marked` are the log files with rows of `schemas` or `gaps`, None if an older version wrote the checkpoint.
    `damage` is a newest file that is damaged and does not count. `ahead` says that `resume.json` follows a file that is
    missing or not whole, and does not count either.
    """

    sequence: int
    checkpoint: Checkpoint | None
    damage: NotWholeError | None
    ahead: bool
    marked: Sequence[int] | None = None


def find_recovery(path: Path) -> Recovery:
    """Finds where the log at `path` ends; changes nothing.

    Raises ChangelogError if files are missing inside the log, if more than the newest file is damaged, if `resume.json`
    belongs to another log, or if a newer version wrote it.
    """
    present = sequences(path)
    damage = None
    checkpoint = None
    if present:
        try:
            checkpoint = verify(log_file(path, present[-1]))
        except NotWholeError as error:
            damage = error
            present = present[:-1]
    if damage and present:
        checkpoint = _second_newest(log_file(path, present[-1]))
    archived = read_manifest(path)
    refuse_holes(path, present, archived.log.last if archived else 0)
    sequence = present[-1] if present else 0
    resume = read_resume(path)
    if resume and resume.sequence == sequence:
        _refuse_foreign(path, resume, checkpoint)
        checkpoint = resume.checkpoint
    checkpoint, marked = _parted(checkpoint)
    return Recovery(
        sequence=sequence,
        checkpoint=checkpoint,
        damage=damage,
        ahead=resume is not None and resume.sequence > sequence,
        marked=marked,
    )


def with_marked(checkpoint: Checkpoint, marked: Sequence[int]) -> Checkpoint:
    """The checkpoint as a log stores it, with the list of marked files."""
    return replace(checkpoint, sink={**checkpoint.sink, MARKED: marked})


def _parted(stored: Checkpoint | None) -> tuple[Checkpoint | None, Sequence[int] | None]:
    """Splits a stored checkpoint into the source's own, and the marked files that were stored with it."""
    if stored is None:
        return None, ()
    sink = {name: value for name, value in stored.sink.items() if name != MARKED}
    return replace(stored, sink=sink), stored.sink.get(MARKED)


def marked_sequences(path: Path, live: Sequence[int]) -> Set[int]:
    """The log files that may hold versions of columns, or gaps; all of them, if an older version wrote the newest.

    A newest file that is not whole does not count.
    """
    for sequence in reversed(live[-2:]):
        with suppress(NotWholeError):
            return frozenset(read_checkpoint_of(log_file(path, sequence)).sink.get(MARKED, live))
    return frozenset(live)


def holds_any(file: Path, entities: pa.Array) -> bool:
    """Whether a log file has rows of one of these entities."""
    with opened(file) as parquet:
        return bool(pc.any(pc.is_in(parquet.read(columns=["entity"]).column("entity"), entities)).as_py())


def _second_newest(file: Path) -> Checkpoint:
    try:
        return verify(file)
    except NotWholeError as damage:
        raise ChangelogError(
            Kind.GAP, f"{damage}, and so is the one after it", hint=f"restore them from a copy; else {OVER_GAP}"
        ) from damage


def refuse_holes(path: Path, present: list[int], archived: int) -> None:
    """Raises if a sequence is neither in the log nor in the archive."""
    if not present:
        if archived:
            raise _hole(path, archived, archived)
        return
    if present[0] > archived + 1:
        raise _hole(path, archived + 1, present[0] - 1)
    for before, after in pairwise(present):
        if after > before + 1:
            raise _hole(path, before + 1, after - 1)


def _hole(path: Path, first: int, last: int) -> ChangelogError:
    missing = f"{first}" if first == last else f"{first} to {last}"
    return ChangelogError(
        Kind.MALFORMED, f"the log in {path} lacks sequence {missing}", hint="restore the missing files from a copy"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Progress without rows: `checkpoint` comes after the log file `sequence` (0 before the first)."""

    sequence: int
    checkpoint: Checkpoint

    def to_json(self) -> bytes:
        """`{"sequence": …, "checkpoint": {…}, "crc32": …}`; the CRC is of the sequence and the checkpoint's text."""
        record = self.checkpoint.to_json()
        crc32 = _resume_crc32(self.sequence, record)
        return msgspec.json.encode({"sequence": self.sequence, "checkpoint": msgspec.Raw(record), "crc32": crc32})


def _resume_crc32(sequence: int, record: bytes) -> int:
    return zlib.crc32(b"%d %b" % (sequence, record))


def _refuse_foreign(path: Path, resume: Resume, newest: Checkpoint | None) -> None:
    """Progress without rows keeps the position, so a record with another position was copied from elsewhere."""
    if newest is not None and resume.checkpoint.position != newest.position:
        raise ChangelogError(
            Kind.MALFORMED,
            f"{resume_file(path)} ends at {resume.checkpoint.position or 'no position'}, but the log file that it "
            f"names ends at {newest.position}: it belongs to another copy of the log",
            hint=_REMOVE_RESUME,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredResume:
    sequence: int
    checkpoint: msgspec.Raw
    crc32: int


def read_resume(path: Path) -> Resume | None:
    """Reads `resume.json`; None if there is none. Raises ChangelogError if it cannot be read."""
    file = resume_file(path)
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=_StoredResume)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged_resume(file) from error
    record = bytes(stored.checkpoint)
    if stored.crc32 != _resume_crc32(stored.sequence, record):
        raise _damaged_resume(file)
    return Resume(sequence=stored.sequence, checkpoint=Checkpoint.from_json(record))


def _damaged_resume(file: Path) -> ChangelogError:
    return ChangelogError(Kind.MALFORMED, f"{file} is damaged", hint=_REMOVE_RESUME)


def highest_epoch(path: Path) -> int:
    """The highest epoch of any row that the log at `path` holds or held; 0 if there is none.

    Damaged files at its end do not matter, because no reader accepted rows from them; nothing is refused here.
    """
    epochs = [0]
    with suppress(ChangelogError):
        resume = read_resume(path)
        epochs.append(resume.checkpoint.epoch if resume else 0)
    archived = read_manifest(path)
    epochs += [Position.parse(file.last).epoch for file in (archived.files if archived else ())]
    for sequence in reversed(sequences(path)):
        with suppress(NotWholeError):
            epochs.append(read_checkpoint_of(log_file(path, sequence)).epoch)
            break
    return max(epochs)
