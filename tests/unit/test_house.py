"""What keeps the checkout in order: the check of the locks, and the entry point of the campaigns."""

import datetime
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tests.campaigns.__main__ as campaigns

CHECKOUT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = {
    "project": {"dependencies": ["left>=2"], "optional-dependencies": {"embedded": []}},
    "dependency-groups": {"test": [], "lint": []},
}
LEFT = "left==2.1 \\\n    --hash=sha256:00\n    # via changelog-publisher (pyproject.toml)\n"


@pytest.fixture(scope="module")
def check_locks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_locks", CHECKOUT / ".ci" / "check_locks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("lock", "problem"),
    [
        (LEFT, None),
        (LEFT.replace("    --hash=sha256:00\n", ""), "left has no hash"),
        (LEFT.replace("2.1", "1.9"), "left is locked at 1.9, required is >=2"),
        (LEFT.replace("left", "right"), "left is not locked"),
        (LEFT + LEFT.replace("left", "right"), "right is locked, but no longer required"),
        ("--index-url https://packages.example/simple\n" + LEFT, "line 1 holds a path, an address or an option"),
        (LEFT + "right @ file:///home/someone/right\n", "line 4 holds a path, an address or an option"),
        (LEFT + "./right\n", "line 4 holds a path, an address or an option"),
        (LEFT + "    # via -r /home/someone/requirements.in\n", "line 4 holds a path, an address or an option"),
    ],
)
def test_a_lock_that_cannot_be_trusted_is_named(
    check_locks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str, problem: str | None
) -> None:
    (tmp_path / "requirements.lock").write_text(lock, "utf-8")
    monkeypatch.chdir(tmp_path)
    found = list(check_locks.problems("requirements.lock", PROJECT))
    assert found == [] if problem is None else problem in found


def test_a_campaign_is_found_by_its_name_and_its_figures_become_a_row() -> None:
    assert "__main__" not in campaigns.names()
    row = campaigns.line("postgres", 50, 7, {"kills": 50, "lost": 0}, 601.4, datetime.date(2026, 11, 21))
    assert row.startswith("| 2026-11-21 | postgres | 50 | 7 | 601 | kills 50, lost 0 | ")
    header = (CHECKOUT / "docs" / "measured.md").read_text("utf-8").split("\n|---")[0].splitlines()[-1]
    assert row.count("|") == header.count("|")


def test_an_unknown_campaign_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        campaigns.main(["nonsense"])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err
