"""Defines the interface of a store. A store is a folder on this machine, or on any file system that Spark can reach."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file in a store: its path relative to the root, and the time of its last change in seconds since 1970."""

    path: str
    modified_s: float


class FolderStore(Protocol):
    """A folder. Every `path` is relative to this folder, and is written with slashes."""

    @property
    def root(self) -> str:
        """The path or URI by which Spark reaches the folder."""

    def files(self, folder: str) -> Iterator[StoredFile]:
        """Yields all files below a folder, even hidden ones, in any order. If the folder does not exist, there are no
        files.
        """

    def read(self, path: str) -> bytes:
        """Returns a file's content."""

    def create(self, path: str, content: bytes) -> bool:
        """Creates a file durably, and returns True. If the file exists already, changes nothing, and returns False."""

    def move(self, source: str, target: str) -> None:
        """Moves a file durably. No file may exist at `target`."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with its content. Does nothing if neither exists."""
