"""What campaigns measured: every figure as a line of JSON, and a table of the runs that a person reads."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[2] / "docs" / "measured"
HEAD = """\
| day | campaign | rounds | seed | minutes | rows | what was done to it | cores |
|---|---|---|---|---|---|---|---|
"""

_DONE: Mapping[str, str] = {
    "faults": "faults",
    "runs": "runs, most of them killed",
    "kills": "kills",
    "server_restarts": "server restarts",
    "truncates": "truncates",
    "rewrites": "rewrites",
    "gaps": "gaps",
    "edits": "edits of the publication and its tables",
    "spoilt": "rows spoilt",
    "planted": "differences planted and found",
}
"""Which figures say what a campaign did to the service, and in what words."""


def append(folder: Path, run: Mapping[str, Any]) -> str:
    """Adds a run to `campaigns.jsonl`, writes the table in `campaigns.md` again, and gives the run's row of it.

    A run has `day`, `campaign`, `rounds`, `seed`, `seconds`, `figures` by name, and `machine`.
    """
    with (folder / "campaigns.jsonl").open("a", encoding="utf-8") as runs:
        runs.write(json.dumps(run, ensure_ascii=False) + "\n")
    page = folder / "campaigns.md"
    page.write_text(with_table(page.read_text("utf-8"), read(folder)), "utf-8")
    return row(run)


def read(folder: Path) -> list[dict[str, Any]]:
    """All runs, as they were appended."""
    return [json.loads(line) for line in (folder / "campaigns.jsonl").read_text("utf-8").splitlines()]


def with_table(page: str, runs: Iterable[Mapping[str, Any]]) -> str:
    """The page with a table of these runs, in their order, in place of the one at its end."""
    return page.partition(HEAD)[0] + HEAD + "".join(map(row, runs))


def row(run: Mapping[str, Any]) -> str:
    """One run, as a row of the table."""
    figures = run["figures"]
    cells = (
        run["day"],
        run["campaign"],
        figures.get("rounds", run["rounds"]),
        run["seed"],
        round(run["seconds"] / 60),
        f"{_rows(figures):,}",
        ", ".join(f"{_count(figures[name]):,} {words}" for name, words in _DONE.items() if name in figures),
        run["machine"].partition(" ")[0],
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def _rows(figures: Mapping[str, Any]) -> int:
    """How many rows the run was judged by: rows, changes and rows read from tables, or writes; campaigns differ."""
    changes = figures.get("changes", 0) + figures.get("reads", 0)
    return int(figures.get("rows") or changes or figures.get("writes", 0))


def _count(figure: Any) -> int:
    return sum(figure.values()) if isinstance(figure, dict) else int(figure)
