"""Reads a changelog that is a folder of Parquet files: names its files, checks that they are whole, and finds its end.

A file is *whole* if it is complete, undamaged and in its own place.

A commit with rows is one Parquet file. The file's number is its *sequence*, and its footer holds the commit's
checkpoint. A commit without rows replaces the resume record, `resume.json`, which holds only a checkpoint.
docs/reference/file-log.md describes the files for readers. Nothing in this module writes, so a reader needs neither the
lock nor the right to write.
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
"""The key of the checkpoint in a footer's metadata. The checkpoint is stored as JSON."""

SEQUENCE = b"changelog.sequence"
"""The key of the file's sequence in a footer's metadata. The sequence is stored as decimal text."""

CHECKSUM = b"changelog.crc32"
"""The key in a footer's metadata for the CRC-32 of the checkpoint's JSON, stored as decimal text.

It is needed because Parquet's own checksums only cover pages of rows."""

MARKED = "marked"
"""The member of a checkpoint's `sink` that lists the log files with rows of the entity `schemas` or `gaps`.

To read these two entities, a reader opens only the files in the list. The list in the footer of such a file contains
the file itself. So the newest list is complete, even in a copy of the log that ends at such a file."""

_FILE = re.compile(r"(\d{20})\.parquet")
_REMOVE_RESUME = "remove this file; the service then reads the changes after the newest log file once more"


def log_folder(path: Path) -> Path:
    """Returns the folder of the log files. It has one file for each commit with rows."""
    return path / "log"


def log_file(path: Path, sequence: int) -> Path:
    """Returns the file of the commit `sequence`, counted from 1."""
    return log_folder(path) / f"{sequence:020d}.parquet"


def resume_file(path: Path) -> Path:
    """Returns the file that holds the checkpoint of the last commit without rows."""
    return path / "resume.json"


def sequence_of(file: Path) -> int | None:
    """Returns the sequence in a file's name, None if the name is not that of a log file."""
    match = _FILE.fullmatch(file.name)
    return int(match[1]) or None if match else None


def sequences(path: Path) -> list[int]:
    """Returns the sequences of the files in the log's folder, ascending; an empty list if there is no log."""
    try:
        numbers = [sequence_of(file) for file in log_folder(path).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(sequence for sequence in numbers if sequence is not None)


# One commit


def footer(sequence: int, checkpoint: Checkpoint) -> dict[bytes, bytes]:
    """Returns the metadata for the footer of the log file with the number `sequence`."""
    record = checkpoint.to_json()
    return {CHECKPOINT: record, CHECKSUM: b"%d" % zlib.crc32(record), SEQUENCE: b"%d" % sequence}


class NotWholeError(Exception):
    """Raised for a log file that is damaged, or does not belong to its place in this log.

    `reason` is the predicate of a sentence about the file, such as "is damaged".
    """

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"log file {file} {reason}")
        self.file = file
        self.reason = reason

    def error(self, hint: str) -> ChangelogError:
        """Returns this error as a ChangelogError (MALFORMED), which stops the program."""
        return ChangelogError(Kind.MALFORMED, str(self), hint=hint)


def read_checkpoint_of(file: Path) -> Checkpoint:
    """Returns the checkpoint in the footer of a log file, without reading rows. Raises NotWholeError."""
    with opened(file) as parquet:
        return _checkpoint(file, parquet)


def verify(file: Path) -> Checkpoint:
    """Reads every page of a log file, compares checksums, and returns the file's checkpoint. Raises NotWholeError."""
    with opened(file, page_checksum_verification=True) as parquet:
        checkpoint = _checkpoint(file, parquet)
        if not is_stored(parquet.schema_arrow):
            raise NotWholeError(file, "has other columns")
        for _ in parquet.iter_batches(use_threads=False):
            pass
    # Without this call, Arrow's memory pool would retain several times the size of the largest row.
    pa.default_memory_pool().release_unused()
    return checkpoint


def _checkpoint(file: Path, parquet: Any) -> Checkpoint:
    metadata = parquet.metadata.metadata or {}
    record = metadata.get(CHECKPOINT)
    if record is None:
        raise NotWholeError(file, "has no checkpoint")
    if metadata.get(CHECKSUM) != b"%d" % zlib.crc32(record):
        raise NotWholeError(file, "has a damaged checkpoint")
    if metadata.get(SEQUENCE) != str(sequence_of(file)).encode():
        raise NotWholeError(file, "belongs to another place in a log")
    checkpoint = Checkpoint.from_json(record)
    if checkpoint.position is None:
        raise NotWholeError(file, "has no position")
    return checkpoint


@contextmanager
def opened(file: Path, **options: Any) -> Iterator[Any]:
    """Opens a Parquet file.

    Raises NotWholeError if the file is not valid Parquet, and ChangelogError (STORAGE) if the operating system cannot
    read the file.
    """
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
    """Where a log ends, and what has to be repaired there.

    `sequence` belongs to the newest whole file; it is 0 if there is none. `checkpoint` is the one to resume from, None
    for a new log. `damage` is set if the newest file is damaged; that file is then ignored. `ahead` is set if the
    resume record names a log file after `sequence`. That file is missing or not whole, so the resume record is ignored.
    `marked` lists the log files with rows of `schemas` or `gaps` (see `MARKED`); None if an older version of this
    program wrote the checkpoint.
    """

    sequence: int
    checkpoint: Checkpoint | None
    damage: NotWholeError | None
    ahead: bool
    marked: Sequence[int] | None = None


