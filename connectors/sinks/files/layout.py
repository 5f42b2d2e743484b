"""The file log on disk: its names, what makes a file whole, where a log ends, what is archived.

docs/reference/file-log.md describes all of it for readers. Nothing here writes, so that a reader needs neither the lock
nor the right to write.
"""

import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from envelope.checkpoint import Checkpoint
from envelope.columnar.batch import is_stored
from envelope.errors import OVER_GAP, ChangelogError, Kind
from envelope.position import Position

CHECKPOINT = b"changelog.checkpoint"
"""The footer metadata that holds the checkpoint, as JSON."""

SEQUENCE = b"changelog.sequence"
"""The footer metadata that holds the file's own sequence, as decimal text."""

CHECKSUM = b"changelog.crc32"
"""The footer metadata that holds the CRC-32 of the checkpoint's JSON, as decimal text: Parquet guards pages only."""

MARKED = "marked"
"""The member of a checkpoint's `sink` that lists the log files with rows of `schemas` or `gaps`: those who look for
these read no other. It is in the footer of the file that has such a row: no copy has the one without the other."""

MANIFEST_FORMAT = 1

_FILE = re.compile(r"(\d{20})\.parquet")
_MANIFEST = re.compile(r"(\d+)\.json")
_MANIFEST_CHECKSUM = b',"crc32":'
_REMOVE_RESUME = "remove it: what came after the newest log file is read again"
_DAY = re.compile(r"(?:^|/)day=([0-9-]+)/")


def log_folder(path: Path) -> Path:
    """The folder of the commits."""
    return path / "log"


def log_file(path: Path, sequence: int) -> Path:
    """The file of the commit `sequence`, counted from 1."""
    return log_folder(path) / f"{sequence:020d}.parquet"


def resume_file(path: Path) -> Path:
    """The file of the idle progress."""
    return path / "resume.json"


def sequence_of(file: Path) -> int | None:
    """The sequence that a file's name spells, None when it spells none."""
    match = _FILE.fullmatch(file.name)
    return int(match[1]) or None if match else None


