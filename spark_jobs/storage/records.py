"""Numbered records of a store: what a job keeps about its own output, where that is no archive."""

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from envelope.errors import ChangelogError, Kind
from spark_jobs.storage.manifest import numbers, path_of
from spark_jobs.storage.store import Store

if TYPE_CHECKING:
    pass


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
