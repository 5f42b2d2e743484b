"""`changelog debezium`: fetches the jars with which the module `changelog.debezium` runs a connector."""

import argparse
import os
from pathlib import Path

from changelog.connectors.commands import add_common_arguments
from changelog.connectors.debezium import jars
from changelog.connectors.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog debezium`."""
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    install = _verb(verbs, "install", "fetch a connector with all its jars, through Maven")
    _add_connector(install)
    to_help = "the folder for the jars; default: one in the user's data folder"
    install.add_argument("--to", type=Path, metavar="DIR", help=to_help)
    pom = _verb(verbs, "pom", "print a pom.xml, with which Maven fetches the same jars on another machine")
    _add_connector(pom)
    _verb(verbs, "list", "list the connectors, their versions, and where they are installed")


def execute(arguments: argparse.Namespace) -> int:
    """Runs the verb that the command line names."""
    match arguments.verb:
        case "install":
            connector = jars.CONNECTORS[arguments.connector]
            folder = arguments.to or jars.default_folder(connector, os.environ, arguments.version)
            count = jars.install(connector, folder, arguments.version)
            say(f"{count} jars of {connector.name} {arguments.version or connector.version} are in {folder}")
        case "pom":
            print(jars.pom(jars.CONNECTORS[arguments.connector], arguments.version), end="")
        case _:
            for connector in jars.CONNECTORS.values():
                folder = jars.default_folder(connector, os.environ)
                where = str(folder) if (folder / jars.MANIFEST).exists() else "not installed"
                say(f"{connector.name:10} {connector.version:12} {connector.java_class:52} {where}")
    return 0


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    sub = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    add_common_arguments(sub)
    return sub


def _add_connector(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "connector", choices=list(jars.CONNECTORS), metavar="CONNECTOR", help=", ".join(jars.CONNECTORS)
    )
    parser.add_argument(
        "--version", metavar="V", help="the version of Debezium; default: the one with which we test the connector"
    )
