"""Writes a job's figures in Prometheus's text format, for node_exporter's textfile collector."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from changelog.connectors.permissions import PUBLIC_FILE, make_file

PREFIX = "changelog_job_"
FINISHED = PREFIX + "finished_timestamp_seconds"
SUCCESS = PREFIX + "success"


_FAILED = frozenset({"failed", "not caught up", "refused"})


def write_metrics(file: Path, summary: Mapping[str, object], more: str = "") -> None:
    """Writes the summary's numbers to `file`, with the time when the job ended, and whether it succeeded. An existing
    file is replaced atomically.

    `more` is Prometheus text that comes at the end of the file.
    """
    registry = CollectorRegistry()
    figures = {f"{PREFIX}{_snake(name)}": value for name, value in summary.items() if _is_number(value)}
    figures |= {FINISHED: time.time(), SUCCESS: summary["verdict"] not in _FAILED}
    for name, value in figures.items():
        gauge = Gauge(name, "of the last run of the job", ["job"], registry=registry)
        gauge.labels(str(summary["job"])).set(float(str(value)) if not isinstance(value, bool) else int(value))
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    make_file(temporary, PUBLIC_FILE)
    temporary.write_bytes(generate_latest(registry) + more.encode())
    temporary.replace(file)


def _snake(name: str) -> str:
    """Converts a name to Prometheus's style: `sourceRows` becomes `source_rows`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
