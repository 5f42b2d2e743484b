"""A store: one folder that Spark can reach, on this machine or on any file system that Spark has."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    pass


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
