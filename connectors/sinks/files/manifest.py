"""The manifest of an archive: the files that are valid, and the log files that they replace.

docs/reference/file-log.md describes it for readers. Nothing here writes.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The log sequences that a manifest's files replace, both ends included; none if `last` is less than `first`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One archive file: `path` below the manifest's root, its number of rows, its first and last position as text.

    For a file that came from Kafka, `offsets` has by partition the first offset that it was read from, and the offset
    after the last.
    """

    path: str
    entity: str
    rows: int
    first: str
    last: str
    offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def day(self) -> str:
        """The day of its rows, from the name of its folder: `2026-11-21`."""
        match = _DAY.search(self.path)
        return match[1] if match else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of the archive; the log continues after `log.last`.

    For an archive that is filled from Kafka, `offsets` has by topic and partition where the next run begins. `at` is
    when the manifest was made (ISO 8601, UTC), `writer` identifies the run that made it.
    """

    format: int
    log: Replaced
    files: tuple[ArchiveFile, ...]
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    at: str = ""
    writer: str = ""

    def to_json(self) -> bytes:
        """One JSON object, whose last member is the CRC-32 of everything before it, so a partial file is detected."""
        text = msgspec.json.encode(self)[:-1]
        return b"%b%b%d}" % (text, _MANIFEST_CHECKSUM, zlib.crc32(text))


def manifest_number(name: str) -> int | None:
    """The number in the name of a file in the folder `manifest`, None if it is not a manifest."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


def parse_manifest(text: bytes, where: str) -> Manifest | None:
    """Parses the manifest from the file `where`; None if it is not whole.

    Raises ChangelogError if a newer version wrote it.
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
    """The newest whole manifest among `files`, which maps numbers to paths; None if there are no files.

    A manifest that is not whole was interrupted while it was written, so nothing depends on it. Raises ChangelogError
    if none is whole.
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
    """The newest manifest, None if nothing is archived. Raises ChangelogError if it cannot be read."""
    folder = path / "manifest"
    if not folder.is_dir():
        return None
    numbered = {number: str(file) for file in folder.iterdir() if (number := manifest_number(file.name)) is not None}
    return newest_manifest(numbered, lambda file: Path(file).read_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formatted:
    format: int
