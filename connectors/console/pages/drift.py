"""`/drift`: shows the latest comparison of the changelog with its tables."""

from starlette.requests import Request

from changelog.connectors.console.drift_reports import LatestReport, drifted_keys, read_latest
from changelog.connectors.console.rendering import Page
from changelog.connectors.console.site import Site


def drift(site: Site, _request: Request) -> Page:
    """Returns the page of the latest drift report, which may not exist yet."""
    folder = site.config.console.drift_reports
    report = None if folder is None else read_latest(folder)
    data = {
        "is_configured": folder is not None,
        "report": report,
        "keys": {} if report is None else {name: drifted_keys(name, item) for name, item in report.entities.items()},
    }
    return Page(template="drift.html", title="Drift", data={**data, "tone": tone(report)})


def tone(report: LatestReport | None) -> str:
    """Returns how a page shows the verdict of a report: as good, bad, a warning, or neutral."""
    return {"clean": "good", "drift": "warn", "severe": "bad"}.get("" if report is None else report.verdict, "flat")
