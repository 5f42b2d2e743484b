"""The manifest: which files make up an archive, and how a change of them is committed (docs/how-to/archive.md).

A store is one folder that Spark can reach. Readers take the files that the newest whole manifest lists, and no others.
A commit makes the manifest of the next number, which no other run may have made: nothing is replaced.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from connectors.sinks.files.fsync import make_folder, sync
from connectors.sinks.files.layout import (
    MANIFEST_FORMAT,
    ArchiveFile,
    Manifest,
    Replaced,
    manifest_number,
    newest_manifest,
    parse_manifest,
)
from envelope.errors import ChangelogError, Kind
from spark_jobs.runner import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchiveFile", "Manifest", "Replaced"]  # and all that is defined here

FOLDER = "manifest"
ARCHIVE = "archive"

TRIES = 20
"""How often a commit gives way to others."""

NOTHING = Manifest(format=MANIFEST_FORMAT, log=Replaced(first=1, last=0), files=())
"""The manifest of a store that has none yet."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_CONDITIONAL = "fs.option.create.conditional.overwrite"
_BESIDE = ".changelog-"
_RENAMING = ("hdfs", "webhdfs", "viewfs", "abfs", "abfss")
"""Where a rename is one step, and replaces nothing; a file that is being created is there before its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a store: `path` below its root, and when it was last written, in seconds since 1970."""

    path: str
    modified_s: float


class Store(Protocol):
    """A folder; every `path` is below its root, with slashes."""

    @property
    def root(self) -> str:
        """The folder, as Spark takes it."""

    def files(self, folder: str) -> Iterator[StoredFile]:
        """All files below a folder, hidden ones too, in no order; none when it is not there."""

    def read(self, path: str) -> bytes:
        """A file's content."""

    def create(self, path: str, content: bytes) -> bool:
        """Makes a durable file, unless one of that name is there: then False."""

    def move(self, source: str, target: str) -> None:
        """Gives a file another place, at which nothing is; durable."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with all in it; what is not there is no error."""


def newest(store: Store) -> Manifest | None:
    """The newest whole manifest, None when the store has none; raises ChangelogError when it cannot be read."""
    return newest_manifest(numbers(store), store.read)


def read(store: Store, path: str) -> Manifest | None:
    """The manifest at a path, None when it is not whole."""
    return parse_manifest(store.read(path), path)


def numbers(store: Store) -> dict[int, str]:
    """The manifests that are there, whole or not: by number, where each is."""
    numbered = ((number_of(file.path), file.path) for file in store.files(FOLDER))
    return {number: path for number, path in numbered if number is not None}


def number_of(path: str) -> int | None:
    """The number of the manifest that a path is of, None when it is of none."""
    return manifest_number(path.removeprefix(f"{FOLDER}/"))


def path_of(number: int) -> str:
    """Where the manifest of a number is."""
    return f"{FOLDER}/{number}.json"


def commit(store: Store, change: Callable[[Manifest], Manifest], *, at: datetime) -> Manifest:
    """Commits what `change` makes of the newest manifest, and gives it.

    1. The newest whole manifest is read, and changed.
    2. The next number is created, if nobody did so meanwhile: else all begins anew, on what the other one made.
    3. It is read back, for stores that can only try to refuse the second of two writers.

    So `change` is called once or more, and has to look whether what it was made for still holds. Raises
    ChangelogError, IN_USE, when another run overwrote what this one created.
    """
    writer = secrets.token_hex(8)
    for _ in range(TRIES):
        present = numbers(store)
        before = newest_manifest(present, store.read) or NOTHING
        after = replace(change(before), at=at.astimezone(UTC).isoformat(), writer=writer)  # 1
        path = path_of(max(present, default=0) + 1)
        if not store.create(path, after.to_json()):  # 2
            continue
        stored = read(store, path)  # 3
        if stored is not None and stored.writer == writer:
            return after
        break
    raise ChangelogError(
        Kind.IN_USE, f"another run writes manifests in {store.root} at the same time", hint="let one run at a time"
    )


