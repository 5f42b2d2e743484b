"""`changelog schemas`: works with the schemas of published tables. Each of its verbs is a module."""

import argparse
from collections.abc import Mapping

from changelog.connectors.commands import Command, add_verbs
from changelog.connectors.commands.schemas import accept, check, generate, plan, register

VERBS: Mapping[str, tuple[Command, str]] = {
    "generate": (generate, "write the schema files, schemas/ENTITY.avsc, from the live tables"),
    "plan": (plan, "show what a migration would do to the changelog: run it on the live database and roll it back"),
    "check": (check, "compare schema files with their earlier versions in git, in a registry or in a folder"),
    "register": (
        register,
        "register the Avro schemas of the live tables; without --yes, show what would be registered",
    ),
    "accept": (accept, "let the service continue past a change of columns, or make it read a table again"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog schemas`."""
    add_verbs(parser, VERBS)


def execute(arguments: argparse.Namespace) -> int:
    """Runs the verb that the command line names."""
    verb, _ = VERBS[arguments.verb]
    return verb.execute(arguments)
