"""Implements a store (a folder of a job's files) on this machine."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from changelog.connectors.permissions import PUBLIC_FILE, PUBLIC_FOLDER, make_file
from changelog.connectors.sinks.files.fsync import make_folder, sync
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.storage.store import FolderStore, StoredFile

TEMPORARY = ".changelog-"
"""The beginning of the names of temporary files."""


def local(folder: Path) -> FolderStore:
    """Returns the store in a folder on this machine."""
    return _LocalStore(folder.absolute())


@dataclass(frozen=True, slots=True)
class _LocalStore:
    """Creates a file by a link to a complete temporary file. Such a link (`link(2)`) never replaces another file, and
    nobody sees a file that is only partly written.
    """

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
                    continue  # deleted after `os.walk` listed it
                yield StoredFile(path=file.relative_to(self._folder).as_posix(), modified_s=modified_s)

    def read(self, path: str) -> bytes:
        with _storing(self._folder / path):
            return (self._folder / path).read_bytes()

    def create(self, path: str, content: bytes) -> bool:
        file = self._folder / path
        temporary = file.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        with _storing(file):
            make_folder(file.parent, PUBLIC_FOLDER)
            try:
                make_file(temporary, PUBLIC_FILE)
                with temporary.open("wb") as out:
                    out.write(content)
                    out.flush()
                    os.fsync(out.fileno())
                os.link(temporary, file)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            sync(file.parent)
        return True

    def move(self, source: str, target: str) -> None:
        before, after = self._folder / source, self._folder / target
        with _storing(after):
            make_folder(after.parent, PUBLIC_FOLDER)
            sync(before)  # Spark does not sync the files that it writes
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
    """Turns an OSError into a ChangelogError of one line."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ChangelogError(Kind.STORAGE, f"{file}: {reason}") from error