class Record(Protocol):
    """What a store's numbered records hold, where they are not manifests of an archive: a dataclass for msgspec."""

    @property
    def format(self) -> int:
        """Which members there are, and what they mean."""


RecordT = TypeVar("RecordT", bound=Record)


def newest_record(store: Store, kind: type[RecordT], format_: int) -> RecordT | None:
    """The newest whole record; None where none is whole. Raises ChangelogError (PRECONDITION) for a newer format."""
    present = numbers(store)
    for number in sorted(present, reverse=True):
        try:
            record = msgspec.json.decode(store.read(present[number]), type=kind)
        except msgspec.DecodeError:
            continue  # its writer was killed where a store shows half of a file
        if record.format > format_:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"{store.root}/{present[number]} has format {record.format}; this program knows {format_}",
                hint="use the newer version that wrote it",
            )
        return record
    return None


def add_record(store: Store, number: int, record: Record) -> None:
    """Creates the record of a number. Raises ChangelogError, IN_USE, when another run did so before."""
    if not store.create(path_of(number), msgspec.json.encode(record)):
        raise outrun(store)


def outrun(store: Store) -> ChangelogError:
    """What is said when another run was first."""
    return ChangelogError(Kind.IN_USE, f"another run wrote to {store.root} meanwhile", hint="let one run at a time")


def run_name(at: datetime) -> str:
    """A name that no other run gives; names sort as the runs began."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def is_local(where: str | Path) -> bool:
    """Whether a path or URI is of this machine: `file:`, or without a scheme."""
    scheme = None if isinstance(where, Path) else _SCHEME.match(where)
    return scheme is None or scheme[1] == "file"


def store_of(where: str | Path, spark: "SparkSession | None" = None) -> Store:
    """The store at a path or URI. Others than those of this machine need the session."""
    if isinstance(where, Path):
        return local(where)
    if is_local(where):
        return local(Path(re.sub("^file:(//)?", "", where)))
    if spark is None:
        raise ChangelogError(Kind.USAGE, f"{where} can be looked at only in a Spark session")
    return hadoop(spark, where)


def local(folder: Path) -> Store:
    """The store in a folder of this machine."""
    return _LocalStore(folder.absolute())


def hadoop(spark: "SparkSession", root: str) -> Store:
    """The store at a URI of any file system that Spark has."""
    return _HadoopStore(spark, root.rstrip("/"))


# On this machine


@dataclass(frozen=True, slots=True)
class _LocalStore:
    """Creation is `link(2)`, which replaces nothing and shows a file only whole."""

    _folder: Path

    @property
    def root(self) -> str:
        return f"file:{self._folder}"

    def files(self, folder: str) -> Iterator[StoredFile]:
        for parent, _, names in os.walk(self._folder / folder):
            for name in names:
                file = Path(parent) / name
                try:
                    modified_s = file.stat().st_mtime
                except FileNotFoundError:
                    continue  # deleted meanwhile
                yield StoredFile(path=file.relative_to(self._folder).as_posix(), modified_s=modified_s)

    def read(self, path: str) -> bytes:
        with _storing(self._folder / path):
            return (self._folder / path).read_bytes()

    def create(self, path: str, content: bytes) -> bool:
        file = self._folder / path
        beside = file.with_name(f"{_BESIDE}{secrets.token_hex(8)}")
        with _storing(file):
            make_folder(file.parent)
            try:
                with beside.open("wb") as out:
                    out.write(content)
                    out.flush()
                    os.fsync(out.fileno())
                os.link(beside, file)
            except FileExistsError:
                return False
            finally:
                beside.unlink(missing_ok=True)
            sync(file.parent)
        return True

    def move(self, source: str, target: str) -> None:
        before, after = self._folder / source, self._folder / target
        with _storing(after):
            make_folder(after.parent)
            sync(before)  # Spark leaves this to the system
            before.rename(after)
            sync(after.parent)

    def delete(self, path: str) -> None:
        target = self._folder / path
        with _storing(target):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)


@contextmanager
def _storing(file: Path) -> Iterator[None]:
    """Makes one clear line of what the system refuses."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ChangelogError(Kind.STORAGE, f"{file}: {reason}") from error


