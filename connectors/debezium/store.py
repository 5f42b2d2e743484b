"""Stores what a connector needs to continue: the offset of each partition of its source, and the schema history."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from changelog.connectors.locking import take_lock
from changelog.connectors.permissions import DATA_FILE, DATA_FOLDER, make_file, make_folder
from changelog.envelope.errors import ChangelogError, Kind

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The content of a store: partitions with their offsets, as JSON; the records of the schema history, in order."""

    offsets: Mapping[bytes, bytes]
    history: Sequence[bytes]


class Store(Protocol):
    """Stores the progress of a `DebeziumEngine`. An application may have its own store, for example in a database."""

    def open(self) -> Progress:
        """Claims the store for this process, and returns its content."""

    def commit(self, offsets: Mapping[bytes, bytes], history: Sequence[bytes]) -> None:
        """Replaces the offsets of these partitions, and appends to the history. When this returns, both are durable."""

    def close(self) -> None:
        """Releases the store."""


class _Offset(msgspec.Struct, frozen=True):
    partition: msgspec.Raw
    offset: msgspec.Raw


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    history_bytes: int
    offsets: list[_Offset]


class FileStore:
    """Keeps the progress in a folder, which only one engine may use at a time.

    `history.jsonl` has a line for each record of the schema history; new lines are added at its end. `offsets.json` is
    replaced at each commit, by a rename. It also says how many bytes of the history are valid. If a crash left more
    bytes there, the next start cuts them off. Raises ChangelogError: IN_USE if another process or engine uses the
    folder, STORAGE if the folder cannot be read or written, MALFORMED if its files are damaged or not ours.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock: int | None = None
        self._history: int | None = None
        self._history_bytes = 0
        self._offsets: dict[bytes, bytes] = {}

    def open(self) -> Progress:
        """Takes the lock, and reads what is stored."""
        try:
            make_folder(self.folder, DATA_FOLDER)
            self._take_lock()
            content = self._read()
            make_file(self.folder / "history.jsonl", DATA_FILE)
            self._history = os.open(self.folder / "history.jsonl", os.O_RDWR | os.O_CLOEXEC)
            history = self._read_history(content.history_bytes)
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except ChangelogError:
            self.close()
            raise
        self._offsets = {bytes(pair.partition): bytes(pair.offset) for pair in content.offsets}
        self._history_bytes = content.history_bytes
        return Progress(offsets=dict(self._offsets), history=history)

    def commit(self, offsets: Mapping[bytes, bytes], history: Sequence[bytes]) -> None:
        """Adds lines to `history.jsonl`, and then replaces `offsets.json`. Only this second step makes them count."""
        try:
            if history:
                self._append(b"".join(record + b"\n" for record in history))
            self._offsets.update(offsets)
            self._write()
        except OSError as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        """Releases the lock. The store can be opened again."""
        for descriptor in (self._history, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._history = self._lock = None

    def _take_lock(self) -> None:
        if self._lock is not None:
            raise self._in_use("this process")
        self._lock = take_lock(self.folder / "lock", self._in_use)

    def _read(self) -> _Content:
        try:
            text = (self.folder / "offsets.json").read_bytes()
        except FileNotFoundError:
            return _Content(format=FORMAT, history_bytes=0, offsets=[])
        try:
            content = msgspec.json.decode(text, type=_Content)
        except msgspec.MsgspecError as error:
            raise self._malformed("offsets.json is damaged, or another program wrote it") from error
        if content.format != FORMAT:
            raise self._malformed(f"offsets.json has format {content.format}, and this program knows {FORMAT}")
        return content

    def _read_history(self, size: int) -> Sequence[bytes]:
        """Returns the records within the valid length, and cuts off what a crash left after them."""
        assert self._history is not None
        if os.fstat(self._history).st_size < size:
            raise self._malformed(f"history.jsonl is shorter than {size} bytes")
        os.ftruncate(self._history, size)
        with open(self._history, "rb", closefd=False) as stream:
            text = stream.read()
        if text and not text.endswith(b"\n"):
            raise self._malformed(f"history.jsonl is damaged: no line ends at byte {size}")
        return text.splitlines()

    def _append(self, lines: bytes) -> None:
        assert self._history is not None
        nbytes = 0
        while nbytes < len(lines):
            nbytes += os.pwrite(self._history, lines[nbytes:], self._history_bytes + nbytes)
        os.fsync(self._history)
        self._history_bytes += len(lines)

    def _write(self) -> None:
        pairs = [_Offset(msgspec.Raw(key), msgspec.Raw(offset)) for key, offset in self._offsets.items()]
        content = _Content(format=FORMAT, history_bytes=self._history_bytes, offsets=pairs)
        new = self.folder / "offsets.json.new"
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        make_file(new, DATA_FILE)
        with new.open("r+b") as stream:
            stream.write(msgspec.json.encode(content))
            stream.flush()
            os.fsync(stream.fileno())
        new.rename(self.folder / "offsets.json")
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _in_use(self, holder: str) -> ChangelogError:
        return ChangelogError(
            Kind.IN_USE,
            f"the folder {self.folder} is used by {holder}",
            hint="stop it, or give this engine another folder",
        )

    def _unusable(self, error: OSError) -> ChangelogError:
        return ChangelogError(Kind.STORAGE, f"{error.filename or self.folder}: {error.strerror}")

    def _malformed(self, what: str) -> ChangelogError:
        return ChangelogError(
            Kind.MALFORMED,
            f"{self.folder}: {what}",
            hint="restore the folder, or start the connector anew with an empty folder",
        )
