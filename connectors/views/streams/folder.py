"""Claims the folder in which Kafka Streams keeps its stores, and deletes stores that could have wrong rows.

Kafka Streams continues a store from the offset in the store's checkpoint. In two cases, that gives wrong rows, and
Kafka Streams does not notice. So such stores are deleted, and restored from the topics:

- The topic was deleted and created again, or was not followed for a while. Then the offset means nothing.
- The offset is so old that tombstones after it may have been removed. Then a key that was deleted since may have no
  message any more.

The times of checkpoints do not say how old their offsets are, because Kafka Streams sometimes writes the same offsets
again. So the folder stores a time: the stores have all messages before this time.
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from changelog.connectors.locking import take_lock
from changelog.connectors.permissions import DATA_FILE, DATA_FOLDER, make_file, make_folder
from changelog.envelope.errors import ChangelogError, Kind

_MARKER, _NEW_MARKER, _LOCK, _STORES = "changelog.json", "changelog.new", "lock", "stores"
_LIBRARIES = "libraries"

_MARGIN = 2.0
"""A store may be as old as the time for which topics keep tombstones, divided by this number. The margin is needed
because a restoration takes time, and clocks differ.
"""

_DAY_S = 86_400

_log = structlog.get_logger("views")


class _Marker(msgspec.Struct, kw_only=True):
    """The content of `changelog.json`: the application and the cluster to which the folder belongs, and the ids of the
    stores' topics, by the topics' names.

    Each store has all messages before `complete_at_s` (in seconds since 1970), or was created after that time.
    """

    format: int = 1
    application: str
    cluster: str
    topics: dict[str, str]
    complete_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """An application of Kafka Streams in a cluster, and the ids of its topics by name. `tombstones_s` is the shortest
    time, in seconds, for which a topic keeps a tombstone.
    """

    application: str
    cluster: str
    topics: Mapping[str, str]
    tombstones_s: float


class Claim:
    """A claimed folder: `stores` is inside it, and so is `libraries`, for a library that RocksDB unpacks. `topics` are
    the names of the topics, in the order in which they were first served.
    """

    def __init__(self, path: Path, marker: _Marker) -> None:
        self.stores, self.libraries, self.topics = path / _STORES, path / _LIBRARIES, tuple(marker.topics)
        self._path, self._marker = path, marker
        self._unstored: tuple[float, float] | None = None

    def running(self, complete_at_s: float) -> None:
        """Notes that the running tables have all messages before a time.

        The stores on disk have these messages only after every checkpoint has been written again. So the time is stored
        only by a later call. Raises ChangelogError (STORAGE).
        """
        with _storing(self._path):
            if self._unstored is None:
                self._unstored = time.time(), complete_at_s
            elif _oldest_checkpoint_s(self.stores) > self._unstored[0]:
                self.stored(self._unstored[1])
                self._unstored = None

    def size(self) -> int:
        """Returns how many bytes the stores have on disk."""
        size = 0
        for file in self.stores.rglob("*"):
            with suppress(FileNotFoundError):  # RocksDB deletes files meanwhile
                size += file.stat().st_size if file.is_file() else 0
        return size

    def stored(self, complete_at_s: float) -> None:
        """Notes that the stores on disk have all messages before a time. Raises ChangelogError (STORAGE)."""
        with _storing(self._path):
            self._marker.complete_at_s = max(self._marker.complete_at_s, complete_at_s)
            _write(self._path / _MARKER, self._marker)


@contextmanager
def claimed(path: Path, owner: Owner) -> Iterator[Claim]:
    """Locks the folder `path` until the end of the block, and yields the folders for the stores inside it.

    Raises ChangelogError: IN_USE if another process has locked `path`, PRECONDITION if `path` belongs to another
    application or has other files, STORAGE if `path` cannot be used.
    """
    with _storing(path):
        make_folder(path, DATA_FOLDER)
        is_new = not {file.name for file in path.iterdir()} - {_LOCK, _NEW_MARKER, _LIBRARIES}
        lock = take_lock(path / _LOCK, lambda holder: _in_use(path, holder))
    try:
        with _storing(path):
            marker = _Marker(
                application=owner.application,
                cluster=owner.cluster,
                topics=dict(owner.topics),
                complete_at_s=time.time(),  # a new store is empty, so it needs no tombstone from before now
            )
            earlier = None if is_new else _read(path, owner)
            if earlier is not None:
                reason = _obsolete(earlier, owner)
                if reason is None:
                    marker.topics = {**earlier.topics, **marker.topics}
                    marker.complete_at_s = earlier.complete_at_s
                else:
                    _log.warning("stores are deleted and restored", reason=reason, folder=str(path))
                    with suppress(FileNotFoundError):  # any other error would keep a part of the stores
                        shutil.rmtree(path / _STORES)
            _write(path / _MARKER, marker)
            claim = Claim(path, marker)
            make_folder(claim.stores, DATA_FOLDER)
            make_folder(claim.libraries, DATA_FOLDER)
        yield claim
    finally:
        os.close(lock)


def _in_use(path: Path, holder: str) -> ChangelogError:
    return ChangelogError(
        Kind.IN_USE,
        f"the rows in {path} are served by {holder}",
        hint="stop it, or give this one another [serve.streams] path and application",
    )


def _read(path: Path, owner: Owner) -> _Marker:
    """Returns the marker of a folder. Raises ChangelogError (PRECONDITION) if it does not belong to this owner."""
    try:
        marker = msgspec.json.decode((path / _MARKER).read_bytes(), type=_Marker)
    except (FileNotFoundError, msgspec.DecodeError) as error:
        hint = "give [serve.streams] path a folder of its own; or delete this one, and the rows are restored"
        raise ChangelogError(Kind.PRECONDITION, f"the folder {path} does not hold served views", hint=hint) from error
    if (marker.application, marker.cluster) != (owner.application, owner.cluster):
        what = "cluster" if marker.application == owner.application else "application"
        theirs, ours = getattr(marker, what), getattr(owner, what)
        raise ChangelogError(
            Kind.PRECONDITION,
            f"the folder {path} has the rows of the {what} {theirs}, not of {ours}",
            hint="give [serve.streams] path another folder; or delete this one, and the rows are restored",
        )
    return marker


def _obsolete(marker: _Marker, owner: Owner) -> str | None:
    """Returns why the stores are deleted; None if they are not."""
    for name, id_ in marker.topics.items():
        if name not in owner.topics:
            return f"topic {name} is no longer served"
        if owner.topics[name] != id_:
            return f"topic {name} was deleted and created again"
    age_s = time.time() - marker.complete_at_s
    if age_s > owner.tombstones_s / _MARGIN:
        days, kept_days = age_s / _DAY_S, owner.tombstones_s / _DAY_S
        return f"their offsets are {days:.1f} days old, and the topics keep tombstones for {kept_days:.1f} days"
    return None


def _oldest_checkpoint_s(stores: Path) -> float:
    """Returns when the oldest checkpoint was written, in seconds since 1970; 0 if a store has none yet.

    The tasks of tables in memory have empty folders.
    """
    tasks = [task for task in stores.glob("*/*/") if any(task.iterdir())]
    checkpoints = [task / ".checkpoint" for task in tasks]
    return min((file.stat().st_mtime if file.exists() else 0.0 for file in checkpoints), default=0.0)


def _write(file: Path, marker: _Marker) -> None:
    temporary = file.with_name(_NEW_MARKER)
    make_file(temporary, DATA_FILE)
    temporary.write_bytes(msgspec.json.encode(marker))
    temporary.replace(file)


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ChangelogError(
            Kind.STORAGE, f"cannot keep rows in {path}: {reason}", hint="choose another [serve.streams] path"
        ) from error
