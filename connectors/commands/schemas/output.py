"""The options of `changelog schemas check` and `plan` for the format of the output."""

import argparse
from collections.abc import Iterable


def add_format(parser: argparse.ArgumentParser, formats: Iterable[str]) -> None:
    """Adds `--format`, and `--json` as the short form of `--format json`; the attribute is `format`."""
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
