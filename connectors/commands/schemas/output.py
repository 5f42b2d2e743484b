"""Adds the options that choose the output format of `changelog schemas check` and `changelog schemas plan`."""

import argparse
from collections.abc import Iterable


def add_format(parser: argparse.ArgumentParser, formats: Iterable[str]) -> None:
    """Adds `--format`, and `--json` as the short form of `--format json`. Both set the attribute `format`."""
    parser.add_argument(
        "--format", choices=tuple(formats), default="text", help="the format of the output; default: %(default)s"
    )
    parser.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        default=argparse.SUPPRESS,
        help="the same as --format json",
    )
