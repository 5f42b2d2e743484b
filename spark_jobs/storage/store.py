"""A store is one folder that Spark can reach, on this machine or on any other file system."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a store: its path below the root, and the time of its last change in seconds since 1970."""

    path: str
    modified_s: float


class Store(Protocol):
    """A folder. Every `path` is relative to its root, with slashes."""

    @property
    def root(self) -> str:
        """The folder as a path or URI for Spark."""

    def files(self, folder: str) -> Iterator[StoredFile]:
        """All files below a folder, hidden ones too, in any order; none if the folder does not exist."""

    def read(self, path: str) -> bytes:
        """A file's content."""

    def create(self, path: str, content: bytes) -> bool:
        """Creates a durable file; returns False, and changes nothing, if a file of that name exists."""

    def move(self, source: str, target: str) -> None:
        """Moves a file, durably, to a path where no file exists."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with its content; a missing one is no error."""
