"""Reads and adds numbered records. In a record, a run of a job notes what the run wrote to a store.

An archive has manifests instead of records (`manifest.py`).
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
        """The version of the format. It says which members a record has, and what they mean."""


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
            continue  # incomplete: its writer was killed, and in this store, a file is visible before it is complete
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
    """Returns a unique name for a run that began at this time. The names of runs sort by these times."""
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
