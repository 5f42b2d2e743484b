"""`changelog blame`: prints the state of one key, and who set each of its attributes."""

import argparse
import os

from changelog.connectors import config, show
from changelog.connectors.commands import choosing
from changelog.connectors.history import as_json
from changelog.connectors.history.key_blame import key_state
from changelog.connectors.rendering.show_blame import blame
from changelog.connectors.terminal import json_line
from changelog.connectors.wiring.sinks import open_log, refuse_other_envelope
from changelog.envelope.entity import OF_CHANGELOG
from changelog.envelope.key import key_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog blame`."""
    choosing.add_key(parser)
    parser.add_argument(
        "--at", type=choosing.when, metavar="WHEN", help=f"as of WHEN instead of now: {choosing.MOMENT_FORM}"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the changes that set the attributes of the row, and below each change the attributes that it set."""
    settings = config.load(arguments.config, os.environ)
    if arguments.entity not in OF_CHANGELOG:
        refuse_other_envelope(settings, "`changelog blame`")
    entity, key = arguments.entity, key_text(arguments.key)
    result = key_state(open_log(settings), entity, key, at=arguments.at)
    if arguments.json:
        print(json_line(as_json.blame_of(entity, key, result.blame)))
        return 0
    console = show.console()
    for line in blame(entity, key, result, width=console.width):
        console.print(line)
    return 0
