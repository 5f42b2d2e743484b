"""Reads the latest report of `spark_jobs/detect_drift.py`, which finds differences between changelog and tables."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Raw

from changelog.connectors.console.addresses import row_address
from changelog.connectors.console.values import Value, pair
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Missing

REPORT = Path("latest", "report.json")
BYTES_MAX = 64 * 1024 * 1024
SAMPLES_MAX = 20
"""The maximum number of drifted keys that a page shows for an entity."""

COLUMNS_MAX = 20
"""The maximum number of columns that a page shows for a drifted key."""


class _Member(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object in a report. Members that the console does not show are ignored."""


class LatestRun(_Member, frozen=True, kw_only=True):
    """The run that wrote the report; times are ISO 8601."""

    id: str
    started_at: str
    finished_at: str
    seconds: float


class DriftedSample(_Member, frozen=True, kw_only=True):
    """A drifted key. For each column that differs, `columns` has the JSON of both sides: the table and the changelog.

    A side that lacks the row or the column has no JSON.
    """

    key: str
    kind: str
    columns: dict[str, dict[str, Raw]]


class EntityComparison(_Member, frozen=True, kw_only=True):
    """The result of comparing one entity with its table."""

    verdict: str
    why: str | None
    table: str
    drifted: int
    ppm: float | None
    source_rows: int
    changelog_rows: int
    missing: int
    extra: int
    changed: int
    columns: dict[str, int]
    samples: tuple[DriftedSample, ...]


class LatestReport(_Member, frozen=True, kw_only=True):
    """A report of format 1."""

    format: Annotated[int, msgspec.Meta(ge=1, le=1)]
    run: LatestRun
    verdict: str
    why: str | None
    entities: dict[str, EntityComparison]


def read_latest(folder: Path) -> LatestReport | None:
    """Returns the latest report in a folder, None if there is none yet.

    Raises ChangelogError: STORAGE if the file cannot be read, MALFORMED if it is not a report.
    """
    file = folder / REPORT
    try:
        with file.open("rb") as stream:
            content = stream.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ChangelogError(Kind.STORAGE, f"{file} cannot be read ({error.strerror})") from error
    try:
        return msgspec.json.decode(content, type=LatestReport)
    except msgspec.MsgspecError as error:
        hint = "the next run of detect_drift.py writes a new report"
        raise ChangelogError(Kind.MALFORMED, f"{file} is not a drift report of format 1", hint=hint) from error


class SideBySide(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a drifted key: its value in the table (`source`), and in the `changelog`."""

    name: str
    source: Value
    changelog: Value


class DriftedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A drifted key on a page, with the address of its changes. `more` is the number of columns not in `columns`."""

    key: str
    kind: str
    address: str
    columns: list[SideBySide]
    more: int


def drifted_keys(entity: str, compared: EntityComparison) -> list[DriftedKey]:
    """Returns the drifted keys of an entity that a page shows."""
    return [_drifted(entity, sample) for sample in compared.samples[:SAMPLES_MAX]]


def _drifted(entity: str, sample: DriftedSample) -> DriftedKey:
    columns = []
    for name, sides in islice(sample.columns.items(), COLUMNS_MAX):
        source, changelog = pair(_text(sides.get("source")), _text(sides.get("changelog")))
        columns.append(SideBySide(name=name, source=source, changelog=changelog))
    return DriftedKey(
        key=sample.key,
        kind=sample.kind,
        address=row_address(entity, sample.key),
        columns=columns,
        more=max(len(sample.columns) - COLUMNS_MAX, 0),
    )


def _text(content: Raw | None) -> str | Missing:
    return MISSING if content is None else msgspec.json.format(bytes(content), indent=-1).decode()
