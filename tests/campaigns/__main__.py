"""Runs one campaign, and appends its figures to docs/measured.md."""

import argparse
import datetime
import importlib
import json
import os
import pkgutil
import platform
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import tests.campaigns

MEASURED = Path(__file__).parents[2] / "docs" / "measured.md"


def names() -> list[str]:
    """The campaigns there are."""
    found = (module.name for module in pkgutil.iter_modules(tests.campaigns.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def line(name: str, rounds: int, seed: int, figures: Mapping[str, object], seconds: float, now: datetime.date) -> str:
    """One campaign's figures, as a row of the table in docs/measured.md."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    told = ", ".join(f"{key} {json.dumps(value)}" for key, value in figures.items())
    return f"| {now.isoformat()} | {name} | {rounds} | {seed} | {seconds:.0f} | {told} | {machine} |\n"


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign that the arguments name; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("name", nargs="?", choices=names(), help="the campaign")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, help="repeats a run; a new one otherwise")
    parser.add_argument("--list", action="store_true", help="names the campaigns")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        print("\n".join(names()))
        return 0
    if chosen.name is None:
        parser.error("which campaign?")
    seed = random.SystemRandom().randrange(2**32) if chosen.seed is None else chosen.seed
    print(f"campaign {chosen.name}: {chosen.rounds} rounds, seed {seed}", flush=True)
    started = time.monotonic()
    figures = importlib.import_module(f"tests.campaigns.{chosen.name}").run(chosen.rounds, seed)
    now = datetime.datetime.now(datetime.UTC).date()
    row = line(chosen.name, chosen.rounds, seed, figures, time.monotonic() - started, now)
    with MEASURED.open("a", encoding="utf-8") as measured:
        measured.write(row)
    print(row, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
