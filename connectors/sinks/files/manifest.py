"""Reads the manifest of an archive. The manifest lists the archive's valid files, and the log files that they replace.

Manifests are numbered: a new manifest has a higher number, and replaces the manifest before it.
docs/reference/file-log.md describes the manifest for readers. Nothing in this module writes files.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from changelog.envelope.errors import ChangelogError, Kind

MANIFEST_FORMAT = 1

_MANIFEST = re.compile(r"(\d+)\.json")
_MANIFEST_CHECKSUM = b',"crc32":'
_DAY = re.compile(r"(?:^|/)day=([0-9-]+)/")
_FROM = re.compile(r"(?:^|/)from=([0-9-]+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """Which log files the archive's files replace: those with the sequences (numbers in names) `first` to `last`.

    The archive replaces no log file if `last` is less than `first`.
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One file of the archive.

    `path` is relative to the archive's root. `rows` is the number of rows. `first` and `last` are the lowest and the
    highest position, as text. If the rows were read from Kafka, `offsets` maps each partition to two offsets: that of
    the first message that was read, and the offset after the last one. A partition of a later topic of the entity (see
    `changelog repartition`) is written with its generation: `G2/5` is partition 5 of the second topic. `keys` are the
    lowest and the highest key, in the order of their UTF-8 bytes. (Python's strings have the same order.) Older
    versions of this program wrote manifests in which no file has `keys`.
    """

    path: str
    entity: str
    rows: int
    first: str
    last: str
    offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    keys: tuple[str, str] | None = None

    @property
    def day(self) -> str:
        """The day of the rows (`2026-11-21`), taken from the name of the file's folder; empty if the name has no day.

        If the file belongs to a `level`, it has rows of several days, and this is the last of these days.
        """
        match = _DAY.search(self.path)
        return match[1] if match else ""

    @property
    def first_day(self) -> str:
        """The first day of the rows, taken from the file's path. It differs from `day` only in files of a level."""
        match = _FROM.search(self.path)
        return match[1] if match else self.day

    @property
    def level(self) -> str:
        """The name of the level to which the file belongs; empty if the file has the rows of one day.

        A level is a set of files that one run of the archiving job wrote, with rows of one entity and of several days.
        No two files of a level have the same key, unless one key has more rows than a file can have.
        """
        return self.path.rpartition("-")[0] if _FROM.search(self.path) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of the archive. The live log continues with the sequence after `log.last`.

    For an archive that is filled from Kafka, `offsets` maps topic and partition to the offset at which the next run of
    the archiving job begins. `complete` maps each entity to a position up to which the archive has all rows of the
    entity. `at` is when the manifest was made (ISO 8601, UTC). `writer` identifies the run that made the manifest.
    """

    format: int
    log: Replaced
    files: tuple[ArchiveFile, ...]
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    complete: Mapping[str, str] = field(default_factory=dict)
    at: str = ""
    writer: str = ""

    def to_json(self) -> bytes:
        """Returns one JSON object. Its last member, `crc32`, is the CRC-32 of everything before that member.

        With the CRC-32, a reader detects a file that was not written to its end.
        """
        text = msgspec.json.encode(self)[:-1]
        return b"%b%b%d}" % (text, _MANIFEST_CHECKSUM, zlib.crc32(text))


def manifest_number(name: str) -> int | None:
    """Returns the number in the name of a manifest file, None if the name is not that of a manifest."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


def parse_manifest(text: bytes, where: str) -> Manifest | None:
    """Parses the content of a manifest file; returns None if the content is not whole.

    `where` is what error texts call the file. Raises ChangelogError if a newer version of this program wrote the
    manifest.
    """
    body, mark, checksum = text.rpartition(_MANIFEST_CHECKSUM)
    if mark and checksum != b"%d}" % zlib.crc32(body):
        return None
    try:
        format_ = msgspec.json.decode(text, type=_Formatted).format
        if format_ > MANIFEST_FORMAT:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"manifest {where} has format {format_}; this program knows only formats up to {MANIFEST_FORMAT}",
                hint="read it with the newer version that wrote it",
            )
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def newest_manifest(files: Mapping[int, str], read: Callable[[str], bytes]) -> Manifest | None:
    """Returns the newest whole manifest among `files`, which maps numbers to paths; None if there are no files.

    Skips a manifest that is not whole: its writer was interrupted, so nothing depends on that manifest. Raises
    ChangelogError if no manifest is whole.
    """
    for number in sorted(files, reverse=True):
        manifest = parse_manifest(read(files[number]), files[number])
        if manifest is not None:
            return manifest
    if files:
        where = files[max(files)]
        raise ChangelogError(Kind.MALFORMED, f"manifest {where} cannot be read", hint="restore it from a copy")
    return None


def read_manifest(path: Path) -> Manifest | None:
    """Returns the newest manifest of the archive at `path`, None if nothing is archived.

    Raises ChangelogError if no manifest can be read.
    """
    folder = path / "manifest"
    if not folder.is_dir():
        return None
    numbered = {number: str(file) for file in folder.iterdir() if (number := manifest_number(file.name)) is not None}
    return newest_manifest(numbered, lambda file: Path(file).read_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formatted:
    format: int
