"""Tests that `changelog_stamps` imports nothing else of this project, and that old versions of Python can run it."""

import ast
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
FOLDER = CHECKOUT / "stamps"
FILES = sorted((FOLDER / "changelog_stamps").rglob("*.py"))
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text("utf-8"))["project"]

DRIVERS = {
    "asyncpg.py": {"asyncpg"},
    "psycopg.py": {"psycopg", "psycopg_pool"},
    "psycopg2.py": {"psycopg2"},
    "sqlalchemy.py": {"sqlalchemy"},
}
"""The third-party packages that each module imports. The modules of the folder `django` import Django."""


def imports(file: Path) -> set[str]:
    """Returns the names of the top-level packages that a file imports, at its beginning or inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    return names


def test_each_module_imports_only_its_own_driver() -> None:
    foreign = {file: imports(file) - {"changelog_stamps", *sys.stdlib_module_names} for file in FILES}
    expected = {file: {"django"} if file.parent.name == "django" else DRIVERS.get(file.name, set()) for file in FILES}
    assert {file: names for file, names in foreign.items() if names - expected[file]} == {}
    assert {name for names in foreign.values() for name in names} == {"django", *set().union(*DRIVERS.values())}
    assert PROJECT["dependencies"] == []


def test_no_other_code_of_this_project_imports_changelog_stamps() -> None:
    folders = ("connectors", "envelope", "schemas", "spark_jobs")
    files = [file for folder in folders for file in (CHECKOUT / folder).rglob("*.py")]
    assert [file for file in files if "changelog_stamps" in imports(file)] == []


def test_the_package_is_valid_in_the_oldest_python() -> None:
    oldest = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    assert oldest == (3, 9)
    for file in FILES:
        tree = ast.parse(file.read_text("utf-8"), feature_version=oldest)
        words = {keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords}
        assert not words & {"slots", "kw_only"}, file  # arguments of dataclasses since 3.10
