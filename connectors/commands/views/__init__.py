"""`changelog views`: works with views, which show the present state of each row. Each of its verbs is a module."""

import argparse
from collections.abc import Mapping

from changelog.connectors.commands import Command, add_verbs
from changelog.connectors.commands.views import install, pom, serve

VERBS: Mapping[str, tuple[Command, str]] = {
    "serve": (serve, "serve an HTTP API that answers what the state of a row is now (extra `console`)"),
    "install": (install, "fetch, through Maven, the jars of Kafka Streams that views of a changelog on Kafka need"),
    "pom": (pom, "print a pom.xml, with which Maven fetches the same jars on another machine"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog views`."""
    add_verbs(parser, VERBS)


def execute(arguments: argparse.Namespace) -> int:
    """Runs the verb that the command line names."""
    verb, _ = VERBS[arguments.verb]
    return verb.execute(arguments)
