"""Defines version 1 of the format of reports (`report.json`). docs/drift-report.schema.json is made from this module.

A report has all members of these classes, and no others; a value that is unknown is null. Times are ISO 8601 in UTC
(`…Z`). Positions are those of the changelog. A key has *drifted* if its row is *missing* (in the source, but not in the
changelog), *extra* (in the changelog, but not in the source) or *changed* (in both, with different values).
"""

from typing import Annotated, Any, Literal

import msgspec

from changelog.envelope.errors import ChangelogError, Kind

FORMAT = 1
FILE_NAME = r"^[0-9A-Za-z][0-9A-Za-z._-]*$"
"""The form of names of files in a report. No such name leads out of the run's folder."""


Count = Annotated[int, msgspec.Meta(ge=0)]
Drift = Literal["missing", "extra", "changed"]
Verdict = Literal["clean", "drift", "severe", "not caught up", "refused"]
EntityVerdict = Literal["clean", "drift", "severe", "schema changed", "skipped"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class RunReport(_Part, frozen=True, kw_only=True):
    """One run of the job. `id` is the name of the run's folder. The ids of runs sort by the times when they started."""

    id: Annotated[str, msgspec.Meta(pattern=FILE_NAME)]
    started_at: str
    finished_at: str
    seconds: float
    version: str
    name: str


class SourceReport(_Part, frozen=True, kw_only=True):
    """The source with which the changelog was compared."""

    kind: str
    database: str | None
    server: str | None
    name: str


class Lost(_Part, frozen=True, kw_only=True):
    """A gap: changes that the changelog lacks (docs/how-to/gaps.md). `before` is the position of the last row before
    the gap. `position` is the position of the row that records the gap.
    """

    reason: str
    before: str | None
    position: str
    at: str


class Where(_Part, frozen=True, kw_only=True):
    """The changelog that was compared with the source. `gaps` lists its gaps. This list is also empty if the run did
    not look for gaps.
    """

    kind: str
    where: str
    gaps: tuple[Lost, ...] = ()


class FenceReport(_Part, frozen=True, kw_only=True):
    """The moment as of which both sides are compared: both show the transactions that `snapshot` shows, and no others.
    The changelog had reached `position` when it had caught up.
    """

    snapshot: str | None
    lsn: str | None
    taken_at: str | None
    position: str | None
    caught_up_at: str | None
    waited_seconds: float | None


class WriterReport(_Part, frozen=True, kw_only=True):
    """A service. `drifted` says how many of the drifted keys were last changed by this service."""

    service_name: str | None
    api_version: str | None
    drifted: Count


class Incidents(_Part, frozen=True, kw_only=True):
    """When the drifted keys were last written: close together (`one`), or scattered (`many`)."""

    count: Count
    shape: Literal["one", "many"]
    first_position: str | None
    last_position: str | None
    first_at: str | None
    last_at: str | None


class Sample(_Part, frozen=True, kw_only=True):
    """A drifted key. `columns` has the columns that differ. For each of them, there is the value on each side that has
    the column.

    A value of more than 200 characters is cut, and is a text that ends in "…". Numbers stay as they are written (`-0`
    stays `-0`). `provenance` is the provenance of the key's last change. Its member `context` is a text: the JSON that
    the application wrote.
    """

    key: str
    kind: Drift
    columns: dict[str, dict[Literal["source", "changelog"], msgspec.Raw]]
    provenance: dict[str, Any] | None


class Action(_Part, frozen=True, kw_only=True):
    """What should be done according to the policy. `command` is the command line that does it."""

    do: Literal["none", "republish", "rebuild", "stop"]
    why: str
    command: str | None


class RepairHistory(_Part, frozen=True, kw_only=True):
    """What became of the keys that drifted in the newest 30 runs. Some are open: they drift, and no repair was sent.
    Some are republished: a repair was sent, and no run has compared them since. The others are verified: they are equal
    again. `firstSeen` is the start of the run in which the oldest drift that still exists began.
    """

    open: Count
    republished: Count
    verified: Count
    first_seen: str | None


class Point(_Part, frozen=True, kw_only=True):
    """The figures of an entity in one run."""

    run: str
    at: str
    rows: Count
    missing: Count
    extra: Count
    changed: Count


class Repaired(_Part, frozen=True, kw_only=True):
    """The signals by which this run asked the service for a repair (`--repair`)."""

    signals: list[str]
    at: str


class EntityReport(_Part, frozen=True, kw_only=True):
    """One entity. If it was not compared, its figures are null."""

    table: str
    key: list[str]
    verdict: EntityVerdict
    why: str | None
    source_rows: Count | None
    changelog_rows: Count | None
    missing: Count | None
    extra: Count | None
    changed: Count | None
    drifted: Count | None
    ppm: float | None
    columns: dict[str, Count]
    schema_changed: dict[str, str]
    unknown: dict[str, Count]
    writers: list[WriterReport]
    incidents: Incidents | None
    samples: Annotated[list[Sample], msgspec.Meta(max_length=20)]
    sampled: str | None
    seconds: float | None
    action: Action
    history: RepairHistory
    trend: Annotated[list[Point], msgspec.Meta(max_length=30)]
    repaired: Repaired | None


class Report(_Part, frozen=True, kw_only=True):
    """The report of one run."""

    format: Literal[1]
    kind: Literal["changelog-drift-report"]
    run: RunReport
    verdict: Verdict
    exact: bool
    why: str | None
    source: SourceReport
    changelog: Where
    fence: FenceReport | None
    entities: dict[str, EntityReport]
    keys: Annotated[str, msgspec.Meta(pattern=FILE_NAME)] | None


def decode(content: bytes, where: str) -> Report:
    """Decodes a report. Raises ChangelogError (MALFORMED) if `content` is not a report. The error contains `where`,
    which says where the content is from.
    """
    try:
        return msgspec.json.decode(content, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # msgspec names the member and what is wrong with it, but never shows the value.
        message = f"{where} is not a drift report of format {FORMAT}: {error}"
        hint = "restore the file, or move its folder away: then the history begins with the next report"
        raise ChangelogError(Kind.MALFORMED, message, hint=hint) from error


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a report."""
    (top,), parts = msgspec.json.schema_components([Report], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Drift report, format {FORMAT}",
        **top,
        "$defs": dict(sorted(parts.items())),
    }
