"""`changelog who`: prints what one service, request or batch run wrote, by entity: how much, and to which keys."""

import argparse
import os

from changelog.connectors import config, show
from changelog.connectors.commands import choosing
from changelog.connectors.history import as_json
from changelog.connectors.history.refusals import moment_text
from changelog.connectors.history.writes import writes
from changelog.connectors.rendering import show_writes
from changelog.connectors.terminal import json_line, safe
from changelog.connectors.wiring.sinks import open_log, refuse_other_envelope
from changelog.envelope.errors import ChangelogError, Kind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog who`."""
    parser.add_argument("--service", type=choosing.text, metavar="NAME", help="what this service wrote")
    parser.add_argument(
        "--identifier",
        type=choosing.text,
        metavar="TEXT",
        help="what the request, job or user with this identifier wrote",
    )
    choosing.add_since(parser)
    parser.add_argument("--entity", metavar="ENTITY", help="only changes of this entity")
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each entity")


def execute(arguments: argparse.Namespace) -> int:
    """Prints, for each entity, how many changes of which kind the writer made, and of which keys."""
    service, identifier = arguments.service, arguments.identifier
    if service is None and identifier is None:
        raise ChangelogError(Kind.USAGE, "nobody is named", hint="name a --service, an --identifier, or both")
    settings = config.load(arguments.config, os.environ)
    refuse_other_envelope(settings, "`changelog who`")
    log = open_log(settings)
    result = writes(log, service=service, identifier=identifier, since=arguments.since, entity=arguments.entity)
    if arguments.json:
        for entity in result:
            print(json_line(as_json.writes_to(entity)))
        return 0
    writer = " ".join(text for text in (service, identifier) if text is not None)
    console = show.console()
    if not result:
        since = "" if arguments.since is None else f" since {moment_text(arguments.since)}"
        console.print(f"{safe(writer)} made no change{since}")
        return 0
    for line in show_writes.writes(writer, result, with_services=service is None):
        console.print(line)
    return 0