def find_recovery(path: Path) -> Recovery:
    """Finds where the log at `path` ends, and changes nothing.

    Raises ChangelogError if files are missing inside the log, if the two newest files are damaged, if `resume.json`
    is damaged or belongs to another log, or if a newer version of this program wrote the log.
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
    manifest = read_manifest(path)
    refuse_holes(path, present, manifest.log.last if manifest else 0)
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
    """Returns the checkpoint as the log stores it: with the list of marked files (see `MARKED`) in its `sink`."""
    return replace(checkpoint, sink={**checkpoint.sink, MARKED: marked})


def _parted(checkpoint: Checkpoint | None) -> tuple[Checkpoint | None, Sequence[int] | None]:
    """Splits a stored checkpoint. Returns the checkpoint that was committed, and the list of marked files.

    The list is empty for a new log, and None if an older version of this program wrote the checkpoint.
    """
    if checkpoint is None:
        return None, ()
    sink = {name: value for name, value in checkpoint.sink.items() if name != MARKED}
    return replace(checkpoint, sink=sink), checkpoint.sink.get(MARKED)


def marked_sequences(path: Path, live: Sequence[int]) -> Set[int]:
    """Returns the sequences of the log files that may hold rows of `schemas` or `gaps`.

    The newest whole file lists them. `live` are the sequences of the log files to read, ascending, up to the newest. If
    an older version of this program wrote the newest whole file, the file has no list. Then any file may hold such
    rows, and all of `live` is returned.
    """
    for sequence in reversed(live[-2:]):
        with suppress(NotWholeError):
            return frozenset(read_checkpoint_of(log_file(path, sequence)).sink.get(MARKED, live))
    return frozenset(live)


def holds_any(file: Path, entities: pa.Array) -> bool:
    """Returns whether a log file has rows of one of these entities."""
    with opened(file) as parquet:
        return bool(pc.any(pc.is_in(parquet.read(columns=["entity"]).column("entity"), entities)).as_py())


def _second_newest(file: Path) -> Checkpoint:
    try:
        return verify(file)
    except NotWholeError as damage:
        raise ChangelogError(
            Kind.GAP,
            f"{damage}, and the log file after it is not whole either",
            hint=f"restore them from a copy; else {OVER_GAP}",
        ) from damage


def refuse_holes(path: Path, present: list[int], archived: int) -> None:
    """Raises ChangelogError (MALFORMED) if a sequence is neither in the log nor in the archive.

    `present` are the sequences in the log, ascending. `archived` is the sequence of the last log file whose rows are in
    the archive, 0 if there is no archive.
    """
    if not present:
        if archived:
            raise _hole(path, archived, archived)
        return
    if present[0] > archived + 1:
        raise _hole(path, archived + 1, present[0] - 1)
    for sequence, next_sequence in pairwise(present):
        if next_sequence > sequence + 1:
            raise _hole(path, sequence + 1, next_sequence - 1)


def _hole(path: Path, first: int, last: int) -> ChangelogError:
    missing = f"{first}" if first == last else f"{first} to {last}"
    return ChangelogError(
        Kind.MALFORMED, f"the log in {path} lacks sequence {missing}", hint="restore the missing files from a copy"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The resume record: the `checkpoint` of a commit without rows.

    `sequence` belongs to the newest log file at the time of the commit; it is 0 if there was none.
    """

    sequence: int
    checkpoint: Checkpoint

    def to_json(self) -> bytes:
        """Returns `{"sequence": …, "checkpoint": {…}, "crc32": …}`.

        The CRC-32 covers the sequence and the text of the checkpoint.
        """
        record = self.checkpoint.to_json()
        crc32 = _resume_crc32(self.sequence, record)
        return msgspec.json.encode({"sequence": self.sequence, "checkpoint": msgspec.Raw(record), "crc32": crc32})


def _resume_crc32(sequence: int, record: bytes) -> int:
    return zlib.crc32(b"%d %b" % (sequence, record))


def _refuse_foreign(path: Path, resume: Resume, newest: Checkpoint | None) -> None:
    """Raises ChangelogError (MALFORMED) if the resume record and the newest log file differ in their position.

    A commit without rows does not change the position. So if the two differ, the record was copied from another log.
    """
    if newest is not None and resume.checkpoint.position != newest.position:
        raise ChangelogError(
            Kind.MALFORMED,
            f"the record {resume_file(path)} ends at {resume.checkpoint.position or 'no position'}, but the log file "
            f"that it names ends at {newest.position}: it belongs to another copy of the log",
            hint=_REMOVE_RESUME,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredResume:
    sequence: int
    checkpoint: msgspec.Raw
    crc32: int


def read_resume(path: Path) -> Resume | None:
    """Reads the resume record; returns None if there is none. Raises ChangelogError if the file is damaged."""
    file = resume_file(path)
    try:
        resume = msgspec.json.decode(file.read_bytes(), type=_StoredResume)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged_resume(file) from error
    record = bytes(resume.checkpoint)
    if resume.crc32 != _resume_crc32(resume.sequence, record):
        raise _damaged_resume(file)
    return Resume(sequence=resume.sequence, checkpoint=Checkpoint.from_json(record))


def _damaged_resume(file: Path) -> ChangelogError:
    return ChangelogError(Kind.MALFORMED, f"the file {file} is damaged", hint=_REMOVE_RESUME)


def highest_epoch(path: Path) -> int:
    """Returns the highest epoch of any row that the log at `path` holds or held; 0 if it never held a row.

    Skips damaged files at the end of the log, because no reader accepted rows from them. Also skips a damaged resume
    record.
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
