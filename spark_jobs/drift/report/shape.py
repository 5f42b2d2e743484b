"""Defines the format of a report, `report.json`, version 1. docs/drift-report.schema.json is made from this module.

A report has all members of these classes, and no others; a value that is unknown is null. Times are ISO 8601 in UTC
(`…Z`). Positions are those of the changelog. A row key is *drifted* if it is *missing* (in the source, but not in the
changelog), *extra* (in the changelog, but not in the source) or *changed* (in both, with different values).
"""

from typing import Annotated, Any, Literal

import msgspec

from changelog.envelope.errors import ChangelogError, Kind

FORMAT = 1
FILE_NAME = r"^[0-9A-Za-z][0-9A-Za-z._-]*$"
"""The names that a report may give to files: they cannot name a file outside the run's folder."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Drift = Literal["missing", "extra", "changed"]
Verdict = Literal["clean", "drift", "severe", "not caught up", "refused"]
EntityVerdict = Literal["clean", "drift", "severe", "schema changed", "skipped"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class RunReport(_Part, frozen=True, kw_only=True):
    """One run of the job. `id` is the name of the run's folder; ids sort by the start of the runs."""

    id: Annotated[str, msgspec.Meta(pattern=FILE_NAME)]
    started_at: str
    finished_at: str
    seconds: float
    version: str
    name: str


class SourceReport(_Part, frozen=True, kw_only=True):
    """The source of truth."""

    kind: str
    database: str | None
    server: str | None
    name: str


class Lost(_Part, frozen=True, kw_only=True):
    """Changes that the changelog lacks (docs/how-to/gaps.md). `before` is the position of the last row before them.
    `position` is the position of the row that records the gap.
    """

    reason: str
    before: str | None
    position: str
    at: str


class Where(_Part, frozen=True, kw_only=True):
    """The changelog that was compared with the source. `gaps` lists the changes that it lacks; this list is also empty
    if the run did not look for gaps.
    """

    kind: str
    where: str
    gaps: tuple[Lost, ...] = ()


class FenceReport(_Part, frozen=True, kw_only=True):
    """The moment at which both sides are compared: each side shows the transactions of `snapshot`, and no others. The
    changelog was read up to `position`.
    """

    snapshot: str | None
    lsn: str | None
    taken_at: str | None
    position: str | None
    caught_up_at: str | None
    waited_seconds: float | None


class WriterReport(_Part, frozen=True, kw_only=True):
    """A service, and the number of drifted keys whose last change it wrote."""

    service_name: str | None
    api_version: str | None
    drifted: Count


class Incidents(_Part, frozen=True, kw_only=True):
    """Where in the changelog the drifted keys were last written: close together (`one`) or scattered (`many`)."""

    count: Count
    shape: Literal["one", "many"]
    first_position: str | None
    last_position: str | None
    first_at: str | None
    last_at: str | None


class Sample(_Part, frozen=True, kw_only=True):
    """A drifted key. `columns` has each column that differs, with its JSON on each side that has the column.

    A value of more than 200 characters is a text that ends in "…". Numbers are not reformatted (`-0` stays `-0`).
    `provenance` is the provenance of the key's last change. Its member `context` is a text: the JSON that the
    application wrote.
    """

    key: str
    kind: Drift
    columns: dict[str, dict[Literal["source", "changelog"], msgspec.Raw]]
    provenance: dict[str, Any] | None


class Action(_Part, frozen=True, kw_only=True):
    """What the policy wants done; `command` is the command line that does it."""

    do: Literal["none", "republish", "rebuild", "stop"]
    why: str
    command: str | None


class RepairHistory(_Part, frozen=True, kw_only=True):
    """How many keys are open (they drift, and no repair was sent), republished (a repair was sent, and no run has
    compared them since) and verified (equal again), over the newest 30 runs. Of the keys that still drift, one has
    drifted longest: `firstSeen` is the start of the run in which it began to drift.
    """

    open: Count
    republished: Count
    verified: Count
    first_seen: str | None


class Point(_Part, frozen=True, kw_only=True):
    """An entity's figures in one run."""

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
    """One entity. Its figures are null if it was not compared."""

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
    """Decodes a report that was read from `where`. Raises ChangelogError (MALFORMED) if `content` is not a report."""
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
