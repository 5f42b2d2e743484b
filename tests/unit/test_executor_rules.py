"""Tests `.ci/check_executors.py`, which checks the code that Spark ships to its workers. Also tests what this code
imports.
"""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
LISTED = {"changelog.spark_jobs.task"}
ONE = "from changelog.spark_jobs.task import one\ndef run(rows): "
OF_DRIVER = "ships a function of changelog.spark_jobs.driver"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_executors", CHECKOUT / ".ci" / "check_executors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("driver", f"{ONE}return rows.mapInArrow(one, S)", None),
        (
            "driver",
            f"{ONE}return rows.mapInArrow(partial(one, a=1), S)",
            None,
        ),
        (
            "driver",
            "from changelog.spark_jobs import task\ndef run(rows):\n  f = task.f(1)\n  return rows.mapInArrow(f, S)",
            None,
        ),
        ("task", "def run(rows):\n  def one(batch): ...\n  return rows.mapInArrow(one, S)", None),
        (
            "driver",
            "def one(batch): ...\ndef run(rows): return rows.mapInArrow(one, S)",
            "ships a function of changelog.spark_jobs.driver",
        ),
        ("driver", "def run(rows): return F.udf(lambda text: text)(rows)", OF_DRIVER),
        (
            "driver",
            "from changelog.spark_jobs.other import one\ndef run(rows): rows.foreachPartition(one)",
            "function of changelog.spark_jobs.other",
        ),
        (
            "task",
            "from changelog.spark_jobs.driver import LIMIT",
            "runs on executors and imports changelog.spark_jobs.driver",
        ),
    ],
)
def test_only_executor_code_is_shipped(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, problem: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("changelog", "spark_jobs", f"{name}.py")
    file.parent.mkdir(parents=True)
    Path("changelog", "spark_jobs", "task.py").touch()
    file.write_text(code, "utf-8")
    problems = list(check.Module(file).problems(LISTED))
    assert problems == [] if problem is None else [problem in line for line in problems] == [True]


def test_workers_load_no_connector_but_the_scan() -> None:
    """The scan reads tables of a source. Only modules that use it may load connectors.

    To import a module, Python also imports the `__init__` of its packages. The import rules do not cover that.
    """
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    contracts: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    contract = next(contract for contract in contracts if contract["name"].startswith("executors "))
    scans = {rule.partition(" ")[0] for rule in contract["ignore_imports"]}
    scans.add("changelog.spark_jobs.drift.judge_task")  # this module uses the scan
    modules = ", ".join(sorted(set(contract["source_modules"]) - scans))
    code = f"import sys, {modules}; print([name for name in sys.modules if name.startswith('changelog.connectors')])"
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=CHECKOUT)
    assert process.stdout.strip() == "[]"
