"""A job's figures as a file of Prometheus's text format, which node_exporter's textfile collector serves."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from connectors.permissions import PUBLIC_FILE, make_file

PREFIX = "changelog_job_"
FINISHED = PREFIX + "finished_timestamp_seconds"
SUCCESS = PREFIX + "success"


_FAILED = frozenset({"failed", "not caught up", "refused"})


def write_metrics(file: Path, summary: Mapping[str, object], more: str = "") -> None:
    """Replaces `file` atomically: every number of the summary, when the job ended, whether it did what it is for.

    `more` is of the same format, and stands behind it.
    """
    registry = CollectorRegistry()
    figures = {f"{PREFIX}{_snake(name)}": value for name, value in summary.items() if _is_number(value)}
    figures |= {FINISHED: time.time(), SUCCESS: summary["verdict"] not in _FAILED}
    for name, value in figures.items():
        gauge = Gauge(name, "of the last run of the job", ["job"], registry=registry)
        gauge.labels(str(summary["job"])).set(float(str(value)) if not isinstance(value, bool) else int(value))
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    make_file(beside, PUBLIC_FILE)
    beside.write_bytes(generate_latest(registry) + more.encode())
    beside.replace(file)


def _snake(name: str) -> str:
    """`sourceRows` as Prometheus has names: `source_rows`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
