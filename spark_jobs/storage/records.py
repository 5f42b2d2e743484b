"""Reads and adds numbered records, in which the runs of jobs note what they wrote to a store.

An archive has no such records. Its manifests (`manifest.py`) say what was written.
"""

import secrets
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.storage.manifest import numbers, path_of
from changelog.spark_jobs.storage.store import FolderStore


class StoredRecord(Protocol):
    """A record: a dataclass that msgspec reads and writes as JSON."""

    @property
    def format(self) -> int:
        """The version of the record's members and their meaning."""


RecordT = TypeVar("RecordT", bound=StoredRecord)


def newest_record(store: FolderStore, kind: type[RecordT], format_: int) -> RecordT | None:
    """Returns the newest complete record; None if there is none.

    Raises ChangelogError (PRECONDITION) if the record has a newer format than `format_`.
    """
    present = numbers(store)
    for number in sorted(present, reverse=True):
        try:
            record = msgspec.json.decode(store.read(present[number]), type=kind)
        except msgspec.DecodeError:
            continue  # incomplete: its writer was killed, and this store shows partly written files
        if record.format > format_:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"{store.root}/{present[number]} has format {record.format}; this program knows {format_}",
                hint="use the newer version that wrote it",
            )
        return record
    return None


def add_record(store: FolderStore, number: int, record: StoredRecord) -> None:
    """Creates the record with this number. Raises ChangelogError (IN_USE) if another run created it first."""
    if not store.create(path_of(number), msgspec.json.encode(record)):
        raise outrun(store)


def outrun(store: FolderStore) -> ChangelogError:
    """Returns the error to raise if another run has written to the store first."""
    return ChangelogError(
        Kind.IN_USE, f"another run wrote to {store.root} at the same time", hint="start only one run at a time"
    )


def run_name(at: datetime) -> str:
    """Returns a unique name for a run. Names sort by the times when the runs began."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
