"""A job's figures as a file of Prometheus's text format, which node_exporter's textfile collector serves."""

import time
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

PREFIX = "changelog_job_"
FINISHED = PREFIX + "finished_timestamp_seconds"
SUCCESS = PREFIX + "success"


def write_metrics(file: Path, summary: Mapping[str, object]) -> None:
    """Replaces `file` atomically: every number of the summary, when the job ended, and whether it did not fail."""
    registry = CollectorRegistry()
    figures = {f"{PREFIX}{name}": value for name, value in summary.items() if _is_number(value)}
    figures |= {FINISHED: time.time(), SUCCESS: summary["verdict"] != "failed"}
    for name, value in figures.items():
        gauge = Gauge(name, "of the last run of the job", ["job"], registry=registry)
        gauge.labels(str(summary["job"])).set(float(str(value)) if not isinstance(value, bool) else int(value))
    write_to_textfile(str(file), registry)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
