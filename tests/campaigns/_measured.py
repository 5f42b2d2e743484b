"""Stores the figures of campaigns in docs/measured: a line of JSON for each run, and a Markdown table with all runs."""

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
    "chunks": "chunks",
    "listed": "values in a form of Debezium's own",
}
"""The figures that count what a campaign did to the service. Each has the words that the table uses for it."""


def append(folder: Path, run: Mapping[str, Any]) -> str:
    """Adds a run to `campaigns.jsonl`, rewrites the table in `campaigns.md`, and returns the run's row of that table.

    A run has `day`, `campaign`, `rounds`, `seed`, `seconds`, `machine`, and `figures`, which are mapped by name.
    """
    with (folder / "campaigns.jsonl").open("a", encoding="utf-8") as runs:
        runs.write(json.dumps(run, ensure_ascii=False) + "\n")
    page = folder / "campaigns.md"
    page.write_text(with_table(page.read_text("utf-8"), read(folder)), "utf-8")
    return row(run)


def read(folder: Path) -> list[dict[str, Any]]:
    """All runs, in the order in which they were appended."""
    return [json.loads(line) for line in (folder / "campaigns.jsonl").read_text("utf-8").splitlines()]


def with_table(page: str, runs: Iterable[Mapping[str, Any]]) -> str:
    """Returns the page with a new table at its end. This table has a row for each of the runs, in the same order."""
    return page.partition(HEAD)[0] + HEAD + "".join(map(row, runs))


def row(run: Mapping[str, Any]) -> str:
    """The row of the Markdown table that describes a run."""
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
    """How many rows the run compared. Some campaigns call this figure `rows`, some call it `writes`, and others have
    two figures for it, `changes` and `reads`.
    """
    changes = figures.get("changes", 0) + figures.get("reads", 0)
    return int(figures.get("rows") or changes or figures.get("writes", 0))


def _count(figure: Any) -> int:
    return sum(map(_count, figure.values())) if isinstance(figure, dict) else int(figure)