def sequences(path: Path) -> list[int]:
    """The sequences in the log's folder, ascending; empty when there is no log."""
    try:
        found = [sequence_of(file) for file in log_folder(path).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(sequence for sequence in found if sequence is not None)


# What one commit is


def footer(sequence: int, checkpoint: Checkpoint) -> dict[bytes, bytes]:
    """The metadata that makes a Parquet file the commit `sequence`."""
    record = checkpoint.to_json()
    return {CHECKPOINT: record, CHECKSUM: b"%d" % zlib.crc32(record), SEQUENCE: b"%d" % sequence}


class NotWholeError(Exception):
    """A log file that is not whole, or not of this log: `reason` in a few words."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"log file {file} {reason}")
        self.file = file
        self.reason = reason

    def error(self, hint: str) -> ChangelogError:
        """The same as an error that stops."""
        return ChangelogError(Kind.MALFORMED, str(self), hint=hint)


def read_checkpoint_of(file: Path) -> Checkpoint:
    """The checkpoint in the footer of a log file; raises NotWholeError."""
    with opened(file) as parquet:
        return _checkpoint(file, parquet)


def verify(file: Path) -> Checkpoint:
    """The checkpoint of a log file, after every page of it was read and its checksum compared; raises NotWholeError."""
    with opened(file, page_checksum_verification=True) as parquet:
        checkpoint = _checkpoint(file, parquet)
        if not is_stored(parquet.schema_arrow):
            raise NotWholeError(file, "has other columns")
        for _ in parquet.iter_batches(use_threads=False):
            pass
    pa.default_memory_pool().release_unused()  # it keeps several times the largest row otherwise
    return checkpoint


def _checkpoint(file: Path, parquet: Any) -> Checkpoint:
    metadata = parquet.metadata.metadata or {}
    record = metadata.get(CHECKPOINT)
    if record is None:
        raise NotWholeError(file, "holds no recovery record")
    if metadata.get(CHECKSUM) != b"%d" % zlib.crc32(record):
        raise NotWholeError(file, "holds a damaged recovery record")
    if metadata.get(SEQUENCE) != str(sequence_of(file)).encode():
        raise NotWholeError(file, "belongs to another place in a log")
    checkpoint = Checkpoint.from_json(record)
    if checkpoint.position is None:
        raise NotWholeError(file, "holds no position")
    return checkpoint


@contextmanager
def opened(file: Path, **options: Any) -> Iterator[Any]:
    """The Parquet file; NotWholeError for what Arrow cannot read, a storage error for what the system cannot."""
    try:
        with pq.ParquetFile(file, **options) as parquet:
            yield parquet
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise NotWholeError(file, "is damaged") from error
    except OSError as error:
        if error.errno is None:  # Arrow's own word for pages that do not add up
            raise NotWholeError(file, "is damaged") from error
        raise ChangelogError(Kind.STORAGE, f"cannot read {file}: {os.strerror(error.errno)}") from error


# Where the log ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Where a log ends: the newest whole file's `sequence` (0 before the first) and the `checkpoint` to go on from.

    `marked` are the log files with rows of `schemas` or `gaps`, None where an older program wrote the checkpoint.
    `damage` is a newest file that counts for nothing; `ahead` says that `resume.json` speaks of a file that
    is not there, or not whole, and counts for nothing either.
    """

    sequence: int
    checkpoint: Checkpoint | None
    damage: NotWholeError | None
    ahead: bool
    marked: Sequence[int] | None = None


def find_recovery(path: Path) -> Recovery:
    """Where the log at `path` ends; changes nothing.

    Raises ChangelogError when files are missing inside the log, when more than the newest is damaged, when
    `resume.json` is of another log, and when a newer program wrote it.
    """
    present = sequences(path)
    damage = None
    checkpoint = None
    if present:
        try:
            checkpoint = verify(log_file(path, present[-1]))
        except NotWholeError as found:
            damage = found
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
    """The checkpoint as a log stores it."""
    return replace(checkpoint, sink={**checkpoint.sink, MARKED: marked})


def _parted(stored: Checkpoint | None) -> tuple[Checkpoint | None, Sequence[int] | None]:
    """A checkpoint as its source knows it, and the marked files that were stored with it."""
    if stored is None:
        return None, ()
    sink = {name: value for name, value in stored.sink.items() if name != MARKED}
    return replace(stored, sink=sink), stored.sink.get(MARKED)


def marked_sequences(path: Path, live: Sequence[int]) -> Set[int]:
    """Those of the log files that may hold versions of columns, or gaps; all, where an older program wrote the newest.

    A newest file that is not whole counts for nothing, here too.
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
    """Raises when a sequence is neither in the log nor in the archive."""
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
    which = f"{first}" if first == last else f"{first} to {last}"
    return ChangelogError(
        Kind.MALFORMED, f"the log in {path} lacks sequence {which}", hint="restore what is missing from a copy"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Progress without rows: `checkpoint` follows the log file `sequence` (0 before the first)."""

    sequence: int
    checkpoint: Checkpoint

    def to_json(self) -> bytes:
        """`{"sequence": …, "checkpoint": {…}, "crc32": …}`, the last of the sequence and the checkpoint's text."""
        record = self.checkpoint.to_json()
        crc32 = _resume_crc32(self.sequence, record)
        return msgspec.json.encode({"sequence": self.sequence, "checkpoint": msgspec.Raw(record), "crc32": crc32})


def _resume_crc32(sequence: int, record: bytes) -> int:
    return zlib.crc32(b"%d %b" % (sequence, record))


def _refuse_foreign(path: Path, resume: Resume, newest: Checkpoint | None) -> None:
    """Idle progress moves no position: a record with another one than its file was copied from elsewhere."""
    if newest is not None and resume.checkpoint.position != newest.position:
        raise ChangelogError(
            Kind.MALFORMED,
            f"{resume_file(path)} ends at {resume.checkpoint.position or 'no position'}, and the log file that it "
            f"names at {newest.position}: it is of another copy of the log",
            hint=_REMOVE_RESUME,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredResume:
    sequence: int
    checkpoint: msgspec.Raw
    crc32: int


def read_resume(path: Path) -> Resume | None:
    """What `resume.json` says, None when there is none; raises ChangelogError when it cannot be read."""
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
    """The highest epoch of any row that the log at `path` holds or held: 0 when there is none.

    What is damaged at its end says nothing: no reader took rows from it, and nothing is refused here.
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


# What was archived


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The log sequences that a manifest's files replace, both ends included; none when `last` is before `first`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One archive file: `path` below the manifest's root, the rows in it, the first and the last position as text.

    `offsets`, of a file that came from Kafka, are those it was read from: by partition the first, and the one behind
    the last.
    """

    path: str
    entity: str
    rows: int
    first: str
    last: str
    offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def day(self) -> str:
        """The day whose rows it holds, as its folder has it: `2026-11-21`."""
        found = _DAY.search(self.path)
        return found[1] if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What stands in the archive; the log goes on after `log.last`.

    `offsets`, of an archive that is filled from Kafka, say by topic and partition where the next run begins. `at` is
    when the manifest was made (ISO 8601, UTC), `writer` a word of that run's own.
    """

    format: int
    log: Replaced
    files: tuple[ArchiveFile, ...]
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    at: str = ""
    writer: str = ""

    def to_json(self) -> bytes:
        """One JSON object, whose last member is the CRC-32 of all before it: half of it is known for what it is."""
        text = msgspec.json.encode(self)[:-1]
        return b"%b%b%d}" % (text, _MANIFEST_CHECKSUM, zlib.crc32(text))


def manifest_number(name: str) -> int | None:
    """The number that a file's name in the folder `manifest` spells, None when it spells none."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


def parse_manifest(text: bytes, where: str) -> Manifest | None:
    """The manifest that a file (`where`) holds, None when it is not whole.

    Raises ChangelogError when a newer program wrote it.
    """
    body, mark, checksum = text.rpartition(_MANIFEST_CHECKSUM)
    if mark and checksum != b"%d}" % zlib.crc32(body):
        return None
    try:
        format_ = msgspec.json.decode(text, type=_Formatted).format
        if format_ > MANIFEST_FORMAT:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"manifest {where} has format {format_}; this program knows {MANIFEST_FORMAT}",
                hint="read it with the newer version that wrote it",
            )
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def newest_manifest(files: Mapping[int, str], read: Callable[[str], bytes]) -> Manifest | None:
    """The newest whole one of the manifests `files` (by number, where each is), None when there is none at all.

    One that is not whole was cut off while it was written, so nobody built on it. Raises ChangelogError when none is.
    """
    for number in sorted(files, reverse=True):
        found = parse_manifest(read(files[number]), files[number])
        if found is not None:
            return found
    if files:
        where = files[max(files)]
        raise ChangelogError(Kind.MALFORMED, f"manifest {where} cannot be read", hint="restore it from a copy")
    return None


def read_manifest(path: Path) -> Manifest | None:
    """The newest manifest, None when nothing is archived; raises ChangelogError when it cannot be read."""
    folder = path / "manifest"
    if not folder.is_dir():
        return None
    numbered = {number: str(file) for file in folder.iterdir() if (number := manifest_number(file.name)) is not None}
    return newest_manifest(numbered, lambda file: Path(file).read_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formatted:
    format: int
