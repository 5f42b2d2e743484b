"""Tests what the database in memory imports. It must import no code of other databases, and no package that Spark's
executors lack.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

ON_DRIVERS_ONLY = {
    "changelog.connectors.config",
    "changelog.connectors.service",
    "changelog.connectors.sinks",
    "changelog.connectors.wiring",
    "confluent_kafka",
    "prometheus_client",
    "pydantic",
    "pyspark",
    "rich",
    "structlog",
}


def imported_by(module: str) -> set[str]:
    script = f"import sys, {module}; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(answer.stdout.split())


def test_the_database_in_memory_imports_nothing_of_postgresql() -> None:
    modules = imported_by("tests.unit.memory.database")
    assert "changelog.connectors.capture.assembly.assembly" in modules
    assert not [
        name for name in modules if name.startswith("changelog.connectors.sources.postgres") or "psycopg" in name
    ]


@pytest.mark.parametrize("scan", ["changelog.connectors.sources.postgres.scan", "tests.unit.memory.scan"])
def test_a_scan_imports_nothing_that_executors_lack(scan: str) -> None:
    """When executors unpickle a scan, Python imports its module and also the packages that contain the module. The
    rules of import-linter do not cover these packages.
    """
    modules = imported_by(scan)
    assert "changelog.connectors.sources.fences" in modules
    assert not modules & ON_DRIVERS_ONLY
