"""`changelog views`: works with views, which show the state of each row now. Each of its verbs is a module."""

import argparse
from collections.abc import Mapping

from changelog.connectors.commands import Command, add_common_arguments
from changelog.connectors.commands.views import serve

VERBS: Mapping[str, tuple[Command, str]] = {
    "serve": (serve, "serve an HTTP API that answers what the state of a row is now (extra `console`)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog views`."""
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    for name, (verb, summary) in VERBS.items():
        sub = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        add_common_arguments(sub)
        verb.add_arguments(sub)


def execute(arguments: argparse.Namespace) -> int:
    """Runs the verb that the command line names."""
    verb, _ = VERBS[arguments.verb]
    return verb.execute(arguments)
