"""The drifted keys of runs, `keys.jsonl`, merged in order: what is in memory at once does not grow with them."""

import heapq
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import msgspec

from envelope.errors import ChangelogError, Kind

EntityKey = tuple[str, str]
"""An entity and the canonical text of a key."""

BYTES_MAX = 1 << 30
"""How much of the runs' files is read, the newest first."""

CHUNK_KEYS = 200_000
"""How many keys of a file that is not sorted are sorted at once."""


class _Line(msgspec.Struct):
    """What is asked of a line; its other keys are not read."""

    entity: str
    key: str


_DECODER = msgspec.json.Decoder(_Line)
_SPILL = msgspec.json.Decoder(EntityKey)


def merged(files: Sequence[Path]) -> Iterator[tuple[EntityKey, int]]:
    """Each key of any file, in order, with the files that have it as bits: bit 0 is the first.

    Raises ChangelogError (MALFORMED) for a line that is none, with its file and number.
    """
    sources = [_marked(_sorted(file), 1 << index) for index, file in enumerate(files)]
    for key, group in groupby(heapq.merge(*sources), key=itemgetter(0)):
        bits = 0
        for _, bit in group:
            bits |= bit
        yield key, bits


def affordable(files: Sequence[Path]) -> int:
    """The first of these files, oldest first, from which on all can be read: older ones are too much.

    The newest always can.
    """
    total = 0
    for index in range(len(files) - 1, -1, -1):
        total += files[index].stat().st_size
        if total > BYTES_MAX:
            return min(index + 1, len(files) - 1)
    return 0


def read(file: Path) -> Iterator[EntityKey]:
    """The keys of one file as they stand there."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                parsed = _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                message = f"{file}: line {number} names no drifted key"
                hint = "restore the file, or move its folder away"
                raise ChangelogError(Kind.MALFORMED, message, hint=hint) from error
            yield parsed.entity, parsed.key


def _marked(keys: Iterator[EntityKey], bit: int) -> Iterator[tuple[EntityKey, int]]:
    for key in keys:
        yield key, bit


def _sorted(file: Path) -> Iterator[EntityKey]:
    """The file's keys in order: as they stand, or by way of chunks that are sorted and laid down."""
    if _in_order(file):
        return read(file)
    keys, chunks = read(file), []
    while chunk := sorted(islice(keys, CHUNK_KEYS)):
        spill = tempfile.TemporaryFile()  # noqa: SIM115, it has no name, and is gone when it is read
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
