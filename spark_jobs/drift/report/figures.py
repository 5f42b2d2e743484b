"""Writes a report's figures in Prometheus's text format, for node_exporter's textfile collector."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

PREFIX = "changelog_drift_"
FINISHED = PREFIX + "finished_timestamp_seconds"
SUCCESS = PREFIX + "last_success_timestamp_seconds"
SEVERITY = PREFIX + "verdict"
DURATION = PREFIX + "duration_seconds"
FENCE_LAG = PREFIX + "fence_lag_seconds"
ROWS = PREFIX + "rows_compared"
DRIFTED = PREFIX + "drifted_keys"
OPEN = PREFIX + "open_keys"

VERDICTS = ("clean", "drift", "severe", "not caught up", "refused")


def prometheus(report: Mapping[str, Any]) -> str:
    """Returns the report's metrics as text.

    If the run could not compare anything, the text lacks `SUCCESS`, the time at which a run last compared something. So
    an alert must use the last value that Prometheus has of this metric, with `max_over_time(…[7d])`, as docs/alerts.yml
    does.
    """
    registry = CollectorRegistry()
    name = report["run"]["name"]
    ended = datetime.fromisoformat(report["run"]["finishedAt"]).timestamp()

    def gauge(metric: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(metric, help_text, ["name", *labels], registry=registry)

    gauge(FINISHED, "when the last run ended").labels(name).set(ended)
    gauge(DURATION, "how long the last run took").labels(name).set(report["run"]["seconds"])
    is_compared = report["verdict"] in ("clean", "drift", "severe")
    if is_compared:
        gauge(SUCCESS, "when the last run that compared something ended").labels(name).set(ended)
    severity = gauge(SEVERITY, "1 for the last run's verdict, 0 for the others", "verdict")
    for verdict in VERDICTS:
        severity.labels(name, verdict).set(verdict == report["verdict"])
    waited = (report["fence"] or {}).get("waitedSeconds")
    if waited is not None:
        help_text = "how long the service took to publish everything up to the snapshot"
        gauge(FENCE_LAG, help_text).labels(name).set(waited)
    rows = gauge(ROWS, "rows compared in the last run", "entity", "side")
    drifted = gauge(DRIFTED, "keys that drifted in the last run", "entity", "kind")
    pending = gauge(OPEN, "drifted keys for which no repair was sent", "entity")
    for entity, figures in report["entities"].items():
        if figures["drifted"] is None:
            continue
        rows.labels(name, entity, "source").set(figures["sourceRows"])
        rows.labels(name, entity, "changelog").set(figures["changelogRows"])
        for kind in ("missing", "extra", "changed"):
            drifted.labels(name, entity, kind).set(figures[kind])
        pending.labels(name, entity).set(figures["history"]["open"])
    return generate_latest(registry).decode()
