"""Runs one campaign, and adds its figures to docs/measured/."""

import argparse
import datetime
import importlib
import os
import pkgutil
import platform
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import tests.campaigns
from tests.campaigns._measured import MEASURED, append
from tests.campaigns._pieces import Kept, run

CHECKOUT = Path(__file__).parents[2]
KEPT = CHECKOUT / ".cache" / "soak"


def names() -> list[str]:
    """The campaigns there are."""
    found = (module.name for module in pkgutil.iter_modules(tests.campaigns.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def unfinished(name: str, rounds: int) -> int | None:
    """The seed of the last run of this campaign that was interrupted; None without one."""
    files = sorted(KEPT.glob(f"{name}-*-{rounds}.json"), key=lambda file: file.stat().st_mtime)
    return int(files[-1].stem.split("-")[-2]) if files else None


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign that the arguments name; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("name", nargs="?", choices=names(), help="the campaign")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, help="repeats a run; else the interrupted one goes on, or a new one begins")
    parser.add_argument("--list", action="store_true", help="names the campaigns")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        print("\n".join(names()))
        return 0
    if chosen.name is None:
        parser.error("which campaign?")
    seed = unfinished(chosen.name, chosen.rounds) if chosen.seed is None else chosen.seed
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    kept = Kept(KEPT / f"{chosen.name}-{seed}-{chosen.rounds}.json")
    before = f", going on after {len(kept.done)} finished parts" if kept.done else ""
    print(f"campaign {chosen.name}: {chosen.rounds} rounds, seed {seed}{before}", flush=True)
    campaign = importlib.import_module(f"tests.campaigns.{chosen.name}").campaign()
    try:
        figures = run(campaign, chosen.rounds, seed, kept)
    except BaseException:
        again = f"make soak CAMPAIGN={chosen.name} ROUNDS={chosen.rounds} SEED={seed}"
        print(f"not finished: `{again}` goes on with the first part that is not done", file=sys.stderr)
        raise
    now = datetime.datetime.now(datetime.UTC).date()
    measured = {
        "day": now.isoformat(),
        "campaign": chosen.name,
        "rounds": chosen.rounds,
        "seed": seed,
        "seconds": round(kept.seconds),
        "figures": figures,
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
    }
    row = append(MEASURED, measured)
    kept.forget()
    print(row, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