# Anywhere else


class _HadoopStore:
    """Through Hadoop's FileSystem, by what each store has for creating without replacing."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self.root = root
        self._jvm: Any = spark._jvm
        configuration = spark._jsc.hadoopConfiguration()
        with _java(root):
            self._fs = self._path("").getFileSystem(configuration)

    def files(self, folder: str) -> Iterator[StoredFile]:
        base = self._path(folder)
        with _java(self.root):
            if not self._fs.exists(base):
                return
            top = len(self._fs.makeQualified(self._path("")).toString().rstrip("/")) + 1
            listed = self._fs.listFiles(base, True)
            while listed.hasNext():
                status = listed.next()
                yield StoredFile(path=status.getPath().toString()[top:], modified_s=status.getModificationTime() / 1000)

    def read(self, path: str) -> bytes:
        with _java(f"{self.root}/{path}"):
            stream = self._fs.open(self._path(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def create(self, path: str, content: bytes) -> bool:
        target = self._path(path)
        with _java(f"{self.root}/{path}"):
            if self._fs.getUri().getScheme() in _RENAMING:
                return self._put(target, content)
            try:
                stream = self._created(target)
                stream.write(content)
                stream.close()
            except Exception as error:
                if self._fs.exists(target) and _is_refusal(error):
                    return False
                raise
        return True

    def _put(self, target: Any, content: bytes) -> bool:
        """Written beside, then renamed: whoever looks meanwhile never sees half of it, as of a run that was killed."""
        beside = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f"{_BESIDE}{secrets.token_hex(8)}")
        with ExitStack() as undo:
            undo.callback(self._drop, beside)
            with closing(self._fs.create(beside, False)) as stream:
                stream.write(content)
            if self._fs.rename(beside, target):
                undo.pop_all()  # it is in its place, whatever comes
                return True
        if self._fs.exists(target):
            return False
        raise ChangelogError(Kind.STORAGE, f"{target.toString()}: cannot be moved there")

    def _drop(self, beside: Any) -> None:
        with suppress(Exception):  # what failed before it is what is told
            self._fs.delete(beside, False)

    def move(self, source: str, target: str) -> None:
        after = self._path(target)
        with _java(f"{self.root}/{target}"):
            self._fs.mkdirs(after.getParent())
            if not self._fs.rename(self._path(source), after):
                raise ChangelogError(Kind.STORAGE, f"{self.root}/{target}: cannot be moved there")

    def delete(self, path: str) -> None:
        with _java(f"{self.root}/{path}"):
            self._fs.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)

    def _created(self, target: Any) -> Any:
        """A stream into a new file: refused at the end where the store can say so, else at the start."""
        if self._fs.hasPathCapability(target, _CONDITIONAL):
            return self._fs.createFile(target).create().overwrite(True).must(_CONDITIONAL, True).build()
        return self._fs.create(target, False)


@contextmanager
def _java(where: str) -> Iterator[None]:
    """Makes one clear line of what Hadoop refuses."""
    try:
        yield
    except Exception as error:
        java = getattr(error, "java_exception", None)
        if java is None:
            raise
        first = str(java.toString()).partition("\n")[0]
        raise spark_errors.known(str(error), where) or ChangelogError(Kind.STORAGE, f"{where}: {first}") from error


_REFUSALS = ("FileAlreadyExists", "AlreadyBeingCreated", "RemoteFileChanged", "PreconditionFailed", "412")


def _is_refusal(error: BaseException) -> bool:
    """Whether a store says that the file is there already."""
    java = getattr(error, "java_exception", None)
    return java is not None and any(word in str(java.toString()) for word in _REFUSALS)
