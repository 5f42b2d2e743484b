"""Keeps the store of current rows in RocksDB. Only this module imports `rocksdict`, RocksDB's optional binding.

Rows and facts are in the same column family and are written in the same batches. So even if a crash loses the last
batches, the facts say exactly which rows the store has.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import msgspec
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from changelog.connectors.locking import take_lock
from changelog.connectors.permissions import DATA_FILE, DATA_FOLDER, make_file, make_folder
from changelog.connectors.state.changes import Changes
from changelog.envelope.errors import ChangelogError, Kind

FORMAT: Final = 1
"""The format of the rows and facts. A store of another format is made again."""

CACHE_BYTES: Final = 64 << 20
"""How much memory RocksDB takes for blocks that it has read."""

BUFFER_BYTES: Final = 32 << 20
"""The size of a buffer in which RocksDB gathers rows before it writes a file. There are at most two such buffers."""

_FACT = b"\0"
_AFTER_FACTS = b"\1"


class _Marker(msgspec.Struct, kw_only=True):
    """The content of `changelog.json`: the changelog to which the folder belongs."""

    format: int
    name: str
    changelog: str


class RocksStore:
    """The store in the folder `path`, for the changelog of the service `name`. Implements `StateStore`.

    `changelog` says where the changelog is, such as `files /var/lib/changelog`. The folder is locked while the store is
    open. Raises ChangelogError: IN_USE if another process has the folder open, PRECONDITION if the folder belongs to
    another changelog or has other files, STORAGE if the folder cannot be used.
    """

    def __init__(self, path: Path, *, name: str, changelog: str) -> None:
        self._path = path
        self._lock: int | None = None
        self._db: Rdict | None = None
        self._unflushed = False
        with self._storing():
            is_new = not path.exists()
            try:
                make_folder(path, DATA_FOLDER)
            except FileExistsError as error:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
            self._lock = take_lock(path / "lock", self._in_use)
            try:
                self._claim(name, changelog, is_new=is_new)
                self._db = Rdict(os.fspath(path / "rocksdb"), _options())
            except BaseException:
                self.close()
                raise

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `StateStore`."""
        with self._storing():
            return cast(list[bytes | None], self._opened().get(list(keys)))

    def write(self, changes: Changes, *, bulk: bool = False) -> None:
        """See `StateStore`. Without `bulk`, the changes survive a crash of the process. A crash of the machine may lose
        the last changes; then the store catches up from the changelog.
        """
        batch = WriteBatch(raw_mode=True)
        for entity in changes.forgotten:
            batch.delete_range(entity.encode() + b"\0", entity.encode() + b"\1")
        for key, value in changes.rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        for name, fact in changes.facts.items():
            batch.put(_FACT + name.encode(), fact)
        options = WriteOptions()
        options.disable_wal = bulk  # type: ignore[method-assign, assignment] # the stub calls this property a method
        with self._storing():
            if self._unflushed and not bulk:
                self._opened().flush()  # without this, a crash could lose the rows but not the facts about them
                self._unflushed = False
            self._opened().write(batch, options)
            self._unflushed |= bulk

    def facts(self) -> dict[str, bytes]:
        """See `StateStore`."""
        facts = {}
        with self._storing():
            for key, value in self._items(_FACT):
                if key >= _AFTER_FACTS:
                    break
                facts[key[len(_FACT) :].decode()] = value
        return facts

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `StateStore`."""
        with self._storing():
            yield from self._items(_AFTER_FACTS)

    def clear(self) -> None:
        """See `StateStore`."""
        with self._storing():
            self._opened().close()
            self._db = None
            shutil.rmtree(self._path / "rocksdb")
            self._db = Rdict(os.fspath(self._path / "rocksdb"), _options())
            self._unflushed = False

    def nbytes(self) -> int:
        """See `StateStore`. Counts the bytes on disk and in RocksDB's buffers."""
        database = self._opened()
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(database.property_int_value(name) or 0 for name in names)

    def close(self) -> None:
        """See `StateStore`."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _items(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        return cast(Iterator[tuple[bytes, bytes]], self._opened().items(from_key=first))

    def _opened(self) -> Rdict:
        if self._db is None:
            raise ChangelogError(Kind.STORAGE, f"the state in {self._path} is not open", hint="start the service again")
        return self._db

    def _claim(self, name: str, changelog: str, *, is_new: bool) -> None:
        """Checks that the folder belongs to this changelog, and deletes a store of another format."""
        file = self._path / "changelog.json"
        present = _Marker(format=FORMAT, name=name, changelog=changelog)
        if file.exists():
            marker = self._read_marker(file)
            if (marker.name, marker.changelog) != (name, changelog):
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"the folder {self._path} has the state of another changelog: {marker.name} in {marker.changelog}",
                    hint="set another [state] path; or delete the folder, and the state is made again",
                )
            if marker.format == FORMAT:
                return
        elif not is_new and any(entry.name != "lock" for entry in self._path.iterdir()):
            raise ChangelogError(
                Kind.PRECONDITION,
                f"the folder {self._path} has files that are not a state",
                hint="set [state] path to a folder that is empty or does not exist yet",
            )
        shutil.rmtree(self._path / "rocksdb", ignore_errors=True)
        temporary = file.with_suffix(".new")
        make_file(temporary, DATA_FILE)
        temporary.write_bytes(msgspec.json.encode(present))
        temporary.replace(file)

    def _read_marker(self, file: Path) -> _Marker:
        try:
            return msgspec.json.decode(file.read_bytes(), type=_Marker)
        except msgspec.DecodeError as error:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"the file {file} cannot be read",
                hint="delete the folder, and the state is made again",
            ) from error

    def _in_use(self, holder: str) -> ChangelogError:
        return ChangelogError(
            Kind.IN_USE,
            f"the state in {self._path} is used by {holder}",
            hint="stop that service, or give this one another [state] path",
        )

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Translates errors of RocksDB and of the operating system to a ChangelogError (STORAGE) of one line."""
        try:
            yield
        except ChangelogError:
            raise
        except OSError as error:
            reason = error.strerror or str(error)
            raise _failed(self._path, reason) from error
        except Exception as error:  # the binding has no class for its errors
            if type(error) is not Exception:
                raise
            raise _failed(self._path, " ".join(str(error).split())) from error


def _failed(path: Path, reason: str) -> ChangelogError:
    return ChangelogError(
        Kind.STORAGE,
        f"cannot keep the state in {path}: {reason}",
        hint="remove the cause, or delete the folder, then start again: nothing is lost, and the state is made again",
    )


def _options() -> Options:
    """Returns options that suit our use of RocksDB: lookups of single rows that have some hundred bytes, in little
    memory.
    """
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(CACHE_BYTES))
    blocks.set_bloom_filter(10, block_based=False)  # most keys of inserts are not in the store
    blocks.set_cache_index_and_filter_blocks(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(BUFFER_BYTES)
    options.set_memtable_prefix_bloom_ratio(0.1)  # most old rows are not in the buffers
    options.set_memtable_whole_key_filtering(True)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    return options
