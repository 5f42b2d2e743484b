"""What a report is: `report.json`, format 1. Its JSON Schema, docs/drift-report.schema.json, is made from here.

Every key is always there, null where it is unknown; no other key is. Times are ISO 8601 in UTC (`…Z`), positions
those of the changelog. *missing*: in the source, not in the changelog; *extra*: the other way round; *changed*: in
both, and not equal. A key of the three is *drifted*.
"""

from typing import Annotated, Any, Literal

import msgspec

from changelog.envelope.errors import ChangelogError, Kind

FORMAT = 1
FILE_NAME = r"^[0-9A-Za-z][0-9A-Za-z._-]*$"
"""What may stand for a name in a folder, and for nothing else."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Drift = Literal["missing", "extra", "changed"]
Verdict = Literal["clean", "drift", "severe", "not caught up", "refused"]
EntityVerdict = Literal["clean", "drift", "severe", "schema changed", "skipped"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class Run(_Part, frozen=True, kw_only=True):
    """One run of the job; `id` sorts as runs do, and names its folder."""

    id: Annotated[str, msgspec.Meta(pattern=FILE_NAME)]
    started_at: str
    finished_at: str
    seconds: float
    version: str
    name: str


class Source(_Part, frozen=True, kw_only=True):
    """The source of truth."""

    kind: str
    database: str | None
    server: str | None
    name: str


class Lost(_Part, frozen=True, kw_only=True):
    """Changes that the changelog lacks (docs/how-to/gaps.md), between the position of the last row `before`
    them, where that is known, and that of the gap.
    """

    reason: str
    before: str | None
    position: str
    at: str


class Where(_Part, frozen=True, kw_only=True):
    """The changelog that was compared with it; the `gaps` in it, where they were looked for."""

    kind: str
    where: str
    gaps: tuple[Lost, ...] = ()


class Fence(_Part, frozen=True, kw_only=True):
    """What both sides show: the transactions of `snapshot`. `position` is how far the changelog was read."""

    snapshot: str | None
    lsn: str | None
    taken_at: str | None
    position: str | None
    caught_up_at: str | None
    waited_seconds: float | None


class Writer(_Part, frozen=True, kw_only=True):
    """A service that wrote drifted keys last."""

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
    """A drifted key: for each column that differs its JSON on both sides, without the side that lacks it.

    A value of more than 200 characters is a text that ends in "…". Numbers stay as they are spelt. `provenance` is that
    of the key's last change; its `context` is a text, the JSON that the application wrote.
    """

    key: str
    kind: Drift
    columns: dict[str, dict[Literal["source", "changelog"], msgspec.Raw]]
    provenance: dict[str, Any] | None


class Action(_Part, frozen=True, kw_only=True):
    """What the policy says; `command` is the line that does it."""

    do: Literal["none", "republish", "rebuild", "stop"]
    why: str
    command: str | None


class History(_Part, frozen=True, kw_only=True):
    """Keys over the runs that are kept: drifted now, sent again since, equal again; since when the oldest drifts."""

    open: Count
    republished: Count
    verified: Count
    first_seen: str | None


class Point(_Part, frozen=True, kw_only=True):
    """An entity in one run."""

    run: str
    at: str
    rows: Count
    missing: Count
    extra: Count
    changed: Count


class Repaired(_Part, frozen=True, kw_only=True):
    """The signals that this run sent, as `--repair` does."""

    signals: list[str]
    at: str


class Entity(_Part, frozen=True, kw_only=True):
    """One entity: figures of its rows, null where it was not compared."""

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
    writers: list[Writer]
    incidents: Incidents | None
    samples: Annotated[list[Sample], msgspec.Meta(max_length=20)]
    sampled: str | None
    seconds: float | None
    action: Action
    history: History
    trend: Annotated[list[Point], msgspec.Meta(max_length=30)]
    repaired: Repaired | None


class Report(_Part, frozen=True, kw_only=True):
    """One run's report."""

    format: Literal[1]
    kind: Literal["changelog-drift-report"]
    run: Run
    verdict: Verdict
    exact: bool
    why: str | None
    source: Source
    changelog: Where
    fence: Fence | None
    entities: dict[str, Entity]
    keys: Annotated[str, msgspec.Meta(pattern=FILE_NAME)] | None


def decode(content: bytes, where: str) -> Report:
    """The report in `content`, read from `where`. Raises ChangelogError (MALFORMED) for what is none."""
    try:
        return msgspec.json.decode(content, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # msgspec names the key and what is wrong with it, never the value.
        message = f"{where} is no drift report of format {FORMAT}: {error}"
        hint = "restore it, or move its folder away: history then begins after it"
        raise ChangelogError(Kind.MALFORMED, message, hint=hint) from error


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a report."""
    (top,), parts = msgspec.json.schema_components([Report], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Drift report, format {FORMAT}",
        **top,
        "$defs": dict(sorted(parts.items())),
    }
