"""`/`: says what the console is for, searches for keys, and shows the state of the changelog."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from changelog.connectors.console.changes import change
from changelog.connectors.console.drift_reports import read_latest
from changelog.connectors.console.pages.drift import tone
from changelog.connectors.console.rendering import Page
from changelog.connectors.console.site import NEWEST, Site
from changelog.connectors.history.stamp_shares import StampShare
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op
from changelog.envelope.stamp import StampKind

PATIENCE_S = 1.0
"""How many seconds the page waits for each of these: the status of the service, the gaps, and the counts that say who
stamped the newest changes.
"""

READ_PATIENCE_S = 3.0
"""How many seconds the page waits for the newest changes to be read, and for all changes to be counted."""

SHARES_MAX = 40
"""The maximum number of lines in the table that says who stamped the newest changes."""

GAPS_MAX = 5
"""How many gaps the page shows at most. It shows the newest ones."""


def home(site: Site, _request: Request) -> Page:
    """Returns the first page. It waits only a moment for facts that take long to read, and says which are missing."""
    entities = site.entities()
    newest = site.newest.get(READ_PATIENCE_S)
    counts = site.counts.get(READ_PATIENCE_S)
    status = site.status.get(PATIENCE_S)
    gaps = site.gaps.get(PATIENCE_S)
    shares = site.shares.get(PATIENCE_S)
    data: dict[str, Any] = {
        "name": site.config.name,
        "entities": [_entity(name, counts.value) for name in entities],
        "counts_problem": counts.problem,
        "newest": [change(record, site.palette) for record in (newest.value or ())[:NEWEST]],
        "newest_problem": newest.problem,
        "status": status.value,
        "status_problem": status.problem,
        "shares": [_share(site, share) for share in (shares.value or ())[:SHARES_MAX]],
        "gaps": [change(record, site.palette) for record in (gaps.value or ())[: -GAPS_MAX - 1 : -1]],
        "drift": _drift(site),
    }
    return Page(template="home.html", title="What happened, and who did it", data=data)


def _entity(name: str, counts: Mapping[str, Mapping[str, int]] | None) -> dict[str, Any]:
    """Returns an entity for the page. The numbers of messages are None if they are not known yet."""
    ops = None if counts is None else counts.get(name, {})
    total = None if ops is None else sum(ops.values())
    return {"name": name, "total": total, "ops": _ops(ops)}


def _share(site: Site, share: StampShare) -> dict[str, Any]:
    """Returns one line of the table that says who stamped the newest changes: the counts for one entity and service."""
    stamped_by = max(StampKind, key=lambda kind: int(getattr(share, kind)))
    colour = site.palette.colour_of(share.service, stamped_by)
    return {**asdict(share), "changes": share.changes, "stamped_by": str(stamped_by), "colour": colour}


def _ops(ops: Mapping[str, int] | None) -> Sequence[tuple[str, int]]:
    return [(str(op), ops[str(op)]) for op in Op if ops and ops.get(str(op))]


def _drift(site: Site) -> dict[str, Any]:
    """Returns the verdict of the latest drift report. If the report cannot be read, returns the problem."""
    folder = site.config.console.drift_reports
    try:
        report = None if folder is None else read_latest(folder)
    except ChangelogError as error:
        return {"verdict": None, "finished_at": None, "tone": "flat", "problem": str(error)}
    return {
        "verdict": None if report is None else report.verdict,
        "finished_at": None if report is None else report.run.finished_at,
        "tone": tone(report),
        "problem": None,
    }
