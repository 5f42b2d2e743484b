"""`changelog demo`: the whole story on this machine."""

import argparse
from pathlib import Path

from connectors import demo, show

SECONDS = 6.0
SEED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog demo` takes."""
    parser.add_argument(
        "--path", type=Path, metavar="FOLDER", help="a new folder for its files; default: one among the temporary files"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=SECONDS,
        metavar="N",
        help=f"how long services write; default: {SECONDS:.0f}",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Runs the demo; nothing is left running."""
    demo.run(show.console(), path=arguments.path, seconds=arguments.seconds, seed=SEED)
    return 0


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds, at most 3600")
    return found
