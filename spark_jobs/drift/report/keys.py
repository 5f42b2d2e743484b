"""Merges the files of drifted keys (`keys.jsonl`) of several runs, sorted, in a bounded amount of memory."""

import heapq
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import msgspec

from changelog.envelope.errors import ChangelogError, Kind

EntityKey = tuple[str, str]
"""An entity and the canonical text of a key."""

BYTES_MAX = 1 << 30
"""The most bytes that the files of drifted keys may have together. If they have more, the oldest files are not read."""

CHUNK_KEYS = 200_000
"""The most keys that are sorted in memory at once. A larger file that is not sorted is sorted in several chunks."""


class _Line(msgspec.Struct):
    """Those members of a line that are used here."""

    entity: str
    key: str


_DECODER = msgspec.json.Decoder(_Line)
_SPILL = msgspec.json.Decoder(EntityKey)


def merged(files: Sequence[Path]) -> Iterator[tuple[EntityKey, int]]:
    """Yields all keys of the files, sorted. Each key comes with a number, whose bits say which files have the key; bit
    0 stands for the first file.

    Raises ChangelogError (MALFORMED) if a line is not a key; the error names the file and the number of the line.
    """
    sources = [_marked(_sorted(file), 1 << index) for index, file in enumerate(files)]
    for key, group in groupby(heapq.merge(*sources), key=itemgetter(0)):
        bits = 0
        for _, bit in group:
            bits |= bit
        yield key, bits


def affordable(files: Sequence[Path]) -> int:
    """Returns the index of the oldest file to read. `files` are sorted, the oldest first.

    This file and all newer files together have at most `BYTES_MAX` bytes. The newest file is always read.
    """
    total = 0
    for index in range(len(files) - 1, -1, -1):
        total += files[index].stat().st_size
        if total > BYTES_MAX:
            return min(index + 1, len(files) - 1)
    return 0


def read(file: Path) -> Iterator[EntityKey]:
    """Yields the keys of one file, in the file's order."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                parsed = _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                message = f"{file}: line {number} is not a drifted key"
                hint = "restore the file, or move its folder away"
                raise ChangelogError(Kind.MALFORMED, message, hint=hint) from error
            yield parsed.entity, parsed.key


def _marked(keys: Iterator[EntityKey], bit: int) -> Iterator[tuple[EntityKey, int]]:
    for key in keys:
        yield key, bit


def _sorted(file: Path) -> Iterator[EntityKey]:
    """Yields the keys of a file, sorted. If the file is not sorted itself, it is sorted in chunks, by way of temporary
    files.
    """
    if _in_order(file):
        return read(file)
    keys, chunks = read(file), []
    while chunk := sorted(islice(keys, CHUNK_KEYS)):
        spill = tempfile.TemporaryFile()  # noqa: SIM115 - `_spilled` closes it
        spill.writelines(msgspec.json.encode(key) + b"\n" for key in chunk)
        chunks.append(spill)
    return heapq.merge(*map(_spilled, chunks))


def _in_order(file: Path) -> bool:
    last: EntityKey = ("", "")
    for key in read(file):
        if key < last:
            return False
        last = key
    return True


def _spilled(spill: BinaryIO) -> Iterator[EntityKey]:
    with spill:
        spill.seek(0)
        for line in spill:
            yield _SPILL.decode(line)
