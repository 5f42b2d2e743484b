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
from tests.campaigns._pieces import Progress, run

CHECKOUT = Path(__file__).parents[2]
KEPT = CHECKOUT / ".cache" / "soak"


def names() -> list[str]:
    """The names of all campaigns."""
    modules = (module.name for module in pkgutil.iter_modules(tests.campaigns.__path__))
    return sorted(name for name in modules if not name.startswith("_"))


def unfinished(name: str, rounds: int) -> int | None:
    """Returns the seed of the last run of this campaign with this number of rounds that was interrupted, or None."""
    files = sorted(KEPT.glob(f"{name}-*-{rounds}.json"), key=lambda file: file.stat().st_mtime)
    return int(files[-1].stem.split("-")[-2]) if files else None


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign that the arguments name, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("name", nargs="?", choices=names(), help="the campaign")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument(
        "--seed",
        type=int,
        help="the seed of a run to repeat; without it, the last interrupted run continues, or a new run begins",
    )
    parser.add_argument("--list", action="store_true", help="only print the names of the campaigns")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(names()))
        return 0
    if options.name is None:
        parser.error("name a campaign")
    seed = unfinished(options.name, options.rounds) if options.seed is None else options.seed
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    progress = Progress(KEPT / f"{options.name}-{seed}-{options.rounds}.json")
    before = f", continued after {len(progress.done)} finished pieces" if progress.done else ""
    print(f"campaign {options.name}: {options.rounds} rounds, seed {seed}{before}", flush=True)
    campaign = importlib.import_module(f"tests.campaigns.{options.name}").campaign()
    try:
        figures = run(campaign, options.rounds, seed, progress)
    except BaseException:
        command = f"make soak CAMPAIGN={options.name} ROUNDS={options.rounds} SEED={seed}"
        print(f"The campaign did not finish. `{command}` continues with the first unfinished piece.", file=sys.stderr)
        raise
    now = datetime.datetime.now(datetime.UTC).date()
    measured = {
        "day": now.isoformat(),
        "campaign": options.name,
        "rounds": options.rounds,
        "seed": seed,
        "seconds": round(progress.seconds),
        "figures": figures,
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
    }
    row = append(MEASURED, measured)
    progress.forget()
    print(row, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
